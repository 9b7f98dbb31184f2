"""sort, topk, kthvalue, median, mode, searchsorted, bucketize and isin, against CPU torch."""

import math

import pytest
import torch
from helpers import flat, to_tpu

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.int32, torch.bool]


def check(function, *args):
    actual, expected = function(*map(to_tpu, args)), function(*args)
    for a, e in zip(flat(actual), flat(expected), strict=True):
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, rtol=0, atol=0)


def check_raises(error, text, function, *args):
    with pytest.raises(error, match=text):
        result = function(*map(to_tpu, args))
        flat(result)[0].cpu()


def numbers(*shape, dtype=torch.float32):
    """With many equal elements."""
    x = torch.randint(0, 9, shape)
    return x.bool() if dtype == torch.bool else (x if dtype == torch.uint8 else x - 4).to(dtype)


SPECIAL = torch.tensor([1.0, NAN, -INF, 0.0, -0.0, NAN, INF, -1.0, -0.0, 0.0, 1e-42, -1e-42])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype, descending):
    x = numbers(3, 7, 4, dtype=dtype)
    for dim in (0, 1, -1):
        check(lambda x: torch.sort(x, stable=True, dim=dim, descending=descending), x)


def test_sort_of_special_values():
    for x in (SPECIAL, SPECIAL.double(), SPECIAL.half()):
        for descending in (False, True):
            check(lambda x: torch.sort(x, stable=True, descending=descending), x)
            signs = torch.sort(x, stable=True, descending=descending)[0].signbit()
            ours = torch.sort(x.to("tpu"), stable=True, descending=descending)[0].cpu()
            assert torch.equal(ours.signbit()[~ours.isnan()], signs[~ours.isnan()])
    limits = [torch.tensor([2**63 - 1, -(2**63), 0, -1, 2**40]), torch.tensor([2**31 - 1, -(2**31), 0, -1], dtype=torch.int32)]
    for x in limits:
        check(lambda x: (*x.sort(stable=True), *x.sort(stable=True, descending=True)), x)


