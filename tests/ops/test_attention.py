"""Scaled dot product attention: the fused rows forward and backward, against CPU torch in full float32."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import weights_like

aten = torch.ops.aten
sdpa = F.scaled_dot_product_attention
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-12}


pytestmark = pytest.mark.usefixtures("full_float32")


def check(q, k, v, mask=None, **kwargs):
    """The result and the gradients of query, key, value and a float mask."""
    learned = mask is not None and mask.is_floating_point()
    outcomes = []
    for device in ("tpu", "cpu"):
        leaves = [x.detach().to(device).requires_grad_() for x in ((q, k, v, mask) if learned else (q, k, v))]
        bias = leaves[3] if learned else None if mask is None else mask.to(device)
        y = sdpa(*leaves[:3], attn_mask=bias, **kwargs)
        grads = torch.autograd.grad(y, leaves, weights_like(y))
        outcomes.append([x.detach().cpu() for x in (y, *grads)])
    t = TOLERANCE[q.dtype]
    for actual, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=t, atol=t)


def rand(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


Q = (2, 4, 5, 8)


@pytest.mark.parametrize(
    "k, v, kwargs",
    [
        (Q, Q, {}),
        (Q, Q, {"is_causal": True}),
        ((2, 4, 7, 8), (2, 4, 7, 3), {"is_causal": True}),
        ((2, 4, 3, 8), (2, 4, 3, 3), {"is_causal": True}),
        ((2, 2, 5, 8), (2, 2, 5, 6), {"enable_gqa": True}),
        ((2, 1, 5, 8), (2, 1, 5, 8), {"enable_gqa": True, "is_causal": True}),
        ((2, 2, 5, 8), (2, 1, 5, 8), {"enable_gqa": True}),
        ((1, 4, 5, 8), (1, 4, 5, 8), {}),
        (Q, Q, {"scale": -0.3}),
        (Q, Q, {"scale": 0.0}),
        ((2, 4, 0, 8), (2, 4, 0, 8), {}),
    ],
)
def test_shapes(k, v, kwargs):
    check(rand(*Q), rand(*k), rand(*v), **kwargs)


@pytest.mark.parametrize(
    "q, k, kwargs",
    [
        ((1, 2, 1030, 8), (1, 2, 1030, 8), {}),
        ((2, 2, 520, 4), (1, 1, 1100, 4), {"enable_gqa": True}),
        ((1, 1, 2050, 4), (1, 1, 600, 4), {"scale": 0.7}),
    ],
)
def test_long_causal(q, k, kwargs):
    check(rand(*q), rand(*k), rand(*k[:3], 5), is_causal=True, **kwargs)


@pytest.mark.parametrize(
    "q, k, v",
    [
        ((3, 5, 4), (3, 7, 4), (3, 7, 6)),
        ((5, 4), (7, 4), (7, 6)),
        ((2, 3, 5, 4), (3, 7, 4), (3, 7, 6)),
        ((2, 1, 5, 4), (2, 3, 7, 4), (1, 3, 7, 6)),
        ((2, 3, 5, 4), (2, 1, 7, 4), (2, 3, 7, 2)),
        ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), (2, 2, 3, 7, 6)),
        ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 6)),
    ],
)
def test_lengths_and_head_sizes_that_differ(q, k, v):
    check(rand(*q), rand(*k), rand(*v))
    check(rand(*q), rand(*k), rand(*v), is_causal=True)
    check(rand(*q), rand(*k), rand(*v), rand(5, k[-2]))
    check(rand(*q), rand(*k), rand(*v), rand(5, k[-2]) > 0)


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (2, 1, 1, 5), (4, 5, 5), (1, 5)])
def test_masks(shape):
    check(rand(*Q), rand(*Q), rand(*Q), rand(*shape))
    check(rand(*Q), rand(*Q), rand(*Q), rand(*shape) > -0.5)


def test_masked_rows_give_zeros():  # pytorch#103963, pytorch#156707
    mask = torch.tril(torch.ones(5, 5), -1)
    check(rand(*Q), rand(*Q), rand(*Q), mask.bool())
    check(rand(*Q), rand(*Q), rand(*Q), mask.log())
    y = sdpa(*(rand(*Q).to("tpu") for _ in range(3)), attn_mask=mask.bool().to("tpu"))
    assert y[:, :, 0].abs().sum().item() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    q, k, v = (rand(*Q, dtype=dtype) for _ in range(3))
    check(q, k, v)
    check(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
    check(q, k, v, rand(2, 1, 5, 5, dtype=dtype))


def test_large_scores():
    q, k, v = rand(*Q) * 50, rand(*Q) * 50, rand(*Q)
    expected, actual = sdpa(q, k, v), sdpa(q.to("tpu"), k.to("tpu"), v.to("tpu")).cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    leaf = q.to("tpu").requires_grad_()
    sdpa(leaf, k.to("tpu"), v.to("tpu")).sum().backward()
    assert leaf.grad.abs().max().item() < 1e-2  # rows of softmax add up to 1, so that this is nearly 0


@pytest.mark.parametrize("kind", ["transposed", "fused qkv", "sliced"])
def test_layouts(kind):
    x = rand(2, 6, 3, 4, 8)
    if kind == "transposed":
        q = k = v = x[:, :, 0].contiguous().transpose(1, 2)
    elif kind == "fused qkv":
        q, k, v = x.permute(2, 0, 3, 1, 4)
    else:
        q, k, v = x[:, 1:5, :, ::2, 1:].permute(2, 0, 3, 1, 4)
    check(q, k, v)
    # In memory the result follows the query, so that the heads can be joined without a copy.
    leaf = q.detach().to("tpu")
    y = sdpa(leaf, k.to("tpu"), v.to("tpu"))
    assert y.transpose(1, 2).is_contiguous()


def test_dropout_is_the_same_in_the_backward():
    torch.manual_seed(3)
    q, k = rand(1, 2, 6, 8), rand(1, 2, 6, 8)
    v = torch.eye(6).expand(1, 2, 6, 6).contiguous()  # so that the result shows the weights
    leaves = [x.to("tpu").requires_grad_() for x in (q, k, v)]
    y = sdpa(*leaves, dropout_p=0.5)
    gradient = rand(*y.shape)
    grads = torch.autograd.grad(y, leaves, gradient.to("tpu"))
    keep = y.detach().cpu() != 0
    copies = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = ((copies[0] @ copies[1].mT / math.sqrt(8)).softmax(-1) * keep * 2) @ copies[2]
    torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for actual, wanted in zip(grads, torch.autograd.grad(expected, copies, gradient), strict=True):
        torch.testing.assert_close(actual.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_dropout_statistics_and_seed():
    q, v = torch.zeros(2, 4, 64, 8, device="tpu"), torch.eye(64, device="tpu").expand(2, 4, 64, 64).contiguous()
    torch.tpu.manual_seed(7)
    first, second = (sdpa(q, q, v, dropout_p=0.25) for _ in range(2))
    torch.tpu.manual_seed(7)
    again = sdpa(q, q, v, dropout_p=0.25)
    assert torch.equal(first.cpu(), again.cpu()) and not torch.equal(first.cpu(), second.cpu())
    assert abs((first != 0).float().mean().item() - 0.75) < 0.02
    assert abs(first.sum(-1).mean().item() - 1) < 0.05
    assert sdpa(q, q, v, dropout_p=1.0).abs().sum().item() == 0


def test_the_fused_row_is_chosen():
    x = torch.randn(1, 2, 3, 4, device="tpu")
    assert torch._fused_sdp_choice(x, x, x) == torch.nn.attention.SDPBackend.OVERRIDEABLE.value
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        math_result = sdpa(x, x, x)
    torch.testing.assert_close(sdpa(x, x, x).cpu(), math_result.cpu(), rtol=1e-5, atol=1e-5)


def test_logsumexp():
    q, k, v = (rand(*Q) for _ in range(3))
    lse = aten._scaled_dot_product_fused_attention_overrideable(q.to("tpu"), k.to("tpu"), v.to("tpu"))[1]
    torch.testing.assert_close(lse.cpu(), (q @ k.mT / math.sqrt(8)).logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_three_dimensions_take_torchs_own_formula():
    q = rand(4, 5, 8)
    torch.testing.assert_close(sdpa(q.to("tpu"), q.to("tpu"), q.to("tpu")).cpu(), sdpa(q, q, q), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "k, v, kwargs",
    [
        ((2, 2, 5, 8), (2, 2, 5, 8), {}),  # would fit with enable_gqa
        (Q, (2, 2, 5, 8), {}),
        ((2, 3, 5, 8), (2, 3, 5, 8), {}),
        ((2, 3, 5, 8), (2, 3, 5, 8), {"enable_gqa": True}),
        ((2, 8, 5, 8), (2, 8, 5, 8), {"enable_gqa": True}),
        ((3, 4, 5, 8), (3, 4, 5, 8), {}),
        ((2, 4, 5, 16), Q, {}),
        (Q, Q, {"dropout_p": 2.0}),
    ],
)
def test_sizes_that_do_not_fit(k, v, kwargs):
    with pytest.raises(RuntimeError) as expected:
        sdpa(rand(*Q), rand(*k), rand(*v), **kwargs)
    with pytest.raises(RuntimeError) as caught:
        sdpa(rand(*Q).to("tpu"), rand(*k).to("tpu"), rand(*v).to("tpu"), **kwargs)
    assert str(caught.value) == str(expected.value)


def test_complex_numbers_are_refused():
    x = torch.ones(Q, dtype=torch.complex64, device="tpu")
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        sdpa(x, x, x)
