"""Convolutions of every kind with their gradients, against CPU torch in full float32."""

import pytest
import torch
import torch.nn.functional as F
from helpers import weights_like
from torch import nn

pytestmark = pytest.mark.usefixtures("full_float32")

TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-12}


def make(dtype, *shape):
    return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)


def check(function, *args):
    """The result and all gradients against CPU torch; the strides too."""
    outcomes, strides = [], []
    for device in ("tpu", "cpu"):
        leaves = [x.detach().to(device).requires_grad_() for x in args]
        y = function(*leaves)
        grads = torch.autograd.grad(y, leaves, weights_like(y))
        outcomes.append([x.detach().cpu() for x in (y, *grads)])
        strides.append(y.stride())
    assert strides[0] == strides[1]
    for actual, expected in zip(*outcomes, strict=True):
        scale = expected.abs().max().item() if expected.numel() else 1
        t = TOLERANCE[expected.dtype]
        torch.testing.assert_close(actual, expected, rtol=t, atol=t * max(scale, 1))


PLAIN = [  # picture, filter, arguments
    ((2, 4, 9), (6, 4, 3), {"padding": 1}),
    ((2, 4, 9), (6, 2, 3), {"groups": 2, "stride": 2}),
    ((2, 4, 9), (6, 4, 3), {"stride": 3}),
    ((2, 4, 7, 6), (6, 4, 3, 2), {"stride": 2, "padding": (1, 0), "dilation": (1, 2)}),
    ((2, 4, 7, 6), (8, 2, 3, 3), {"groups": 2, "padding": 1}),
    ((2, 4, 7, 6), (6, 4, 3, 3), {"padding": "same"}),
    ((4, 7, 6), (6, 4, 3, 3), {"padding": 1}),
    ((2, 4, 8, 8), (6, 4, 2, 2), {"stride": 3}),  # a tail that no window reaches
    ((2, 4, 9, 10), (6, 2, 3, 2), {"stride": 4, "padding": 1, "groups": 2}),  # windows side by side
    ((2, 4, 7, 6), (6, 4, 1, 1), {"stride": 2}),
    ((2, 4, 5, 5), (6, 4, 1, 1), {"padding": 1, "stride": 3}),
    ((3, 4, 7, 6), (6, 2, 1, 1), {"groups": 2}),
    ((2, 6, 3, 2), (40, 6, 1, 1), {}),  # more channels than places
    ((2, 40, 3, 2), (6, 40, 1, 1), {}),
    ((2, 4, 2, 2), (6, 4, 3, 3), {"padding": 1}),  # smaller than the filter's reach
    ((2, 4, 2, 3), (6, 2, 3, 3), {"padding": 2, "groups": 2}),
    ((2, 4, 7, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1}),  # depthwise
    ((2, 4, 7, 6), (8, 1, 3, 3), {"groups": 4, "padding": 2, "dilation": 2, "stride": 2}),
    ((1, 2, 12, 12), (3, 2, 7, 7), {"padding": 3}),
    ((2, 4, 5, 4, 4), (6, 2, 3, 2, 3), {"padding": 1, "groups": 2, "stride": 2}),
    ((0, 4, 7, 6), (6, 4, 3, 3), {"padding": 1}),
]


@pytest.mark.parametrize("x, w, kwargs", PLAIN)
def test_plain(x, w, kwargs):
    f = [F.conv1d, F.conv2d, F.conv3d][len(w) - 3]
    check(lambda x, w, b: f(x, w, b, **kwargs), torch.randn(x), torch.randn(w), torch.randn(w[0]))