def test_sort_shapes():
    check(lambda x: x.sort(), torch.tensor(3.0))
    check(lambda x: (*x.sort(0), *x.sort(1)), torch.empty(0, 3))
    check(lambda x: x.t().sort(0), torch.randn(5, 4))
    check(lambda x: x[1::2].sort(0), torch.randn(9, 3))
    check(lambda x: x.sort(2), torch.randn(2, 2, 5, 2, 2))
    check(lambda x: x.sort(), torch.randn(3000))
    check(lambda x: (x.argsort(1), x.msort(), torch.argsort(x, stable=True, descending=True)), torch.randn(4, 5))
    check(lambda x: x[:, :1].expand(-1, 3).sort(dim=0, stable=True), torch.randn(5, 2))
    check_raises(IndexError, "Dimension out of range", lambda x: x.sort(3), torch.ones(2))
    check_raises(RuntimeError, "complex", lambda x: x.sort(), torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_topk(dtype, largest):
    distinct = torch.stack([torch.randperm(40) for _ in range(6)]).reshape(2, 3, 40).to(dtype)
    check(lambda x: x.topk(5, largest=largest), distinct)
    check(lambda x: x.transpose(0, 2).topk(7, 0, largest), distinct)
    check(lambda x: x.topk(40, -1, largest), distinct)
    check(lambda x: x.topk(4, -1, largest)[0], numbers(3, 9, dtype=dtype))


def test_topk_of_special_values():
    x = torch.tensor([1.0, NAN, -INF, 3.0, INF])
    check(lambda x: (*x.topk(4), *x.topk(5, largest=False)), x)
    check(lambda x: (*x.topk(0), *x[0].topk(1)), x)
    check(lambda x: x.view(1, 1, 2, 1, 3, 2).topk(2, 4), torch.randn(12))
    check_raises(RuntimeError, "selected index k out of range", lambda x: x.topk(6), x)


@pytest.mark.parametrize(
    "function", [lambda x: x.sort(0)[0], lambda x: x.topk(2, 0)[0], lambda x: x.median(0)[0], lambda x: x.mode(0)[0]]
)
def test_gradients(function):
    x = torch.randn(5, 3)
    grads = []
    for y in (x.to("tpu").requires_grad_(), x.clone().requires_grad_()):
        z = function(y)
        (z * torch.arange(1.0, 1 + z.numel()).reshape(z.shape).to(y.device)).sum().backward()
        grads.append(y.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_order_statistics(dtype):
    x = torch.stack([torch.randperm(8) for _ in range(6)]).reshape(2, 3, 8).to(dtype)
    check(lambda x: x.kthvalue(3), x)
    check(lambda x: x.kthvalue(1, 0, keepdim=True), x[:, :1])
    check(lambda x: (x.median(), *x.median(2, keepdim=True), *x.nanmedian(-1)), x)
    check(lambda x: x.mode(1, keepdim=True), numbers(3, 9, dtype=dtype))


def test_order_statistics_of_special_values():
    x = torch.tensor([[3.0, 1.0, 2.0, 4.0], [1.0, NAN, NAN, 0.0], [NAN, NAN, NAN, NAN], [INF, 1.0, -INF, NAN]])
    check(lambda x: (*x.median(1), x.nanmedian(1)[0]), x)  # the index of a NaN among NaNs is anyone's
    check(lambda x: (x.median(), x.nanmedian(), x[0].median(), *x[0].mode()), x)
    check(lambda x: (*x.kthvalue(1), *x.median(0), *x.nanmedian(0), *x.mode()), torch.tensor(3.0))
    check(lambda x: (x.median(), *x.median(1), *x.kthvalue(1, 1), *x.mode(1)), torch.empty(0, 3))
    check(lambda x: (*x.double().median(1), *x.bfloat16().median(1)), x)
    check_raises(RuntimeError, "selected number k out of range", lambda x: x.kthvalue(5), x)
    for name in ("median", "nanmedian", "mode"):
        check_raises(IndexError, "to have non-zero size", lambda x: getattr(x, name)(0), torch.empty(0, 3))


@pytest.mark.parametrize("size", [5, 200])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(size, right):
    values = torch.tensor([-1.0, 0.0, 2.0, 2.5, 7.0, 1000.0, NAN, INF, -INF])
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        sequence = torch.sort(torch.randint(0, 30, (size,)))[0].to(dtype)
        check(lambda s, v: torch.searchsorted(s, v, right=right), sequence, values)
    check(lambda s, v: torch.bucketize(v.view(3, 3), s, right=right, out_int32=True), sequence, values)
    check(lambda s: (torch.searchsorted(s, 3, right=right), torch.bucketize(2.5, s, right=right)), sequence.long())
    rows = torch.sort(torch.randint(0, 30, (2, 3, size)))[0]
    check(lambda s, v: torch.searchsorted(s, v, side="right" if right else "left"), rows, torch.randint(0, 30, (2, 3, 4)))
    shuffled = torch.randint(0, 30, (2, size))
    sorter = shuffled.argsort(1)
    check(
        lambda s, v, order: torch.searchsorted(s, v, sorter=order, right=right), shuffled, torch.randint(0, 30, (2, 4)), sorter
    )


def test_searchsorted_shapes_and_errors():
    search = torch.searchsorted
    sequence, rows = torch.tensor([1.0, 3.0, 5.0]), torch.arange(6.0).view(2, 3)
    check(lambda s, v: search(s, v), sequence, torch.tensor(3.0))
    check(lambda s, v: search(s, v), sequence, torch.empty(0, 2))
    check(lambda s, v: search(s, v), torch.empty(0), torch.tensor([3.0]))
    check_raises(RuntimeError, "first N-1 dimensions", search, rows, torch.ones(3, 4))
    check_raises(RuntimeError, "can be a scalar only when", search, rows, 3.0)
    check_raises(RuntimeError, "should have positive dimension", search, torch.tensor(2.0), torch.tensor([3.0]))
    check_raises(
        RuntimeError, "can't be set to opposites", lambda s, v: search(s, v, side="left", right=True), sequence, sequence
    )
    check_raises(RuntimeError, "side can only be", lambda s, v: search(s, v, side="foo"), sequence, sequence)
    check_raises(RuntimeError, "must have the same size", lambda s, o: search(s, s, sorter=o), sequence, torch.tensor([1, 2]))
    check_raises(RuntimeError, "must be a tensor of long", lambda s: search(s, s, sorter=s), sequence)
    check_raises(
        RuntimeError, "sorter index out of range", lambda s, o: search(s, s, sorter=o), sequence, torch.tensor([0, 1, 7])
    )
    check_raises(RuntimeError, "must be 1 dimension", lambda s: torch.bucketize(s, s), rows)


@pytest.mark.parametrize("size", [4, 100])
def test_isin(size):
    elements = torch.cat([torch.randint(0, 200, (17,)).float(), torch.tensor([NAN, 3.0])])
    tests = torch.cat([torch.randint(0, 200, (size,)).float(), torch.tensor([NAN, 3.0])])
    check(lambda x, y: (torch.isin(x, y), torch.isin(x.view(19, 1), y, invert=True)), elements, tests)
    check(lambda x, y: torch.isin(x.long(), y.nan_to_num().long()), elements.nan_to_num(), tests)
    check(lambda x, y: torch.isin(x, y), torch.tensor([1, 3]), tests)
    check(lambda x: (torch.isin(x, 3), torch.isin(x, 3, invert=True)), elements)
    torch.tpu.fallback = "error"
    check(lambda x: (torch.isin(3, x), torch.isin(2.5, x, invert=True)), elements)
    check(lambda x: torch.isin(3, x, out=torch.empty((), dtype=torch.bool, device=x.device)), elements)
    torch.tpu.fallback = "warn"
    check(lambda x, y: (torch.isin(x, y), torch.isin(y, x), torch.isin(x, y, invert=True)), elements, torch.empty(0))
