"""Ops whose results are as long as the data says: exact sizes, one host wait, no compilation for each new count."""

import pytest
import torch

NAN = float("nan")


pytestmark = pytest.mark.usefixtures("no_fallback")


def check(function, *args):
    """Compares values, dtypes, sizes and strides."""
    actual = function(*(x.to("tpu") if isinstance(x, torch.Tensor) else x for x in args))
    expected = function(*args)
    for a, e in zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True):
        assert a.device.type == "tpu"
        assert a.numel() < 2 or a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


def counts(function, make):
    """Waits per call, and compilations after the first two calls, over operands with many counts."""
    before = []
    for size in range(17, 29):
        x = make(size)
        torch.tpu.synchronize()
        start = torch.tpu.counters()
        function(*x)
        end = torch.tpu.counters()
        before.append((end["host_waits"] - start["host_waits"], end["compiles"] - start["compiles"]))
    return {waits for waits, _ in before}, sum(compiles for _, compiles in before[2:])


VECTORS = [
    torch.randint(0, 5, (3, 7)),
    torch.randn(4, 3).bfloat16().round(),
    torch.tensor(3.0),
    torch.empty(0),
    torch.empty(2, 0),
    torch.tensor([True, False, True]),
    torch.tensor([NAN, 1, NAN, 1, -0.0, 0.0]),
    torch.randint(0, 40, (100,), dtype=torch.uint8),
    torch.randn(50, dtype=torch.float64).round(),
]


@pytest.mark.parametrize("x", VECTORS, ids=lambda x: f"{x.dtype}{list(x.shape)}")
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_unique(function, x):
    for inverse in (False, True):
        for count in (False, True):
            check(lambda x, i=inverse, c=count: function(x, return_inverse=i, return_counts=c), x)
    check(lambda x: function(x.t() if x.dim() == 2 else x, return_inverse=True), x)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_unique_along_a_dim(function, dim):
    x = torch.randint(0, 2, (4, 9, 3))
    for x in (x, x.sort(dim)[0], x.transpose(0, 2), x.float()):
        check(lambda x: function(x, return_inverse=True, return_counts=True, dim=dim), x)


def test_unique_without_elements():
    check(lambda x: torch.unique(x, dim=1, return_counts=True), torch.empty(2, 0))


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_unique_errors(device):
    with pytest.raises(NotImplementedError, match="\"unique\" not implemented for 'ComplexFloat'"):
        torch.unique(torch.tensor([1j], device=device))
    with pytest.raises(RuntimeError, match="There are 0 sized dimensions, and they aren't selected, so unique cannot"):
        torch.unique(torch.empty(2, 0, device=device), dim=0)
    with pytest.raises(IndexError, match="Dimension specified as 0 but tensor has no dimensions"):
        torch.unique(torch.tensor(3, device=device), dim=0)


def test_unique_counts_on_the_device():
    waits, compiles = counts(torch.unique, lambda size: (torch.randint(0, size, (64,)).to("tpu"),))
    assert max(waits) <= 1 and compiles == 0


def test_positions_and_selections():
    mask = torch.rand(5, 4) < 0.4
    for x in (mask, mask.t(), mask.int(), torch.tensor(True), torch.zeros(3, 0), torch.zeros(4)):
        check(torch.nonzero, x)
        check(lambda x: torch.nonzero(x, as_tuple=True), x)
    x = torch.randn(5, 4, 3)
    check(lambda x, m: x[m], x, mask)
    check(lambda x, m: x[m], x, mask[:, 0])
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        check(lambda x, m: x[m], x, mask.byte())
    check(lambda x, m: x[m], x, torch.zeros(5, dtype=torch.bool))
    check(lambda x, m: x[m], x.transpose(0, 1), mask.t())
    check(lambda x, m: x[:, m], x, mask[0])
    check(lambda x, m, i: x[m[:, 0], i], x, mask, torch.tensor([2]))
    check(lambda x, m: torch.masked_select(x, m), x, mask.unsqueeze(-1))
    check(lambda x, m: torch.masked_select(x, m, out=torch.empty(0, device=x.device)), x, mask.unsqueeze(-1))
    with pytest.raises(IndexError, match="The shape of the mask"):
        x.to("tpu")[torch.zeros(4, dtype=torch.bool, device="tpu")]


