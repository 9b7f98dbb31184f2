"""Rules of convolutions, pooling, normalizations and losses."""

from typing import Any

from torch import Tensor

from torch_tpu.compiler.bounded.layout import Dims, Padded, UnboundedError, as_padded, bound_of
from torch_tpu.compiler.bounded.reductions import reduced
from torch_tpu.compiler.bounded.rules import Call, aligned, aten, broadcast, leaves, like, rule
from torch_tpu.compiler.bounded.views import single

# --- convolutions and pooling ------------------------------------------------------------------------------------------------


@rule(aten.convolution)
def _convolution(call: Call) -> Padded:
    x = call.padded("input")
    spatial = [d for d in x.dynamic if d >= 2]
    if (call["transposed"] and spatial) or 1 in x.dynamic or call.padded("weight").dynamic:
        raise UnboundedError("a convolution with padded channels, or a transposed one of padded pictures")
    for d in spatial:
        single(x.dims[d])
    value = call.run(input=call.context.fill(x, spatial, 0))
    return Padded(value, (x.dims[0], *call.traced_dims()[1:]))


@rule(aten.convolution_backward)
def _convolution_backward(call: Call) -> Any:
    x, grad = call.padded("input"), call.padded("grad_output")
    (batch,) = broadcast([Padded(each.tensor, each.dims[:1]) for each in (x, grad)])
    x, grad = (call.context.laid_out(each, 0, batch) for each in (x, grad))
    if (call["transposed"] and len(x.dynamic) > 1) or call.padded("weight").dynamic:
        raise UnboundedError("the gradient of a transposed convolution of padded pictures")
    values = call.run(
        input=call.context.fill_all(x, 0), grad_output=call.context.fill_all(grad, 0), bias_sizes=call["bias_sizes"]
    )
    return [like(x, values[0]), *values[1:]]


@rule(
    aten.max_pool2d_with_indices,
    aten.avg_pool2d,
    aten.avg_pool3d,
    aten._adaptive_avg_pool2d,
    aten.upsample_nearest2d,
    aten.upsample_bilinear2d,
)
def _pool(call: Call) -> Any:
    x = call.padded(next(iter(call.arguments)))
    return like(x, call.run(), {len(x.dims) - 2, len(x.dims) - 1})


@rule(aten.max_pool2d_with_indices_backward, aten.avg_pool2d_backward, aten._adaptive_avg_pool2d_backward)
def _pool_backward(call: Call) -> Any:
    x = call.padded("self")
    return like(x, call.run(), {len(x.dims) - 2, len(x.dims) - 1})


# --- normalizations ----------------------------------------------------------------------------------------------------------


def _normalized(x: Padded, count: int) -> set[int]:
    rank = len(x.dims)
    inner = set(range(rank - count, rank))
    if inner & set(x.dynamic):
        raise UnboundedError("a normalization over a padded dimension")
    return inner


@rule(aten.native_layer_norm, aten._fused_rms_norm)
def _layer_norm(call: Call) -> Any:
    x = call.padded("input")
    inner = _normalized(x, len(call["normalized_shape"]))
    output, *statistics = call.run()
    return [like(x, output), *(like(x, each, inner) for each in statistics)]


@rule(aten.native_layer_norm_backward, aten._fused_rms_norm_backward)
def _layer_norm_backward(call: Call) -> Any:
    operands = call.agreeing("grad_out", "input", "mean", "rstd")
    x = operands["input"]
    _normalized(x, len(call["normalized_shape"]))
    grad, *others = call.run(**{name: call.context.fill_all(each, 0) for name, each in operands.items()})
    return [like(x, grad) if grad is not None else None, *others]


@rule(aten._native_batch_norm_legit_no_training)
def _batch_norm(call: Call) -> Any:
    x = call.padded("input")
    output, *statistics = call.run()
    return [like(x, output), *statistics]


