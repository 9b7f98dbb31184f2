"""Maxima and averages over windows with positions and gradients, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import flat, picture_layouts, weights_like

aten = torch.ops.aten
NAN = float("nan")


def assert_same(actual, expected):
    narrow = expected.dtype in (torch.bfloat16, torch.float16)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **({"rtol": 1e-2, "atol": 1e-2} if narrow else {}))


def check(function, x):
    """Results and gradient against CPU torch, and the strides of the first result."""
    outcomes = []
    for device in ("tpu", "cpu"):
        leaf = x.detach().to(device).requires_grad_(x.is_floating_point())
        results = flat(function(leaf))
        y = results[0]
        if leaf.requires_grad:
            results += torch.autograd.grad(y, leaf, weights_like(y))
        outcomes.append([r.detach() for r in results])
    for actual, expected in zip(*outcomes, strict=True):
        assert_same(actual, expected)
    assert outcomes[0][0].stride() == outcomes[1][0].stride()


def pictures(*shape):
    """Random numbers, many equal ones, NaNs, and nothing but -inf."""
    ties = torch.randint(0, 3, shape).float()
    nans = torch.randn(shape)
    nans[nans > 1.2] = NAN
    return torch.randn(shape), ties, nans, torch.full(shape, float("-inf"))


WINDOWS = [  # kernel, stride, padding, dilation, ceil_mode
    (2, None, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 2, 1, 2, False),
    ((3, 2), (2, 1), (1, 0), 1, True),
    (2, 3, 1, 1, True),
    (1, 2, 0, 1, False),
    (5, 1, 2, 1, False),
]


@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil_mode", WINDOWS)
def test_max_pool2d(kernel, stride, padding, dilation, ceil_mode):
    def pool(x):
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, return_indices=True)

    for x in pictures(2, 3, 9, 8):
        check(pool, x)


def test_max_pool_long_windows():
    for x in pictures(2, 3, 30, 31):
        check(lambda x: F.max_pool2d(x, (20, 25), 3, (2, 5), return_indices=True), x)
        check(lambda x: F.max_pool2d(x, (30, 31), return_indices=True), x)
    check(lambda x: F.max_pool2d(x, (3, 17), (1, 2), (1, 5), (1, 2)), torch.randn(3, 6, 45))


@pytest.mark.parametrize("kernel, stride, padding, ceil_mode", [(2, None, 0, False), ((3, 2, 1), (2, 1, 2), (1, 0, 0), True)])
def test_pool3d(kernel, stride, padding, ceil_mode):
    for x in pictures(2, 3, 7, 6, 5)[:3]:
        check(lambda x: F.max_pool3d(x, kernel, stride, padding, 1, ceil_mode, return_indices=True), x)
    check(lambda x: F.avg_pool3d(x, kernel, stride, padding, ceil_mode), torch.randn(2, 3, 7, 6, 5))
    check(lambda x: F.avg_pool3d(x, kernel, stride, padding, ceil_mode, False), torch.randn(3, 7, 6, 5))


@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil_mode", [w for w in WINDOWS if w[3] == 1])
def test_avg_pool2d(kernel, stride, padding, dilation, ceil_mode):
    x = torch.randn(2, 3, 9, 8)
    check(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode), x)
    check(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, False), x)
    check(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, divisor_override=3), x[0])


def test_one_dimension():  # other backends gave avg_pool1d no gradient
    x = torch.randn(2, 3, 9)
    for pool in (F.max_pool1d, F.avg_pool1d):
        check(lambda x: pool(x, 3, 2, 1), x)
    check(lambda x: F.avg_pool1d(x, 3), x[0])
    check(lambda x: F.adaptive_avg_pool1d(x, 4), x)
    check(lambda x: F.adaptive_max_pool1d(x, 4), x)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (4, 3), (9, 8), (12, 10)])
def test_adaptive(size):
    for x in pictures(2, 3, 9, 8)[:3]:
        check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)
        check(lambda x: F.adaptive_avg_pool2d(x, size), x)
    check(lambda x: F.adaptive_avg_pool2d(x, size), torch.randn(3, 40, 33))


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 4, 2)])
def test_adaptive_3d(size):
    for x in (torch.randn(2, 3, 7, 6, 5), torch.randn(3, 7, 6, 5)):
        check(lambda x: F.adaptive_max_pool3d(x, size, return_indices=True), x)
        check(lambda x: F.adaptive_avg_pool3d(x, size), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
def test_dtypes(dtype):
    x = (torch.randn(2, 3, 9, 8) * 20).to(dtype)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    if dtype != torch.uint8:  # torch has no such kernel
        check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    if dtype.is_floating_point:
        check(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), x)


def test_layouts():
    x = torch.randn(2, 3, 9, 8)
    for view in picture_layouts(x):
        check(lambda x: F.max_pool2d(x, 2, return_indices=True), view)
        check(lambda x: F.avg_pool2d(x, 2), view)
        check(lambda x: F.adaptive_avg_pool2d(x, 3), view)


def test_empty():
    for x in (torch.randn(0, 3, 8, 8),):
        check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
        check(lambda x: F.avg_pool2d(x, 2), x)
        check(lambda x: F.adaptive_avg_pool2d(x, 3), x)
        check(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)


def test_unpool():
    y, at = F.max_pool2d(torch.randn(2, 3, 8, 8), 2, return_indices=True)
    expected = F.max_unpool2d(y, at, 2)
    assert_same(F.max_unpool2d(y.to("tpu"), at.to("tpu"), 2), expected)
    leaf = y.to("tpu").requires_grad_()
    F.max_unpool2d(leaf, at.to("tpu"), 2).sum().backward()
    assert_same(leaf.grad, torch.ones_like(y))
    y, at = F.max_pool3d(torch.randn(2, 3, 4, 4, 4), 2, return_indices=True)
    assert_same(F.max_unpool3d(y.to("tpu"), at.to("tpu"), 2), F.max_unpool3d(y, at, 2))
    with pytest.raises(RuntimeError, match="Found an invalid max index"):
        aten.max_unpool2d(torch.ones(1, 1, 2, 2, device="tpu"), torch.full((1, 1, 2, 2), 99, device="tpu"), [4, 4]).cpu()


@pytest.mark.parametrize("size", [(4, 5), (4, 1)])
def test_fractional(size):
    samples = torch.rand(2, 3, 2)

    def pool(x):
        return F.fractional_max_pool2d(x, (3, 2), size, return_indices=True, _random_samples=samples.to(x.device))

    for x in pictures(2, 3, 9, 12)[:3]:
        check(pool, x)


def test_fractional_3d():
    samples = torch.rand(2, 3, 3)
    check(
        lambda x: F.fractional_max_pool3d(x, (2, 3, 2), (3, 4, 5), _random_samples=samples.to(x.device)),
        torch.randn(2, 3, 6, 9, 12),
    )


cube = torch.ones(2, 3, 6, 6, 6)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: aten.max_pool3d_with_indices(x, [2, 2]),
        lambda x: aten.max_pool3d_with_indices(x, [2], [1], [2]),
        lambda x: aten.max_pool3d_with_indices(x, [2], [0]),
        lambda x: aten.max_pool3d_with_indices(x, [8]),
        lambda x: aten._adaptive_avg_pool3d(x, [2, 2]),
        lambda x: aten._adaptive_avg_pool2d(x[0, 0, 0], [2, 2]),
        lambda x: F.max_pool2d(x[0], 9),
        lambda x: F.avg_pool2d(x[0], 2, divisor_override=0),
        lambda x: aten.max_unpool2d(x[0], torch.zeros(3, 6, 6, 6, dtype=torch.int32, device=x.device), [12, 12]),
    ],
)
def test_errors_are_torchs(call):
    with pytest.raises(RuntimeError) as expected:
        call(cube)
    with pytest.raises(RuntimeError) as actual:
        call(cube.to("tpu"))
    assert str(expected.value).splitlines()[0] in str(actual.value)
