"""batch_norm, layer_norm, group_norm, rms_norm and weight_norm with their gradients, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import flat, to_tpu, weights_like
from torch import nn

aten = torch.ops.aten


def outcome(function, args):
    """Results and gradients of every argument that wants one."""
    results = function(*args)
    results = flat(results)
    wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = []
    if wanted:
        y = results[0]
        weight = weights_like(y)
        grads = torch.autograd.grad((y * weight).sum(), wanted)
    return [*(r.detach() for r in results), *grads]


def check(function, *args):
    """Shapes and dtypes of CPU torch, and the values that it computes in float64: its own bfloat16 sums are poor."""

    def widen(x):
        return (
            x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        )

    narrow = any(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in args)
    actual = outcome(function, [to_tpu(x) for x in args])
    exact = outcome(function, [widen(x) for x in args])
    for a, e, like in zip(actual, exact, outcome(function, args), strict=True):
        if not narrow:  # statistics of narrow inputs are float32 here, as on CUDA
            assert a.dtype == like.dtype
        scale = float(e.abs().max()) if e.numel() else 1.0
        tolerance = {"rtol": 2e-2, "atol": 1e-2 * scale} if narrow else {"rtol": 1e-5, "atol": 4e-6 * max(scale, 1.0)}
        torch.testing.assert_close(a.cpu().to(e.dtype), e, equal_nan=True, **tolerance)
    return actual[0]


def leaf(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(shape) * scale + 0.3).to(dtype).requires_grad_()


# --- batch_norm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2), (2, 3, 8, 16)])
def test_batch_norm(training, shape):
    def run(x, w, b, mean, var):
        y = F.batch_norm(x, mean, var, w, b, training, 0.1)
        return y, mean, var

    check(run, leaf(*shape), leaf(3), leaf(3), torch.randn(3), torch.rand(3) + 0.5)


def test_batch_norm_mixed_dtypes():
    def run(x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, True, 0.3), mean, var

    x = leaf(4, 3, 5, dtype=torch.bfloat16)
    check(run, x, leaf(3), leaf(3), torch.zeros(3), torch.ones(3))
    check(
        run,
        x,
        leaf(3, dtype=torch.bfloat16),
        leaf(3, dtype=torch.bfloat16),
        torch.zeros(3).bfloat16(),
        torch.ones(3).bfloat16(),
    )
    save = aten.native_batch_norm(x.detach().to("tpu"), None, None, None, None, True, 0.1, 1e-5)[1]
    assert save.dtype == torch.float32


def test_batch_norm_without_parameters():
    check(lambda x: F.batch_norm(x, None, None, training=True), leaf(4, 3, 5))
    check(lambda x, w: F.batch_norm(x, None, None, weight=w, training=True), leaf(4, 3, 5), leaf(3))
    check(lambda x: F.instance_norm(x), leaf(2, 3, 4, 4))


def test_batch_norm_of_a_constant_channel():
    x = torch.ones(4, 3, 2)
    check(lambda x, b: aten.native_batch_norm(x, None, b, None, None, True, 0.1, 0.0), x, torch.randn(3))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 2, 3, 4), (4, 3, 5, 6)])
def test_batch_norm_channels_last(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).to(memory_format=last).requires_grad_()
    y = check(lambda x, w: F.batch_norm(x, None, None, weight=w, training=True), x, leaf(3))
    assert y.is_contiguous(memory_format=last)


def test_batch_norm_overloads():
    args = [torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.zeros(3), torch.ones(3)]
    check(lambda x, *rest: aten.native_batch_norm(x, *rest, False, 0.1, 1e-5), *args)  # saves empty statistics
    check(lambda x, *rest: (*aten._native_batch_norm_legit(x, *rest, True, 0.1, 1e-5), *rest[2:]), *args)
    check(lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5), *args[:3])
    check(lambda x, *rest: (*aten._native_batch_norm_legit_functional(x, *rest, True, 0.1, 1e-5), *rest[2:]), *args)
    check(lambda x, *rest: aten._native_batch_norm_legit_no_training(x, *rest, 0.1, 1e-5)[0], *args)
    check(lambda x, *rest: (*aten._batch_norm_with_update(x, *rest, 0.1, 1e-5), *rest[2:]), *args)
    check(lambda x, *rest: (*aten._batch_norm_with_update_functional(x, *rest, 0.1, 1e-5), *rest[2:]), *args)
    check(lambda x, *rest: aten._batch_norm_no_update(x, *rest, 0.1, 1e-5), *args)


def test_batch_norm_backward_overloads():
    args = [torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5]
    saved = [torch.randn(3), torch.rand(3) + 0.5]
    check(lambda *a: aten.native_batch_norm_backward(*a, True, 1e-5, [True, True, True]), *args, *saved)
    check(lambda *a: aten.native_batch_norm_backward(*a, False, 1e-5, [True, False, True])[::2], *args, *saved)
    check(
        lambda g, x, m, s: aten.native_batch_norm_backward(g, x, None, None, None, m, s, True, 1e-5, [True] * 3),
        *args[:2],
        *saved,
    )
    reserve = torch.empty(0, dtype=torch.uint8)
    check(lambda *a: aten.batch_norm_backward(*a[:-1], True, 1e-5, [True] * 3, a[-1]), *args, *saved, reserve)


def test_momentum_none_compiles_once():
    layer = nn.BatchNorm1d(3, momentum=None).to("tpu")
    reference = nn.BatchNorm1d(3, momentum=None)
    for _ in range(3):
        x = torch.randn(8, 3)
        torch.testing.assert_close(layer(x.to("tpu")).detach().cpu(), reference(x).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_var.cpu(), reference.running_var)


def test_batch_norm_errors():
    x = torch.randn(4, 3, device="tpu")
    with pytest.raises(RuntimeError, match="running_mean should contain 3 elements not 2"):
        F.batch_norm(x, torch.zeros(2, device="tpu"), torch.zeros(2, device="tpu"))
    with pytest.raises(RuntimeError, match="must be defined in evaluation mode"):
        aten.native_batch_norm(x, None, None, None, None, False, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="must have at least one element"):
        aten.native_batch_norm(torch.empty(0, 3, device="tpu"), None, None, None, None, True, 0.1, 1e-5)


# --- layer_norm, rms_norm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 70, 80)])  # the latter is long enough for sums by matrix products
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_layer_norm(shape, dtype):
    last = shape[-1]
    check(
        lambda x, w, b: F.layer_norm(x, [last], w, b),
        leaf(*shape, dtype=dtype),
        leaf(last, dtype=dtype),
        leaf(last, dtype=dtype),
    )


def test_layer_norm_over_two_dimensions():
    x, w = leaf(3, 4, 5), leaf(4, 5)
    check(lambda x, w, b: F.layer_norm(x, [4, 5], w, b), x, w, leaf(4, 5))
    check(lambda x, w: F.layer_norm(x, [4, 5], w), leaf(3, 70, 4, 5), w)
    check(lambda x: F.layer_norm(x, [4, 5]), x)


def test_layer_norm_mixed_and_views():
    check(lambda x, w, b: F.layer_norm(x, [5], w, b), leaf(3, 5, dtype=torch.bfloat16), leaf(5), leaf(5))
    check(lambda x, w: F.layer_norm(x.transpose(0, 1), [3], w), leaf(3, 4), leaf(3))
    check(lambda x: F.layer_norm(x[:, 1:], [4]), leaf(3, 5))
    check(lambda x, w: F.layer_norm(x, [4], w), torch.empty(0, 4).requires_grad_(), leaf(4))
    check(lambda x: F.layer_norm(x, [64]), torch.randn(2, 64) + 30)


def test_layer_norm_statistics():
    def run(x, w, b):
        return aten.native_layer_norm(x, [5], w, b, 1e-5)

    check(run, torch.randn(3, 4, 5), torch.randn(5), torch.randn(5))
    mean = run(torch.randn(3, 5).bfloat16().to("tpu"), None, None)[1]
    assert mean.dtype == torch.float32 and mean.shape == (3, 1)


def test_layer_norm_backward_masks():
    args = [torch.randn(3, 5), torch.randn(3, 5), [5], torch.randn(3, 1), torch.rand(3, 1), torch.randn(5), torch.randn(5)]
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        wanted = [i for i in range(3) if mask[i]]
        check(lambda *a: [aten.native_layer_norm_backward(*a, mask)[i] for i in wanted], *args)


def test_layer_norm_errors():
    x = torch.randn(3, 5, device="tpu")
    with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[4\], expected input with shape \[\*, 4\]"):
        F.layer_norm(x, [4])
    with pytest.raises(RuntimeError, match="Expected weight to be of same shape as normalized_shape"):
        F.layer_norm(x, [5], torch.ones(4, device="tpu"))
    with pytest.raises(RuntimeError, match="at least 1-dimensional"):
        F.layer_norm(x, [])
    with pytest.raises(RuntimeError, match="mixed dtype"):
        F.layer_norm(x, [5], torch.ones(5, device="tpu").double())
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.layer_norm(torch.arange(3, device="tpu"), [3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rms_norm(dtype):
    check(lambda x, w: F.rms_norm(x, [5], w, 1e-6), leaf(3, 4, 5, dtype=dtype), leaf(5, dtype=dtype))
    check(lambda x, w: F.rms_norm(x, [4, 20], w), leaf(70, 4, 20, dtype=dtype), leaf(4, 20, dtype=dtype))
    check(lambda x: F.rms_norm(x, [5]), leaf(3, 4, 5, dtype=dtype))


def test_rms_norm_is_one_program():
    x, w = torch.randn(2, 8, device="tpu"), torch.randn(8, device="tpu")
    y, rstd = aten._fused_rms_norm(x.bfloat16(), [8], w.bfloat16(), None)
    assert y.dtype == torch.bfloat16 and rstd.dtype == torch.float32 and rstd.shape == (2, 1)
    check(lambda x, w: F.rms_norm(x, [8], w), leaf(2, 8, dtype=torch.bfloat16), leaf(8))  # mixed: torch's composite


# --- group_norm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4), (2, 6, 9, 11)])
def test_group_norm(shape):
    check(lambda x, w, b: F.group_norm(x, 3, w, b), leaf(*shape), leaf(6), leaf(6))
    check(lambda x: F.group_norm(x, 2, eps=1e-3), leaf(*shape).detach())


def test_group_norm_dtypes():
    x = leaf(2, 6, 5, dtype=torch.bfloat16)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), x, leaf(6, dtype=torch.bfloat16), leaf(6, dtype=torch.bfloat16))
    check(lambda x, w, b: F.group_norm(x, 1, w, b), x, leaf(6), leaf(6))


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (2, 6, 9, 11)])
def test_group_norm_channels_last(shape):
    x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
    y = check(lambda x, w, b: F.group_norm(x, 3, w, b), x, leaf(6), leaf(6))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_group_norm_statistics_and_empty():
    def run(x, w):
        return aten.native_group_norm(x, w, None, x.shape[0], 6, 4, 3, 1e-5)

    check(run, torch.randn(2, 6, 4), torch.randn(6))
    check(run, torch.empty(0, 6, 4), torch.randn(6))


def test_group_norm_errors():
    x = torch.randn(2, 6, 4, device="tpu")
    with pytest.raises(RuntimeError, match="divisible by num_groups"):
        F.group_norm(x, 4)
    with pytest.raises(RuntimeError, match="Expected weight to be a vector of size equal to the number of channels"):
        F.group_norm(x, 3, torch.ones(5, device="tpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim, dtype, no_fallback):
    v = torch.linspace(-1, 2, 24).cos().to(dtype).reshape(2, 3, 4).requires_grad_()
    g = torch.linspace(0.5, 2, v.shape[dim], dtype=dtype).reshape([-1 if i == dim else 1 for i in range(3)]).requires_grad_()
    check(lambda v, g: torch._weight_norm(v, g, dim), v, g)
