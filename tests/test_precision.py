"""float32 products follow the precision in force: one bfloat16 pass, three, or full float32, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "mm": (torch.mm, (24, 32), (32, 20)),
    "bmm": (torch.bmm, (2, 8, 32), (2, 32, 6)),
    "linear": (F.linear, (3, 5, 32), (7, 32)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (2, 8, 9, 10), (4, 8, 3, 3)),
    "small picture": (lambda x, w: F.conv2d(x, w, padding=1), (2, 8, 2, 2), (4, 8, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=8), (2, 8, 9, 10), (8, 1, 3, 3)),
    "patches": (lambda x, w: F.conv2d(x, w, stride=4), (2, 3, 16, 16), (8, 3, 4, 4)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 8, 5, 6), (8, 4, 3, 3)),
}


def run(function, args, gradient, device="cpu"):
    """The result and the gradients of both arguments, in float64 on the CPU."""
    leaves = [x.detach().to(device).requires_grad_() for x in args]
    y = function(*leaves)
    grads = torch.autograd.grad(y, leaves, gradient.to(y))
    return [x.detach().cpu().double() for x in (y, *grads)]


def error(actual, expected):
    return max(((a - e).abs().max() / e.abs().max()).item() for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_passes(case):
    function, *shapes = CASES[case]
    args = [torch.randn(s) for s in shapes]
    gradient = torch.randn(function(*args).shape)
    exact = run(function, [x.double() for x in args], gradient.double())
    # Each product sees its operands rounded, so the backward sees a rounded gradient too.
    rounded = run(function, [x.bfloat16().double() for x in args], gradient.bfloat16().double())
    errors = {}
    for precision in ("medium", "high", "highest"):
        with torch.tpu.precision(precision):
            actual = run(function, args, gradient, "tpu")
        errors[precision] = error(actual, exact)
        if precision == "medium":
            assert error(actual, rounded) < 1e-6
    assert errors["medium"] > 1e-3
    assert errors["high"] < errors["medium"] / 50
    assert errors["highest"] < 1e-6


def test_torchs_own_setting():
    x, y = torch.randn(16, 64), torch.randn(64, 16)
    before = torch.get_float32_matmul_precision()

    def mm():
        return error([(x.to("tpu") @ y.to("tpu")).cpu().double()], [x.double() @ y.double()])

    try:
        torch.set_float32_matmul_precision("highest")
        assert mm() < 1e-6
        torch.set_float32_matmul_precision("high")
        assert 1e-6 < mm() < 1e-4
        torch.set_float32_matmul_precision("medium")
        assert mm() > 1e-3
    finally:
        torch.set_float32_matmul_precision(before)


def test_context_nests():
    x, y = torch.randn(16, 64), torch.randn(64, 16)
    xt, yt, exact = x.to("tpu"), y.to("tpu"), x.double() @ y.double()
    with torch.tpu.precision("highest"):
        with torch.tpu.precision("medium"):
            inner = (xt @ yt).cpu().double()
        outer = (xt @ yt).cpu().double()
    assert error([inner], [exact]) > 1e-3 and error([outer], [exact]) < 1e-6


def test_other_dtypes_do_not_depend_on_it():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        x, y = torch.randn(16, 64).to(dtype).to("tpu"), torch.randn(64, 16).to(dtype).to("tpu")
        results = []
        for precision in ("medium", "highest"):
            with torch.tpu.precision(precision):
                results.append((x @ y).cpu())
        assert torch.equal(*results)


def test_narrow_floats_accumulate_in_float32():  # a bfloat16 running sum sticks at 256
    ones = torch.ones(1, 4096, dtype=torch.bfloat16, device="tpu")
    assert (ones @ ones.t()).item() == 4096
    assert F.conv1d(ones[None], ones[None]).item() == 4096


def test_elementwise_is_exact():
    x = torch.tensor([1 + 2**-12, 3.0])
    assert torch.equal((x.to("tpu") * x.to("tpu")).cpu(), x * x)
    assert torch.equal(torch.outer(x.to("tpu"), x.to("tpu")).cpu(), torch.outer(x, x))


@pytest.mark.parametrize("precision", ["medium", "high", "highest"])
def test_infinities_stay(precision):
    x = torch.tensor([[float("inf"), 1.001], [2.003, float("nan")], [3.3, 2.0]])
    y = torch.tensor([[1.3, 0.3], [0.3, 1.3]])
    with torch.tpu.precision(precision):
        actual = (x.to("tpu") @ y.to("tpu")).cpu()
    torch.testing.assert_close(actual, x @ y, rtol=1e-2, atol=1e-2, equal_nan=True)
