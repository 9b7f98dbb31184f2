"""Connectionist temporal classification, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F

TIMES, SAMPLES, CLASSES, TARGETS = 12, 4, 6, 5
SCORES = torch.randn(TIMES, SAMPLES, CLASSES)
LABELS = torch.randint(1, CLASSES, (SAMPLES, TARGETS))
IN, OUT = [12, 10, 7, 12], [5, 3, 2, 0]


pytestmark = pytest.mark.usefixtures("no_fallback")


def check(scores, labels, in_lengths, out_lengths, tolerance=1e-4, **options):
    """Losses and gradients."""
    results = []
    for device in ("tpu", "cpu"):
        x = scores.detach().to(device).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(-1), labels.to(device), in_lengths, out_lengths, **options)
        loss.backward(torch.arange(1, loss.numel() + 1, device=device, dtype=loss.dtype).reshape(loss.shape))
        results.append([loss.detach().cpu(), x.grad.cpu()])
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reductions(reduction):
    check(SCORES, LABELS, IN, OUT, reduction=reduction)


def test_forms_of_arguments():
    check(SCORES, torch.cat([row[:n] for row, n in zip(LABELS, OUT, strict=True)]), IN, OUT, reduction="none")
    check(SCORES, LABELS, torch.tensor(IN), torch.tensor(OUT), reduction="none")
    check(SCORES, LABELS.int(), IN, OUT, reduction="none")
    check(SCORES, (LABELS - 1).clamp_min(0), IN, OUT, blank=5, reduction="none")
    check(SCORES.double(), LABELS, IN, OUT, reduction="none")
    check(SCORES[:, 0], LABELS[0], torch.tensor(12), torch.tensor(5))


def test_repeated_labels_and_impossible_targets():
    check(SCORES, torch.ones(SAMPLES, TARGETS, dtype=torch.long), [12] * 4, [5, 3, 2, 1], reduction="none")
    check(SCORES, LABELS, [12, 3, 7, 12], [5, 5, 2, 0], reduction="none", zero_infinity=True)
    loss = F.ctc_loss(SCORES.log_softmax(2).to("tpu"), LABELS.to("tpu"), [12, 3, 7, 12], [5, 5, 2, 0], reduction="none")
    assert loss.isinf().tolist() == [False, True, False, False]


def test_long_sequences():
    labels = torch.randint(1, 40, (2, 60))
    check(torch.randn(200, 2, 40), labels, [200, 180], [60, 50], 1e-3, reduction="none")


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_errors(device):
    x, labels = SCORES.log_softmax(2).to(device), LABELS.to(device)
    with pytest.raises(RuntimeError, match="blank must be in label range"):
        F.ctc_loss(x, labels, IN, OUT, blank=6)
    with pytest.raises(RuntimeError, match="input_lengths must be of size batch_size"):
        F.ctc_loss(x, labels, IN[:3], OUT)
    with pytest.raises(RuntimeError, match="target_lengths must be of size batch_size"):
        F.ctc_loss(x, labels, IN, OUT[:3])
    with pytest.raises(RuntimeError, match="Expected input_lengths to have value at most 12, but got value 13"):
        F.ctc_loss(x, labels, [13, 10, 7, 12], OUT)