def test_gradient_of_a_selection():
    def gradient(x, mask):
        x = x.detach().requires_grad_()
        (x[mask] * torch.arange(int(mask.sum()), device=x.device).unsqueeze(1)).sum().backward()
        return x.grad

    check(gradient, torch.randn(5, 3), torch.tensor([True, False, True, True, False]))


def test_selections_do_not_compile_for_each_count():
    def make(size):
        return torch.randn(64).to("tpu"), (torch.arange(64) < size).to("tpu")

    waits, compiles = counts(lambda x, m: x[m], make)
    assert max(waits) <= 1 and compiles == 0
    waits, compiles = counts(torch.masked_select, make)
    assert max(waits) <= 1 and compiles == 0


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_repeats(dim):
    x, repeats = torch.randn(4, 3), torch.tensor([2, 0, 3, 1])
    check(torch.repeat_interleave, repeats)
    if dim == 0:
        check(lambda x, r: x.repeat_interleave(r, dim), x, repeats)
        check(lambda x, r: x.repeat_interleave(r, dim, output_size=6), x, repeats)
    check(lambda x, r: x.repeat_interleave(r, dim), x, torch.tensor([2]))
    check(lambda x, r: x.repeat_interleave(r, dim), x, torch.tensor(0))
    check(lambda x: x.repeat_interleave(3, dim), x)

    def gradient(x):
        x = x.detach().requires_grad_()
        (x.repeat_interleave(torch.tensor([3], device=x.device), dim) * 2).sum().backward()
        return x.grad

    check(gradient, x)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_repeat_errors(device):
    x = torch.randn(4, 3, device=device)
    with pytest.raises(RuntimeError, match="repeats must have the same size as input along dim"):
        x.repeat_interleave(torch.tensor([1, 2], device=device), 0)
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        x.repeat_interleave(torch.tensor([1, 2, -1, 1], device=device), 0)
    with pytest.raises(RuntimeError, match="repeats must be 0-dim or 1-dim tensor"):
        x.repeat_interleave(torch.ones(2, 2, dtype=torch.long, device=device), 0)


def test_repeats_do_not_compile_for_each_count():
    def make(size):
        return torch.randn(4, 3).to("tpu"), torch.tensor([size, 0, 1, 2]).to("tpu")

    waits, compiles = counts(lambda x, r: x.repeat_interleave(r, 0), make)
    assert max(waits) <= 1 and compiles == 0


def test_bins():
    x, weights = torch.randint(0, 20, (50,)), torch.randn(50)
    check(torch.bincount, x)
    check(torch.bincount, x.to(torch.uint8))
    check(lambda x: torch.bincount(x, minlength=40), x)
    check(torch.bincount, torch.empty(0, dtype=torch.long))
    check(lambda x: torch.bincount(x, minlength=3), torch.empty(0, dtype=torch.long))
    check(torch.bincount, x, torch.arange(50))
    close = torch.bincount(x.to("tpu"), weights.to("tpu"))
    torch.testing.assert_close(close.cpu(), torch.bincount(x, weights))
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="bincount only supports 1-d non-negative integral inputs"):
            torch.bincount(torch.tensor([-1], device=device))
        with pytest.raises(RuntimeError, match="weights should be 1-d and have the same length as input"):
            torch.bincount(torch.tensor([1], device=device), torch.ones(2, device=device))
        with pytest.raises(RuntimeError, match="minlength should be >= 0"):
            torch.bincount(torch.tensor([1], device=device), minlength=-1)