@rule(aten.native_group_norm)
def _group_norm(call: Call) -> Any:
    x = call.padded("input")
    if set(x.dynamic) - {0}:
        raise UnboundedError("a group normalization of padded pictures")
    rows = bound_of(x.dims[0])
    output, mean, rstd = call.run(N=rows, C=call["C"], HxW=call["HxW"])
    return [like(x, output), *(Padded(each, (x.dims[0], *as_padded(each).dims[1:])) for each in (mean, rstd))]


# --- losses ------------------------------------------------------------------------------------------------------------------

MEAN, SUM = 1, 2


def _with_classes(call: Call) -> tuple[Padded, Padded]:
    """Scores [classes] or [batch, classes, ...] and targets of the other dimensions, padded in the same places."""
    x, target = call.padded("self"), call.padded("target")
    split = min(len(x.dims) - 1, 1)
    dims = broadcast([target, Padded(x.tensor, x.dims[:split] + x.dims[split + 1 :])])
    return (
        aligned(call.context, x, (*dims[:split], x.dims[split], *dims[split:])),
        aligned(call.context, target, dims),
    )


@rule(aten.nll_loss_forward, aten.nll_loss2d_forward)
def _nll_loss(call: Call) -> Any:
    x, target = _with_classes(call)
    filled = call.context.fill_all(target, call["ignore_index"])
    loss, weight = call.run(self=call.context.fill_all(x, 0), target=filled, ignore_index=call["ignore_index"])
    return [loss if call["reduction"] else Padded(loss, target.dims), weight]


@rule(aten.nll_loss_backward, aten.nll_loss2d_backward)
def _nll_loss_backward(call: Call) -> Any:
    x, target = _with_classes(call)
    grad = aligned(call.context, call.padded("grad_output"), target.dims)
    filled = {
        "self": call.context.fill_all(x, 0),
        "target": call.context.fill_all(target, call["ignore_index"]),
        "grad_output": call.context.fill_all(grad, 0),
    }
    return like(x, call.run(**filled, ignore_index=call["ignore_index"]))


def _elements(call: Call) -> list[Padded]:
    return [as_padded(each) for each in leaves(list(call.arguments.values())) if isinstance(each, (Padded, Tensor))]


def _aligned(call: Call, dims: Dims) -> dict[str, Padded]:
    """The padded arguments, with their padding where a result of these dimensions has it."""
    return {name: aligned(call.context, x, dims) for name, x in call.arguments.items() if isinstance(x, Padded)}


@rule(
    aten.mse_loss,
    aten.smooth_l1_loss,
    aten.huber_loss,
    aten.binary_cross_entropy,
    aten.binary_cross_entropy_with_logits,
    aten.soft_margin_loss,
)
def _loss(call: Call) -> Padded:
    dims = broadcast(_elements(call))
    filled = {name: call.context.fill_all(x, 0) for name, x in _aligned(call, dims).items()}  # some losses check their operands
    each = Padded(call.run(**filled, reduction=0), dims)
    if not call["reduction"]:
        return each
    over = list(range(len(dims)))
    total = call.context.fill(each, over, 0).sum()
    if call["reduction"] == MEAN:
        total = (total / call.context.count(dims)).to(call.results[0].dtype)
    return Padded(total, reduced(dims, over, keepdim=False))


@rule(
    aten.mse_loss_backward,
    aten.smooth_l1_loss_backward,
    aten.huber_loss_backward,
    aten.binary_cross_entropy_backward,
    aten.soft_margin_loss_backward,
)
def _loss_backward(call: Call) -> Padded:
    dims = broadcast(_elements(call))
    changes: dict[str, Any] = dict(_aligned(call, dims))
    if call["reduction"] != MEAN:
        return Padded(call.run(**changes), dims)
    grad = call.padded("grad_output").tensor / call.context.count(dims)
    changes |= {"grad_output": grad.to(call.results[0].dtype), "reduction": SUM}
    return Padded(call.run(**changes), dims)
