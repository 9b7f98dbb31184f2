"""Nested tensors against CPU torch, nothing run on the CPU: the jagged layout, and what the strided one has and refuses."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback", "full_float32")

W = torch.linspace(-1, 1, 24).reshape(6, 4)
PARTS = [torch.linspace(-1, 2, 8).reshape(2, 4), torch.linspace(2, -3, 12).reshape(3, 4)]


def nested(device, layout=torch.jagged, grad=False):
    return torch.nested.nested_tensor(PARTS, device=device, layout=layout, requires_grad=grad)


def check(actual, expected):
    for a, e in zip(*(x.unbind() if x.is_nested else [x] for x in (actual, expected)), strict=True):
        assert a.device.type == "tpu"
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-5, atol=1e-5)


JAGGED = {
    "add": lambda x: x + x.sin(),
    "linear": lambda x: F.linear(x, W.to(x.device)),
    "matmul": lambda x: x @ W.t().to(x.device),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "softmax": lambda x: x.softmax(-1),
    "padded": lambda x: x.to_padded_tensor(-1.5),
    "sum of the ragged dim": lambda x: x.sum(1),
    "mean of the ragged dim": lambda x: x.mean(1),
    "greatest of the ragged dim": lambda x: x.amax(1),
    "softmax of the ragged dim": lambda x: x.softmax(1),
    "norm of the ragged dim": lambda x: F.layer_norm(x, (x.shape[1], 4)),
    "bmm": lambda x: x @ torch.ones(2, 4, 3, device=x.device),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "heads": lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2).transpose(1, 2).flatten(-2),
    "where": lambda x: torch.where(x > 0, x, -x),
    "select": lambda x: x[1],
}


@pytest.mark.parametrize("call", JAGGED.values(), ids=JAGGED)
def test_jagged(call):
    check(call(nested("tpu")), call(nested("cpu")))


def test_jagged_gradients():
    def gradient(device):
        x = nested(device, grad=True)
        F.linear(x, W.to(device)).relu().to_padded_tensor(0.5).square().sum().backward()
        return x.grad

    check(gradient("tpu"), gradient("cpu"))


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0, 0], [5, 1, 1]])
def test_padding_and_back(lengths):
    aten = torch.ops.aten
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.arange(float(2 * sum(lengths))).reshape(-1, 2)
    for length in (5, 2):
        arguments = ([length], 7.0)
        dense = aten._jagged_to_padded_dense_forward(values, [offsets], *arguments)
        here = aten._jagged_to_padded_dense_forward(values.to("tpu"), [offsets.to("tpu")], *arguments)
        check(here, dense)
    dense = torch.arange(30.0).reshape(3, 5, 2)
    for total in (None, sum(lengths)):
        rows = aten._padded_dense_to_jagged_forward(dense, [offsets], total)
        check(aten._padded_dense_to_jagged_forward(dense.to("tpu"), [offsets.to("tpu")], total), rows)


@pytest.mark.parametrize("training", [False, True])
def test_encoder_with_padding(training):
    """torch's fast path would make nested tensors of the strided layout."""
    x = torch.zeros(2, 3, 4)
    x[0, :2], x[1] = PARTS
    padding = torch.tensor([[False, False, True], [False, False, False]])

    def encode(device):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).train(training).to(device)
        y = encoder(x.to(device), src_key_padding_mask=padding.to(device))
        return torch.cat([y[0, :2], y[1]])

    check(encode("tpu"), encode("cpu"))


def test_strided():
    x = nested("tpu", torch.strided, grad=True)
    assert x.device.type == "tpu" and "nested_tensor" in repr(x)
    check(torch.nested.nested_tensor(PARTS).to("tpu"), torch.nested.nested_tensor(PARTS))
    check(x[1], PARTS[1])
    with pytest.raises(NotImplementedError, match=r"aten::sum.dim_IntList is not implemented .* layout=torch.jagged"):
        x.detach().sum(-1, keepdim=True)


STRIDED = {
    "arithmetic": lambda x: (x + x * 2).neg() / 4,
    "unary": lambda x: F.gelu(x.sin().relu()),
    "linear": lambda x: F.linear(x, W.to(x.device)),
    "product": lambda x: x @ x.transpose(1, 2),
    "bmm": lambda x: x.bmm(x.transpose(1, 2)),
    "transposed": lambda x: x.transpose(1, 2).contiguous(),
    "softmax": lambda x: x.softmax(-1),
    "view": lambda x: x.view(2, -1, 2, 2).transpose(1, 2).contiguous(),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "padded": lambda x: x.to_padded_tensor(-1.5),
}


@pytest.mark.parametrize("call", STRIDED.values(), ids=STRIDED)
def test_strided_operators(call):
    check(call(nested("tpu", torch.strided)), call(nested("cpu", torch.strided)))


def test_strided_gradient_of_padding():
    def gradient(device):
        x = nested(device, torch.strided, grad=True)
        (x @ x.transpose(1, 2)).to_padded_tensor(0.5).square().sum().backward()
        return x.grad

    check(gradient("tpu"), gradient("cpu"))


def heads(x):
    return x.unflatten(-1, [2, 2]).transpose(1, 2)


def test_attention_over_jagged_tensors():
    """torch's plain formula, over nested tensors of the strided layout."""

    def attend(device):
        x = nested(device, grad=True)
        y = F.scaled_dot_product_attention(heads(x), heads(x * 2), heads(x - 1))
        y.transpose(1, 2).flatten(-2).to_padded_tensor(0).square().sum().backward()
        return y.transpose(1, 2), x.grad

    for actual, expected in zip(attend("tpu"), attend("cpu"), strict=True):
        check(actual, expected)


def test_attention_over_jagged_tensors_has_no_causal_mask():
    for device in ("cpu", "tpu"):
        x = heads(nested(device))
        with pytest.raises(RuntimeError, match="No viable backend for scaled_dot_product_attention was found"):
            F.scaled_dot_product_attention(x, x, x, is_causal=True)
