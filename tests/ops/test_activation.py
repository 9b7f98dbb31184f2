"""Activation functions and their gradients, against CPU torch."""

import math

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 1.7),
    "celu": lambda x: F.celu(x, 0.6),
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2, 3),
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardtanh": F.hardtanh,
    "hardtanh_limits": lambda x: F.hardtanh(x, -0.3, 0.9),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "glu": lambda x: F.glu(x, 0),
}
VALUES = [-8.0, -3.0, -1.5, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.9, 3.0, 30.0]


def forward_and_gradient(function, x, weight):
    x = x.detach().requires_grad_()
    y = function(x)
    (y * weight[tuple(slice(n) for n in y.shape)]).sum().backward()
    return y.detach(), x.grad


def check(function, x, rtol=1e-5, atol=1e-6):
    weight = torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype)
    expected = forward_and_gradient(function, x, weight)
    actual = forward_and_gradient(function, x.to("tpu"), weight.to("tpu"))
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-2 if narrow else rtol, atol=2e-2 if narrow else atol, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients(name, dtype):
    check(CASES[name], torch.tensor(VALUES).to(dtype))


@pytest.mark.parametrize("name", CASES)
def test_special_values(name):
    x = torch.tensor([-2.0 if name.startswith("gelu") else math.inf, -math.inf, math.nan, -0.0])  # gelu(inf) is NaN on the CPU
    torch.testing.assert_close(CASES[name](x.to("tpu")).cpu(), CASES[name](x), equal_nan=True)


@pytest.mark.parametrize("name", ["relu", "hardswish", "gelu", "elu", "glu", "logsigmoid"])
def test_layouts(name):
    base = torch.randn(4, 6)
    for x in (base.t(), base[::2, 1:5], torch.randn(2, 4, 3, 2).to(memory_format=torch.channels_last), torch.randn(0, 4)):
        check(CASES[name], x)
    x = torch.randn(2, 4, 3, 2).to(memory_format=torch.channels_last).to("tpu")
    if name != "glu":
        assert CASES[name](x).is_contiguous(memory_format=torch.channels_last)
        check(CASES[name], torch.tensor(0.7))


def test_in_place():
    x = torch.randn(4, 5)
    for function in (F.relu_, F.elu_, F.hardtanh_, F.leaky_relu_, F.silu, F.hardswish, F.mish, F.hardsigmoid):
        y = x.to("tpu")
        kwargs = {} if function.__name__.endswith("_") else {"inplace": True}
        out = function(y, **kwargs)
        assert out is y or out.data_ptr() == y.data_ptr()
        torch.testing.assert_close(y.cpu(), function(x.clone(), **kwargs))


def test_prelu():
    for shape, count in (((5, 3), 3), ((5, 3), 1), ((2, 3, 4, 4), 3)):
        x, weight = torch.randn(shape), torch.rand(count)

        def gradients(x, weight):
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            F.prelu(x, weight).square().sum().backward()
            return x.grad, weight.grad

        for a, e in zip(gradients(x.to("tpu"), weight.to("tpu")), gradients(x, weight), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-5)


def test_double_backward():
    def second(function, x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        return second

    x = torch.tensor([-1.2, -0.3, 0.4, 2.0])
    for name in ("tanh", "sigmoid", "gelu", "silu", "softplus", "elu"):
        torch.testing.assert_close(second(CASES[name], x.to("tpu")).cpu(), second(CASES[name], x), rtol=1e-4, atol=1e-5)


def test_integers():
    x = torch.arange(-3, 4)
    for function in (F.relu, lambda t: F.hardtanh(t, -1.5, 2), lambda t: F.threshold(t, 1, 9), torch.sigmoid):
        torch.testing.assert_close(function(x.to("tpu")).cpu(), function(x))


def test_errors():
    flags = torch.tensor([True, False], device="tpu")
    with pytest.raises(RuntimeError, match="Boolean inputs not supported for relu"):
        F.relu(flags)
    with pytest.raises(RuntimeError, match="Bool inputs not supported for hardtanh"):
        F.hardtanh(flags)
    with pytest.raises(RuntimeError, match="unsigned type with negative limits"):
        F.hardtanh(torch.ones(2, dtype=torch.uint8, device="tpu"))
    with pytest.raises(RuntimeError, match="Halving dimension must be even"):
        F.glu(torch.ones(3, device="tpu"))
    with pytest.raises(RuntimeError, match="approximate"):
        F.gelu(torch.ones(3, device="tpu"), approximate="cubic")
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.hardswish(torch.arange(3, device="tpu"))


@pytest.mark.parametrize("dim", [0, -1])
def test_glu_forward_mode(dim):
    """glu_jvp and glu_backward_jvp, which forward-mode AD calls."""
    x, dx = torch.randn(4, 6), torch.randn(4, 6)
    grad, dgrad = (torch.randn_like(x.narrow(dim, 0, x.shape[dim] // 2)) for _ in range(2))
    out, grad_x = torch.nn.functional.glu(x, dim), torch.ops.aten.glu_backward(grad, x, dim)
    torch.tpu.fallback = "error"
    glu_jvp, backward_jvp = torch.ops.aten.glu_jvp, torch.ops.aten.glu_backward_jvp
    for function, args in ((glu_jvp, (out, x, dx)), (backward_jvp, (grad_x, grad, x, dgrad, dx))):
        actual = function(*(a.to("tpu") for a in args), dim)
        torch.testing.assert_close(actual.cpu(), function(*args, dim), rtol=1e-5, atol=1e-6)
    torch.tpu.fallback = "warn"
