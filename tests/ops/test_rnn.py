"""nn.RNN, nn.LSTM, nn.GRU and their cells, against CPU torch."""

import copy

import pytest
import torch
from torch import nn

OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"batch_first": True}]


pytestmark = pytest.mark.usefixtures("no_fallback", "full_float32")


def on_both(module, *args):
    """The module's outputs and all gradients, on the TPU and on the CPU."""
    for device in ("tpu", "cpu"):
        here = copy.deepcopy(module).to(device)
        inputs = [x.detach().to(device).requires_grad_() for x in args]
        output = here(*inputs)
        tensors = [
            x
            for part in (output if isinstance(output, tuple) else (output,))
            for x in ([part] if torch.is_tensor(part) else part)
        ]
        sum((x**2).sum() for x in tensors).backward()
        gradients = [x.grad for x in (*inputs, *here.parameters())]
        yield [x.detach().cpu() for x in tensors + gradients]


def check(module, *args):
    actual, expected = on_both(module, *args)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers(kind, options):
    check(kind(5, 7, **options), torch.randn(6, 3, 5))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_unbatched(kind):
    check(kind(5, 7), torch.randn(6, 5))


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind, bias):
    check(kind(5, 7, bias=bias), torch.randn(3, 5))
    check(kind(5, 7, bias=bias), torch.randn(5))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences(kind):
    module, packed = kind(5, 7), nn.utils.rnn.pack_padded_sequence(torch.randn(6, 3, 5), [6, 4, 2])
    actual, expected = copy.deepcopy(module).to("tpu")(packed.to("tpu"))[0], module(packed)[0]
    torch.testing.assert_close(actual.data.cpu(), expected.data, rtol=1e-4, atol=1e-5)
    padded = nn.utils.rnn.pad_packed_sequence(actual)[0]
    torch.testing.assert_close(padded.cpu(), nn.utils.rnn.pad_packed_sequence(expected)[0], rtol=1e-4, atol=1e-5)


def test_projections_and_bfloat16():
    check(nn.LSTM(5, 7, proj_size=3), torch.randn(6, 3, 5))
    module, x = nn.GRU(5, 7).bfloat16(), torch.randn(6, 3, 5).bfloat16()
    actual, expected = copy.deepcopy(module).to("tpu")(x.to("tpu"))[0], module(x)[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-2, atol=2e-2)