TRANSPOSED = [
    ((2, 4, 9), (4, 6, 3), {"padding": 1, "stride": 2, "output_padding": 1}),
    ((2, 4, 5, 6), (4, 3, 3, 3), {"groups": 2, "stride": 2, "padding": 1, "output_padding": (1, 0)}),
    ((2, 4, 5, 6), (4, 6, 2, 2), {"stride": 2}),
    ((2, 4, 5, 6), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    ((2, 4, 5, 6), (4, 6, 3, 3), {"dilation": 2, "stride": 3, "output_padding": (2, 1)}),
    ((2, 2, 4, 4), (2, 2, 4, 5), {"stride": (3, 2), "output_padding": (2, 3), "groups": 2, "dilation": 4}),
    ((2, 4, 3, 3, 3), (4, 6, 3, 2, 3), {"stride": 2}),
    ((0, 4, 5, 6), (4, 6, 3, 3), {}),
]


@pytest.mark.parametrize("x, w, kwargs", TRANSPOSED)
def test_transposed(x, w, kwargs):
    f = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][len(w) - 3]
    channels = w[1] * kwargs.get("groups", 1)
    check(lambda x, w, b: f(x, w, b, **kwargs), torch.randn(x), torch.randn(w), torch.randn(channels))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype):
    x = make(dtype, 2, 4, 5, 5)
    check(lambda x, w, b: F.conv2d(x, w, b, padding=1), x, make(dtype, 6, 4, 3, 3), make(dtype, 6))
    check(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, make(dtype, 4, 6, 3, 3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integers(dtype):
    x, w = torch.randint(0, 9, (2, 4, 5, 5)).to(dtype), torch.randint(0, 9, (6, 4, 3, 3)).to(dtype)
    assert torch.equal(F.conv2d(x.to("tpu"), w.to("tpu"), padding=1).cpu(), F.conv2d(x, w, padding=1))


@pytest.mark.parametrize("picture, weight", [(True, False), (False, True), (True, True)])
def test_channels_last(picture, weight):  # pytorch#175189
    x, w = torch.randn(2, 4, 6, 5), torch.randn(6, 4, 3, 3)
    x = x.to(memory_format=torch.channels_last) if picture else x
    w = w.to(memory_format=torch.channels_last) if weight else w
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w)


def test_frozen_arguments_get_no_gradient():
    conv = nn.Conv2d(3, 4, 3).to("tpu").requires_grad_(False)
    x = torch.randn(1, 3, 6, 6, device="tpu", requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None and conv.weight.grad is None and conv.bias.grad is None


def test_second_order():
    x, w = torch.randn(1, 2, 5, 5, dtype=torch.float64), torch.randn(3, 2, 3, 3, dtype=torch.float64)
    second = []
    for device in ("tpu", "cpu"):
        xs, ws = (t.to(device).requires_grad_() for t in (x, w))
        (g,) = torch.autograd.grad((F.conv2d(xs, ws) ** 2).sum(), xs, create_graph=True)
        second.append([t.cpu() for t in torch.autograd.grad((g**2).sum(), (xs, ws))])
    for a, e in zip(*second, strict=True):
        torch.testing.assert_close(a, e)


ones = torch.ones


@pytest.mark.parametrize(
    "call",
    [
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 3, 3, 3))),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(5, 2, 3, 3)), groups=2),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), t(ones(5))),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 7, 7))),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), stride=0),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), padding=-1),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), dilation=0),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), groups=3),
        lambda t: F.conv2d(t(ones(2, 4, 5, 5)), t(ones(6, 4, 3, 3)), groups=0),
        lambda t: F.conv2d(t(ones(2, 4, 0, 5)), t(ones(6, 4, 3, 3)), padding=2),
        lambda t: F.conv_transpose2d(t(ones(2, 4, 5, 5)), t(ones(3, 4, 3, 3))),
        lambda t: F.conv_transpose2d(t(ones(2, 4, 5, 5)), t(ones(4, 6, 3, 3)), t(ones(3))),
        lambda t: F.conv_transpose2d(t(ones(2, 4, 5, 5)), t(ones(4, 6, 3, 3)), output_padding=-1),
        lambda t: F.conv_transpose2d(t(ones(2, 4, 5, 5)), t(ones(4, 6, 3, 3)), output_padding=1),
    ],
)
def test_errors_are_torchs(call):
    with pytest.raises(RuntimeError) as expected:
        call(lambda x: x)
    with pytest.raises(RuntimeError) as actual:
        call(lambda x: x.to("tpu"))
    assert str(expected.value).splitlines()[0] in str(actual.value)
