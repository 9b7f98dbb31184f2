"""softmax, log_softmax and their masked and safe variants, against CPU torch."""

import math

import pytest
import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
aten = torch.ops.aten


def check(function, *args, rtol=None, atol=None):
    actual, expected = function(*(x.detach().to("tpu") for x in args)), function(*args)
    if expected.dtype in (torch.bfloat16, torch.float16):
        rtol, atol = 1e-2, 1e-2
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=rtol, atol=atol)


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(x)).sum().backward()
    return x.grad


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_values_and_gradients(function, dtype):
    x = (torch.randn(3, 4, 5) * 20).to(dtype)
    for dim in (0, 1, -1):
        check(lambda x: function(x, dim), x)
        check(lambda x: gradient(lambda x: function(x, dim), x), x)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_long_rows(function):
    x = torch.randn(3, 70, 100) * 5
    for dim in (0, 1, 2):
        check(lambda x: function(x, dim), x, rtol=1e-5, atol=1e-6)
    check(lambda x: gradient(lambda x: function(x, 2), x), x, rtol=1e-4, atol=1e-6)
    x[0, 0, 3], x[1, 1, 50], x[2, 2, :] = NAN, -INF, -INF
    check(lambda x: function(x, 2), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_layouts(function):
    x = torch.randn(4, 6, 5)
    check(lambda x: function(x.transpose(0, 2), 0), x)
    check(lambda x: function(x[1:, ::2], 1), x)
    check(lambda x: function(x[:, :1].expand(-1, 3, -1), 1), x)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_special_values(function):
    check(lambda x: function(x, 1), torch.tensor([[-INF, -INF], [INF, 1.0], [NAN, 1.0], [-INF, 0.0], [1e4, -1e4]]))
    check(lambda x: function(x, 0), torch.tensor(3.0))
    check(lambda x: function(x, 1), torch.empty(0, 3))
    check(lambda x: function(x, 0), torch.empty(0, 3))


def test_half_to_float():
    x = torch.randn(3, 4).half()
    check(lambda x: F.softmax(x, 1, dtype=torch.float32), x)
    torch.testing.assert_close(aten._softmax(x.to("tpu"), 1, True).cpu(), x.float().softmax(1))
    check(lambda x: gradient(lambda x: F.log_softmax(x, 1, dtype=torch.float32), x), x)


def test_errors():
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.softmax(torch.arange(3, device="tpu"), 0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        F.softmax(torch.ones(3, device="tpu"), 1)


def test_safe_softmax():
    x = torch.tensor([[-INF, -INF], [0.0, 1.0], [NAN, -INF]])
    check(lambda x: aten._safe_softmax(x, 1), x)
    check(lambda x: aten._safe_softmax(x, 0), x)
    check(lambda x: aten._safe_softmax(x, 1, torch.float32), x.half())


def test_masked_softmax():
    x, flat = torch.randn(2, 3, 4, 4), torch.randn(3, 5)
    rows, keys = torch.rand(4, 4) < 0.4, torch.tensor([[True, False, False, True], [False, False, True, False]])
    same, flat_mask = torch.rand(2, 3, 4, 4) < 0.4, torch.rand(3, 5) < 0.5
    check(lambda x, mask: aten._masked_softmax(x, mask, 3, 0), x, rows)
    check(lambda x, mask: aten._masked_softmax(x, mask, None, 1), x, keys)
    check(lambda x, mask: aten._masked_softmax(x, mask, 3, 2), x, same)
    check(lambda x, mask: aten._masked_softmax(x, mask, 1, 0), x, rows)
    check(lambda x, mask: aten._masked_softmax(x, mask, 0), flat, flat_mask)
    check(lambda x, mask: gradient(lambda x: aten._masked_softmax(x, mask, 1), x), flat, torch.rand(3, 5) < 0.2)
    with pytest.raises(RuntimeError, match="mask shape should match input shape"):
        aten._masked_softmax(x.to("tpu"), rows.to("tpu"), 3, 2)
    with pytest.raises(RuntimeError, match="Mask should be a boolean tensor"):
        aten._masked_softmax(flat.to("tpu"), flat.to("tpu"), 1)
