"""torch.segment_reduce, against CPU torch."""

import pytest
import torch

DATA = torch.randn(10, 3)


pytestmark = pytest.mark.usefixtures("no_fallback")


def check(data, reduce, **options):
    """Values and gradients."""
    results = []
    for device in ("tpu", "cpu"):
        here = {key: value.to(device) if torch.is_tensor(value) else value for key, value in options.items()}
        x = data.detach().to(device).requires_grad_()
        y = torch.segment_reduce(x, reduce, **here)
        y.backward(torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(device))
        results.append([y.detach().cpu(), x.grad.cpu()])
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_reductions(reduce):
    lengths = torch.tensor([2, 0, 5, 3])
    check(DATA, reduce, lengths=lengths)
    check(DATA, reduce, lengths=lengths, initial=1.0)
    check(DATA, reduce, offsets=torch.tensor([0, 2, 2, 7, 10]))
    check(DATA.round(), reduce, lengths=torch.tensor([4, 6]))  # zeros and equal extremes
    check(DATA[:, 0], reduce, lengths=torch.tensor([4, 6]))
    check(torch.randn(2, 6, 3), reduce, lengths=torch.tensor([[4, 2], [1, 5]]), axis=1)
    check(DATA, reduce, lengths=torch.tensor([2, 3]), unsafe=True)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_errors(device):
    data = DATA.to(device)
    with pytest.raises(RuntimeError, match="lengths contains negative value!"):
        torch.segment_reduce(data, "sum", lengths=torch.tensor([11, -1], device=device)).cpu()
    with pytest.raises(RuntimeError, match="Expected all rows of lengths along axis to sum to"):
        torch.segment_reduce(data, "sum", lengths=torch.tensor([4, 5], device=device)).cpu()
    with pytest.raises(RuntimeError, match="Either lengths or offsets must be defined"):
        torch.segment_reduce(data, "sum")
