"""Rules of products, attention, convolutions, normalizations, embeddings, indexing and losses."""

from typing import Any

import torch
from torch import Tensor

from torch_tpu.compiler.bounded.layout import Padded, UnboundedError, as_padded, bound_of, is_static, size_of
from torch_tpu.compiler.bounded.reductions import reduced
from torch_tpu.compiler.bounded.rules import Call, aligned, aten, broadcast, leaves, like, rule
from torch_tpu.compiler.bounded.views import single

# --- products -----------------------------------------------------------------------------------------------------------------


@rule(aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
def _matmul(call: Call) -> Padded:
    names = ("batch1", "batch2") if "batch1" in call.arguments else ("mat1" if "mat1" in call.arguments else "self", "mat2")
    a, b = (call.padded(name) for name in names)
    rank = len(a.dims)
    inner, batch = (
        broadcast([Padded(a.tensor, a.dims[-1:]), Padded(b.tensor, b.dims[-2:-1])]),
        broadcast([Padded(x.tensor, x.dims[:-2]) for x in (a, b)]),
    )
    a = aligned(call.context, a, (*batch, a.dims[-2], *inner))
    b = aligned(call.context, b, (*batch, *inner, b.dims[-1]))
    changes = {names[0]: call.context.fill(a, [rank - 1], 0), names[1]: call.context.fill(b, [rank - 2], 0)}
    return Padded(call.run(**changes), (*batch, a.dims[-2], b.dims[-1]))


@rule(aten.mv, aten.dot)
def _vector_product(call: Call) -> Padded:
    a, b = (call.padded(name) for name in call.arguments)
    b = call.context.laid_out(b, 0, a.dims[-1])
    first, second = call.arguments
    changes = {first: call.context.fill(a, [len(a.dims) - 1], 0), second: call.context.fill(b, [0], 0)}
    return Padded(call.run(**changes), a.dims[:-1])


# --- attention ----------------------------------------------------------------------------------------------------------------


def _key_bias(call: Call, query: Padded, key: Padded) -> Any:
    """What the op adds to the scores so that padded keys weigh nothing."""
    bias, padded_keys = call.arguments.get("attn_bias"), key.dims[2]
    if is_static(padded_keys):
        return bias
    if call["is_causal"] and query.dims[2] == padded_keys and bias is None:
        return None  # padded keys come after all real queries
    mask = call.context.padding(padded_keys).view(1, 1, 1, -1)
    if bias is None:
        return torch.zeros((1, 1, 1, 1), dtype=query.tensor.dtype, device="tpu").masked_fill(mask, -torch.inf)
    return as_padded(bias).tensor.masked_fill(mask, -torch.inf)


@rule(aten._scaled_dot_product_fused_attention_overrideable)
def _attention(call: Call) -> Any:
    query, key, value = (call.padded(name) for name in ("query", "key", "value"))
    changes = {"attn_bias": _key_bias(call, query, key)}
    changes |= {name: call.context.fill(x, [2], 0) for name, x in (("key", key), ("value", value))}
    results = list(call.run(**changes))
    batch = broadcast([Padded(x.tensor, x.dims[:1]) for x in (query, key, value)])
    results[0] = Padded(results[0], (*batch, *query.dims[1:3], value.dims[3]))
    results[1] = Padded(results[1], (*batch, *query.dims[1:3]))
    return results


@rule(aten._scaled_dot_product_fused_attention_overrideable_backward)
def _attention_backward(call: Call) -> Any:
    if call.has("attn_bias") and call["grad_input_mask"][3]:
        raise UnboundedError("the gradient of an attention mask")
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    changes: dict[str, Any] = {name: call.context.fill(call.padded(name), [2], 0) for name in names}
    changes["attn_bias"] = _key_bias(call, call.padded("query"), call.padded("key"))
    for name in ("max_q", "max_k"):
        changes[name] = call[name]
    query, key, value = call.run(**changes)[:3]
    return [like(call.padded("query"), query), like(call.padded("key"), key), like(call.padded("value"), value), None]


# --- convolutions and pooling -------------------------------------------------------------------------------------------------


@rule(aten.convolution)
def _convolution(call: Call) -> Padded:
    x = call.padded("input")
    spatial = [d for d in x.dynamic if d >= 2]
    if call["transposed"] and spatial or 1 in x.dynamic or call.padded("weight").dynamic:
        raise UnboundedError("a convolution with padded channels, or a transposed one of padded pictures")
    for d in spatial:
        single(x.dims[d])
    value = call.run(input=call.context.fill(x, spatial, 0))
    return Padded(value, (x.dims[0], *call.traced_dims()[1:]))


@rule(aten.convolution_backward)
def _convolution_backward(call: Call) -> Any:
    x, grad = call.padded("input"), call.padded("grad_output")
    if call["transposed"] and len(x.dynamic) > 1 or call.padded("weight").dynamic:
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


# --- normalizations -----------------------------------------------------------------------------------------------------------


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
    x = call.padded("input")
    _normalized(x, len(call["normalized_shape"]))
    names = [name for name in ("grad_out", "input", "mean", "rstd") if name in call.arguments]
    changes = {name: call.context.fill_all(call.padded(name), 0) for name in names}
    grad, *others = call.run(**changes)
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


# --- embeddings and indexing --------------------------------------------------------------------------------------------------


@rule(aten.embedding)
def _embedding(call: Call) -> Padded:
    weight, indices = call.padded("weight"), call.padded("indices")
    return Padded(call.run(indices=_indices(call, indices, weight, 0)), (*indices.dims, weight.dims[1]))


@rule(aten.embedding_dense_backward)
def _embedding_backward(call: Call) -> Tensor:
    grad, indices = call.padded("grad_output"), call.padded("indices")
    filled = {"grad_output": call.context.fill_all(grad, 0), "indices": call.context.fill_all(indices, 0)}
    return call.run(**filled, num_weights=call["num_weights"])


def _indices(call: Call, index: Padded, indexed: Padded, d: int) -> Tensor:
    """Indices that are 0 in the padding. Those of a padded dimension count from its real end and are beyond its bound if they are
    beyond its real size, so that they are refused."""
    filled = call.context.fill_all(index, 0)
    if is_static(indexed.dims[d]):
        return filled
    single(indexed.dims[d])
    size = call.context.number(size_of(indexed.dims[d]))
    counted = torch.where(filled < 0, filled + size, filled)
    return torch.where((counted < 0) | (counted >= size), bound_of(indexed.dims[d]), counted)


@rule(aten.index_select)
def _index_select(call: Call) -> Padded:
    x, index = call.padded("self"), call.padded("index")
    d = call["dim"] % len(x.dims)
    value = call.run(index=_indices(call, index, x, d))
    return Padded(value, (*x.dims[:d], *(index.dims or ((),)), *x.dims[d + 1 :]))


@rule(aten.gather)
def _gather(call: Call) -> Padded:
    x, index = call.padded("self"), call.padded("index")
    d = call["dim"] % len(x.dims)
    return Padded(call.run(index=_indices(call, index, x, d)), index.dims)


@rule(aten.index.Tensor)
def _index(call: Call) -> Padded:
    x, given = call.padded("self"), [None if each is None else as_padded(each) for each in call["indices"]]
    indexed = [d for d, each in enumerate(given) if each is not None]
    if any(each.tensor.dtype in (torch.bool, torch.uint8) for each in given if each is not None):
        raise UnboundedError("a mask as an index")
    filled = [None if each is None else _indices(call, each, x, d) for d, each in enumerate(given)]
    new = broadcast([each for each in given if each is not None])
    rest = [dim for d, dim in enumerate(x.dims) if d not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    place = indexed[0] if adjacent else 0
    return Padded(call.run(indices=filled), (*rest[:place], *new, *rest[place:]))


@rule(aten.index_add)
def _index_add(call: Call) -> Any:
    x, index, source = (call.padded(name) for name in ("self", "index", "source"))
    d = call["dim"] % max(len(x.dims), 1)
    wanted = (*x.dims[:d], source.dims[d], *x.dims[d + 1 :])
    filled = call.context.fill(aligned(call.context, source, wanted), [d], 0)
    return like(x, call.run(index=_indices(call, index, x, d), source=filled))


@rule(aten.scatter_add, aten.scatter.src, aten.scatter.value)
def _scatter(call: Call) -> Any:
    x, index = call.padded("self"), call.padded("index")
    d = call["dim"] % len(x.dims)
    changes = {"index": _indices(call, index, x, d)}
    if call.target is aten.scatter_add.default:
        changes["src"] = call.context.fill_all(call.padded("src"), 0)
    elif not is_static(index.dims[d]):
        raise UnboundedError("a scatter of padded elements")
    for other in index.dynamic:
        if other != d and x.dims[other] != index.dims[other] and call.target is not aten.scatter_add.default:
            raise UnboundedError("a scatter of padded rows into others")
    return like(x, call.run(**changes))


@rule(aten.index_put)
def _index_put(call: Call) -> Any:
    x, given = call.padded("self"), [None if each is None else as_padded(each) for each in call["indices"]]
    values = call.padded("values")
    known = [each for each in given if each is not None]
    if any(each.tensor.dtype in (torch.bool, torch.uint8) for each in known):
        raise UnboundedError("a mask as an index")
    if any(each.dynamic for each in known) and not call["accumulate"]:
        raise UnboundedError("padded elements written by index")
    filled = [None if each is None else _indices(call, each, x, d) for d, each in enumerate(given)]
    changes: dict[str, Any] = {"indices": filled}
    if call["accumulate"]:
        changes["values"] = _accumulated(call, values, broadcast(known))
    return like(x, call.run(**changes))


def _accumulated(call: Call, values: Padded, dims: Any) -> Tensor:
    """The values with zeros wherever an index is padding."""
    if len(values.dims) < len(dims) and any(not is_static(dim) for dim in dims):
        raise UnboundedError("values that broadcast over padded indices")
    return call.context.fill_all(values, 0)


# --- losses -------------------------------------------------------------------------------------------------------------------

MEAN, SUM = 1, 2


@rule(aten.nll_loss_forward, aten.nll_loss2d_forward)
def _nll_loss(call: Call) -> Any:
    x, target = call.padded("self"), call.padded("target")
    filled = call.context.fill_all(target, call["ignore_index"])
    loss, weight = call.run(self=call.context.fill_all(x, 0), target=filled, ignore_index=call["ignore_index"])
    return [loss if call["reduction"] else Padded(loss, target.dims), weight]


@rule(aten.nll_loss_backward, aten.nll_loss2d_backward)
def _nll_loss_backward(call: Call) -> Any:
    x, target = call.padded("self"), call.padded("target")
    filled = {
        "self": call.context.fill_all(x, 0),
        "target": call.context.fill_all(target, call["ignore_index"]),
        "grad_output": call.context.fill_all(call.padded("grad_output"), 0),
    }
    return like(x, call.run(**filled, ignore_index=call["ignore_index"]))


def _elements(call: Call) -> list[Padded]:
    return [as_padded(each) for each in leaves(list(call.arguments.values())) if isinstance(each, (Padded, Tensor))]


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
    filled = {
        name: call.context.fill_all(aligned(call.context, value, dims), 0)  # some losses check their operands
        for name, value in call.arguments.items()
        if isinstance(value, Padded)
    }
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
    if call["reduction"] != MEAN:
        return Padded(call.run(), dims)
    grad = call.padded("grad_output").tensor / call.context.count(dims)
    return Padded(call.run(grad_output=grad.to(call.results[0].dtype), reduction=SUM), dims)
