"""Losses and their gradients, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import to_tpu

REDUCTIONS = ["none", "mean", "sum"]


def value_and_gradient(loss, x, *rest):
    x = x.detach().requires_grad_()
    y = loss(x, *rest)
    (y * torch.linspace(1, 2, y.numel(), device=y.device, dtype=y.dtype).reshape(y.shape)).sum().backward()
    return y.detach(), x.grad


def check(loss, x, *rest, rtol=1e-5, atol=1e-6):
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    expected = value_and_gradient(loss, x, *rest)
    actual = value_and_gradient(lambda *args: loss(*args), to_tpu(x), *map(to_tpu, rest))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-2 if narrow else rtol, atol=2e-2 if narrow else atol, equal_nan=True)


ELEMENTWISE = {
    "mse": lambda x, y, r: F.mse_loss(x, y, reduction=r),
    "l1": lambda x, y, r: F.l1_loss(x, y, reduction=r),
    "smooth_l1": lambda x, y, r: F.smooth_l1_loss(x, y, reduction=r),
    "smooth_l1_beta": lambda x, y, r: F.smooth_l1_loss(x, y, reduction=r, beta=0.3),
    "smooth_l1_zero": lambda x, y, r: F.smooth_l1_loss(x, y, reduction=r, beta=0.0),
    "huber": lambda x, y, r: F.huber_loss(x, y, reduction=r, delta=0.7),
    "soft_margin": lambda x, y, r: F.soft_margin_loss(x, y.sign(), reduction=r),
    "kl_div": lambda x, y, r: F.kl_div(x, y.abs(), reduction=r),
    "logits": lambda x, y, r: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=r),
    "poisson": lambda x, y, r: F.poisson_nll_loss(x, y.abs(), reduction=r),
    "hinge": lambda x, y, r: F.hinge_embedding_loss(x, y.sign(), reduction=r),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elementwise(name, reduction):
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    check(lambda a, b: ELEMENTWISE[name](a, b, reduction), x, y)
    check(lambda a, b: ELEMENTWISE[name](a, b, reduction), x.to(torch.bfloat16), y.to(torch.bfloat16))
    check(lambda a, b: ELEMENTWISE[name](a, b, reduction), torch.randn(5, 3).t(), y)
    check(lambda a, b: ELEMENTWISE[name](a, b, reduction), torch.randn(0, 3), torch.randn(0, 3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction):
    x, target, weight = torch.rand(3, 4), torch.rand(3, 4), torch.rand(4)
    check(lambda a, b: F.binary_cross_entropy(a, b, reduction=reduction), x, target)
    check(lambda a, b, w: F.binary_cross_entropy(a, b, w, reduction=reduction), x, target, weight)
    edge = torch.tensor([0.0, 1.0, 0.0, 1.0])
    check(lambda a, b: F.binary_cross_entropy(a, b, reduction=reduction), edge, torch.tensor([0.0, 1.0, 1.0, 0.0]))
    logits = torch.randn(3, 4) * 10
    for rest in ((None, None), (weight, None), (None, weight), (weight, weight)):
        check(
            lambda a, b, w, p: F.binary_cross_entropy_with_logits(a, b, w, reduction=reduction, pos_weight=p),
            logits,
            target,
            *rest,
        )


def test_binary_cross_entropy_errors():
    x = torch.tensor([0.5, 2.0], device="tpu")
    for args, text in (((x, x * 0), "all elements of input"), ((x * 0, x), "all elements of target")):
        with pytest.raises(RuntimeError, match=text + " should be between 0 and 1"):
            F.binary_cross_entropy(*args).item()
    with pytest.raises(RuntimeError, match="Found dtype Double but expected Float"):
        torch.ops.aten.binary_cross_entropy(x, x.double())
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        F.huber_loss(x, x, delta=0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nll(reduction, dtype):
    x = torch.randn(6, 4).log_softmax(1).to(dtype)
    target = torch.tensor([0, 3, 2, -100, 1, 1])
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0]).to(dtype)
    check(lambda a, t: F.nll_loss(a, t, reduction=reduction), x, target)
    check(lambda a, t, w: F.nll_loss(a, t, w, ignore_index=1, reduction=reduction), x, target.clamp(0), weight)
    check(lambda a, t: F.nll_loss(a, t, reduction=reduction), x[0], target[1])
    check(lambda a, t: F.nll_loss(a, t, reduction=reduction), x[:, 0].reshape(2, 3)[:0], target[:0])
    images = torch.randn(2, 4, 3, 5).log_softmax(1).to(dtype)
    labels = torch.randint(0, 4, (2, 3, 5))
    labels[0, 0, 0] = -100
    check(lambda a, t, w: F.nll_loss(a, t, w, reduction=reduction), images, labels, weight)
    last = images.to("tpu").to(memory_format=torch.channels_last)  # refused by the CPU's backward
    torch.testing.assert_close(F.nll_loss(last, labels.to("tpu")).cpu(), F.nll_loss(images, labels))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy(reduction):
    x, target = torch.randn(6, 4), torch.tensor([0, 3, 2, -100, 1, 1])
    check(lambda a, t: F.cross_entropy(a, t, reduction=reduction), x, target)
    check(lambda a, t: F.cross_entropy(a, t, reduction=reduction, label_smoothing=0.1), x, target)
    check(lambda a, t: F.cross_entropy(a, t, reduction=reduction), x, torch.randn(6, 4).softmax(1))


def test_ignored_infinity_and_all_ignored():
    x = torch.tensor([[float("-inf"), 0.0], [-1.0, -2.0]])
    check(F.nll_loss, x, torch.tensor([-100, 1]))
    check(F.nll_loss, x, torch.tensor([-100, -100]))


def test_nll_errors():
    x = torch.randn(2, 3, device="tpu")
    for bad in (3, -1):
        with pytest.raises(IndexError, match="out of bounds"):
            F.nll_loss(x, torch.tensor([0, bad], device="tpu")).item()
    with pytest.raises(RuntimeError, match="expected target dtype to be Long or Byte, but got Int"):
        F.nll_loss(x, torch.zeros(2, dtype=torch.int32, device="tpu"))
    with pytest.raises(RuntimeError, match="only batches of spatial targets"):
        torch.ops.aten.nll_loss2d_forward(
            torch.ones(1, 3, 2, 2, device="tpu"), torch.zeros(1, 2, dtype=torch.long, device="tpu"), None, 1, -100
        )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction):
    x, target, weight = torch.randn(5, 4), torch.tensor([0, 3, 2, 1, 1]), torch.rand(4)
    for p in (1, 2):
        check(lambda a, t, w: F.multi_margin_loss(a, t, p, 0.8, w, reduction=reduction), x, target, weight)
    check(lambda a, t: F.multi_margin_loss(a, t, reduction=reduction), x[0], target[1])
    labels = torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [-1, 0, 0, 0], [0, 1, 2, 3], [1, 1, -1, 2]])
    check(lambda a, t: F.multilabel_margin_loss(a, t, reduction=reduction), x, labels)
    check(lambda a, t: F.multilabel_margin_loss(a, t, reduction=reduction), x[0], labels[0])
    with pytest.raises(RuntimeError, match="only p == 1 and p == 2 supported"):
        torch.ops.aten.multi_margin_loss(x.to("tpu"), target.to("tpu"), 3)
