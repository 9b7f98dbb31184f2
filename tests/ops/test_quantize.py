"""Fake quantization, with given and with learned scales, against CPU torch."""

import math

import pytest
import torch

A = torch.ops.aten


@pytest.fixture(autouse=True)
def _on_the_device():
    torch.tpu.fallback = "error"
    yield
    torch.tpu.fallback = "warn"


def check(function, *args, **tolerance):
    expected = function(*args)
    actual = function(*(a.to("tpu") if isinstance(a, torch.Tensor) else a for a in args))
    if isinstance(expected, torch.Tensor):
        expected, actual = [expected], [actual]
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a.cpu(), e, **tolerance)


def check_raises(error, text, function, *args):
    for device in ("cpu", "tpu"):
        with pytest.raises(error, match=text):
            function(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in args))


def sample(dtype=torch.float32):
    x = torch.randn(3, 4, 5) * 3
    x[0, 0, :4] = torch.tensor([math.nan, 0.05, 0.15, -1e6])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_per_tensor(dtype):
    check(A.fake_quantize_per_tensor_affine_cachemask, sample(dtype), 0.1, 3, -8, 20)
    on, off = torch.tensor([1]), torch.tensor([0])
    scale, zero = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
    for enabled in (on, off):
        args = sample(dtype), scale, zero, enabled, -8, 20
        check(A._fake_quantize_per_tensor_affine_cachemask_tensor_qparams, *args, equal_nan=True)


def channels(axis, zero_dtype=torch.int32):
    size = (3, 4, 5)[axis]
    return torch.rand(size) * 0.2 + 0.1, torch.arange(size, dtype=zero_dtype) - 1, axis


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_per_channel(axis):
    check(A.fake_quantize_per_channel_affine_cachemask, sample(), *channels(axis), -8, 20)
    check(A.fake_quantize_per_channel_affine_cachemask, sample(torch.bfloat16), *channels(axis), -8, 20)
    check(A.fake_quantize_per_channel_affine_cachemask, sample(), *channels(axis, torch.float32), -8, 20)


def finite():
    return torch.randn(3, 4, 5) * 3


@pytest.mark.parametrize("zero", [3.4, 3.6, 2.5, -2.5, -2.7, 100.0])
def test_learnable_per_tensor(zero):
    scale, zero = torch.tensor([0.13]), torch.tensor([zero])
    check(A._fake_quantize_learnable_per_tensor_affine, finite(), scale, zero, -8, 20, 0.7)
    args = torch.randn(3, 4, 5), finite(), scale, zero, -8, 20, 0.7
    check(A._fake_quantize_learnable_per_tensor_affine_backward, *args, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_learnable_per_channel(axis):
    scale, zero, _ = channels(axis, torch.float32)
    args = scale, zero * 7.3, axis, -8, 20, 0.7
    check(A._fake_quantize_learnable_per_channel_affine, finite(), *args)
    gradient = torch.randn(3, 4, 5)
    check(A._fake_quantize_learnable_per_channel_affine_backward, gradient, finite(), *args, rtol=1e-4, atol=1e-4)


def test_module():
    """A layer prepared for quantization aware training: values and gradients."""

    def run(device):
        torch.manual_seed(0)
        x = torch.randn(8, 6).to(device).requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -10, 10)
        y.square().sum().backward()
        return y.detach().cpu(), x.grad.cpu()

    for on_cpu, on_tpu in zip(run("cpu"), run("tpu"), strict=True):
        torch.testing.assert_close(on_tpu, on_cpu)


def test_errors():
    per_tensor, per_channel = A.fake_quantize_per_tensor_affine_cachemask, A.fake_quantize_per_channel_affine_cachemask
    x, (scale, zero, axis) = finite(), channels(1)
    check_raises(RuntimeError, "`zero_point` must be between `quant_min` and `quant_max`", per_tensor, x, 0.1, 30, -8, 20)
    check_raises(RuntimeError, "`quant_min` should be less than or +equal to", per_tensor, x, 0.1, 3, 20, -8)
    check_raises(NotImplementedError, "not implemented for 'Int'", per_tensor, x.int(), 0.1, 3, -8, 20)
    check_raises(IndexError, "Dimension out of range", per_channel, x, scale, zero, 5, -8, 20)
    check_raises(RuntimeError, "`axis` must be between 0", per_channel, x, *channels(2)[:2], -1, -8, 20)
    check_raises(RuntimeError, "not consistent with input tensor", per_channel, x, scale, zero, 0, -8, 20)
    check_raises(RuntimeError, "Zero-point must be Int32, Float or Half", per_channel, x, scale, zero.long(), 1, -8, 20)
    check_raises(RuntimeError, "Scale must be Float or BFloat16", per_channel, x, scale.double(), zero, 1, -8, 20)
    check_raises(RuntimeError, "scale should be a 1-D tensor", per_channel, x, scale[None], zero, 1, -8, 20)
    with pytest.raises(RuntimeError, match="`zero_point` must be between"):
        per_channel(x.to("tpu"), scale.to("tpu"), zero.to("tpu") + 100, axis, -8, 20)
        torch.tpu.synchronize()
