"""Interpolation of every kind with its gradient, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import picture_layouts, weights_like

MODES = [("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 2), ("linear", 1), ("bilinear", 2),
         ("trilinear", 3), ("bicubic", 2)]  # fmt: skip
SIZES = [((7, 6, 5), (14, 12, 10)), ((7, 6, 5), (3, 4, 2)), ((7, 6, 5), (9, 11, 1))]


def check(function, x, tolerance=3e-5, strides=True):
    outcomes = []
    for device in ("tpu", "cpu"):
        leaf = x.detach().to(device).requires_grad_(x.is_floating_point())
        y = function(leaf)
        results = [y]
        if leaf.requires_grad:
            results += torch.autograd.grad(y, leaf, weights_like(y))
        outcomes.append(results)
    for actual, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance * 3, equal_nan=True)
    assert not strides or outcomes[0][0].stride() == outcomes[1][0].stride()


def aligns(mode):
    return [{"align_corners": a} for a in (False, True)] if mode.endswith(("linear", "cubic")) else [{}]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode, spatial", MODES)
def test_sizes(mode, spatial, sizes):
    x, size = torch.randn(2, 3, *sizes[0][:spatial]), sizes[1][:spatial]
    for align in aligns(mode):
        check(lambda x: F.interpolate(x, size=size, mode=mode, **align), x)


@pytest.mark.parametrize("mode, spatial", MODES)
def test_scales(mode, spatial):
    x = torch.randn(1, 2, *(15, 10, 6)[:spatial])
    for scale in (1.7, 0.35):
        check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), x)
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, recompute_scale_factor=True), x)


def test_scale_that_keeps_the_size():
    # Linear kinds copy then; cubic resamples by the given scale, as torch does.
    x = torch.randn(1, 2, 30, 30)
    check(lambda x: F.interpolate(x, scale_factor=1.025, mode="bilinear"), x)
    with torch.no_grad():
        expected = F.interpolate(x, scale_factor=1.025, mode="bicubic")
        actual = F.interpolate(x.to("tpu"), scale_factor=1.025, mode="bicubic")
    assert not torch.equal(expected, x)
    torch.testing.assert_close(actual.cpu(), expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (11, 13), (7, 20)])
def test_antialias(mode, size):
    for align in (False, True):
        check(lambda x: F.interpolate(x, size, mode=mode, antialias=True, align_corners=align), torch.randn(2, 3, 9, 40))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    x = torch.randn(2, 3, 5, 6).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    for mode in ("nearest", "bilinear", "bicubic"):
        check(lambda x: F.interpolate(x, (11, 9), mode=mode), x, tolerance)


def test_bytes():
    x = torch.randint(0, 256, (1, 3, 7, 8), dtype=torch.uint8)
    check(lambda x: F.interpolate(x, (11, 9), mode="nearest"), x)
    for mode in ("bilinear", "bicubic"):
        check(lambda x: F.interpolate(x, (11, 9), mode=mode, antialias=True), x)
        actual = F.interpolate(x.to("tpu"), (11, 9), mode=mode).cpu().int()
        assert (actual - F.interpolate(x, (11, 9), mode=mode).int()).abs().max() <= 1  # a weight rounded the other way


def test_layouts():
    x = torch.randn(2, 3, 6, 5)
    for view in picture_layouts(x):
        check(lambda x: F.interpolate(x, (8, 7), mode="bilinear"), view)
        check(lambda x: F.interpolate(x, scale_factor=2), view)
    check(lambda x: F.interpolate(x, (3, 3), mode="bilinear"), torch.randn(0, 3, 5, 5))


def test_values_that_are_not_finite_stay_local():
    x = torch.randn(1, 1, 9, 9)
    x[0, 0, 4, 4] = float("nan")
    x[0, 0, 0, 8] = float("inf")
    for mode in ("bilinear", "bicubic"):
        check(lambda x: F.interpolate(x, (13, 11), mode=mode), x)


# --- grid_sample --------------------------------------------------------------------------------------------------------------


def check_grid(function, x, grid, tolerance=2e-5):
    """Result and both gradients."""
    outcomes = []
    for device in ("tpu", "cpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, grid)]
        y = function(*leaves)
        grads = torch.autograd.grad(y, leaves, weights_like(y))
        outcomes.append((y.detach(), *grads))
    for actual, expected in zip(*outcomes, strict=True):
        scale = max(expected.abs().max().item(), 1)
        torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding):  # others had the sign of reflection's gradient wrong
    for align in (False, True):
        check_grid(
            lambda x, g: F.grid_sample(x, g, mode, padding, align), torch.randn(2, 3, 5, 6), 1.7 * torch.randn(2, 4, 3, 2)
        )
        if mode != "bicubic":
            check_grid(
                lambda x, g: F.grid_sample(x, g, mode, padding, align),
                torch.randn(2, 3, 4, 5, 6),
                1.7 * torch.randn(2, 2, 4, 3, 3),
            )


def test_grid_sample_edges():
    x = torch.randn(1, 1, 4, 4)
    grid = torch.tensor([[[[float("nan"), 0.0], [1e20, 0.0], [-1e20, 0.3], [float("inf"), 0.1]]]])
    for padding in ("zeros", "border"):
        actual = F.grid_sample(x.to("tpu"), grid.to("tpu"), padding_mode=padding, align_corners=False)
        expected = F.grid_sample(x, grid, padding_mode=padding, align_corners=False)
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    for padding in ("zeros", "border", "reflection"):  # one row: nothing to reflect
        args = torch.randn(1, 2, 1, 3), torch.randn(1, 2, 2, 2)
        check_grid(lambda x, g: F.grid_sample(x, g, padding_mode=padding, align_corners=True), *args)


def test_affine_grid():
    def warp(x, theta):
        return F.grid_sample(x, F.affine_grid(theta, (2, 1, 5, 6), align_corners=False), align_corners=False)

    with torch.tpu.precision("highest"):  # affine_grid is a matmul
        check_grid(warp, torch.randn(2, 1, 4, 4), torch.randn(2, 2, 3))
