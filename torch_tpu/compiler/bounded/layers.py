"""Rules of products, attention, convolutions, normalizations, embeddings, indexing and losses."""

from typing import Any

import torch
from torch import Tensor

from torch_tpu.compiler.bounded.layout import Dims, Padded, UnboundedError, as_padded, bound_of, is_static, size_of
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


def _agreeing_heads(call: Call, *names: str) -> dict[str, Padded]:
    """Operands [batch, heads, length, ...] with the padding of batch, heads, queries and keys in the same places."""
    operands = {name: call.padded(name) for name in names}
    batch = broadcast([Padded(x.tensor, x.dims[:1]) for x in operands.values()])
    for lengths in (("query", "grad_out", "out", "logsumexp"), ("key", "value")):
        chosen = [name for name in lengths if name in operands]
        length = broadcast([Padded(operands[name].tensor, operands[name].dims[2:3]) for name in chosen])
        for name in chosen:
            x = operands[name]
            operands[name] = aligned(call.context, x, (*batch, x.dims[1], *length, *x.dims[3:]))
    return operands


@rule(aten._scaled_dot_product_fused_attention_overrideable)
def _attention(call: Call) -> Any:
    operands = _agreeing_heads(call, "query", "key", "value")
    query, key, value = operands.values()
    changes = {"query": query.tensor, "attn_bias": _key_bias(call, query, key)}
    changes |= {name: call.context.fill(operands[name], [2], 0) for name in ("key", "value")}
    results = list(call.run(**changes))
    batch = broadcast([Padded(x.tensor, x.dims[:2]) for x in (query, key, value)])
    results[0] = Padded(results[0], (*batch, query.dims[2], value.dims[3]))
    results[1] = Padded(results[1], (*batch, query.dims[2]))
    return results


@rule(aten._scaled_dot_product_fused_attention_overrideable_backward)
def _attention_backward(call: Call) -> Any:
    if call.has("attn_bias") and call["grad_input_mask"][3]:
        raise UnboundedError("the gradient of an attention mask")
    operands = _agreeing_heads(call, "query", "key", "value", "grad_out", "out", "logsumexp")
    changes: dict[str, Any] = {name: call.context.fill(x, [2], 0) for name, x in operands.items()}
    changes["attn_bias"] = _key_bias(call, operands["query"], operands["key"])
    results = call.run(**changes, max_q=call["max_q"], max_k=call["max_k"])
    return [*(like(operands[name], each) for name, each in zip(("query", "key", "value"), results, strict=False)), None]


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
    (batch,) = broadcast([Padded(each.tensor, each.dims[:1]) for each in (x, grad)])
    x, grad = (call.context.laid_out(each, 0, batch) for each in (x, grad))
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


# --- embeddings and indexing --------------------------------------------------------------------------------------------------


@rule(aten.embedding)
def _embedding(call: Call) -> Padded:
    weight, indices = call.padded("weight"), call.padded("indices")
    return Padded(call.run(indices=_indices(call, indices, weight, 0)), (*indices.dims, weight.dims[1]))


@rule(aten.embedding_dense_backward)
def _embedding_backward(call: Call) -> Tensor:
    grad, indices = call.padded("grad_output"), call.padded("indices")
    dims = broadcast([indices, Padded(grad.tensor, grad.dims[:-1])])
    grad, indices = aligned(call.context, grad, (*dims, grad.dims[-1])), aligned(call.context, indices, dims)
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


def _indexed(call: Call, x: Padded) -> tuple[dict[int, Padded], Dims]:
    """The indices by the dimensions of x, padded in the same places, and the dimensions of what they pick."""
    known = {d: as_padded(each) for d, each in enumerate(call["indices"]) if each is not None}
    if any(each.tensor.dtype in (torch.bool, torch.uint8) for each in known.values()):
        raise UnboundedError("a mask as an index")
    new = broadcast(list(known.values()))
    rest = [dim for d, dim in enumerate(x.dims) if d not in known]
    first = min(known)
    place = first if list(known) == list(range(first, first + len(known))) else 0
    return {d: aligned(call.context, each, new) for d, each in known.items()}, (*rest[:place], *new, *rest[place:])


@rule(aten.index.Tensor)
def _index(call: Call) -> Padded:
    x = call.padded("self")
    known, dims = _indexed(call, x)
    return Padded(call.run(indices=_listed({d: _indices(call, each, x, d) for d, each in known.items()})), dims)


def _listed(known: dict[int, Tensor]) -> list[Tensor | None]:
    return [known.get(d) for d in range(max(known) + 1)]


@rule(aten.index_add)
def _index_add(call: Call) -> Any:
    x, index, source = (call.padded(name) for name in ("self", "index", "source"))
    d = call["dim"] % max(len(x.dims), 1)
    wanted = (*x.dims[:d], source.dims[d], *x.dims[d + 1 :])
    filled = call.context.fill(aligned(call.context, source, wanted), [d], 0)
    return like(x, call.run(index=_indices(call, index, x, d), source=filled))


@rule(aten.scatter_add)
def _scatter_add(call: Call) -> Any:
    x, operands = call.padded("self"), call.agreeing("index", "src")
    d = call["dim"] % max(len(x.dims), 1)
    index = _indices(call, operands["index"], x, d)
    return like(x, call.run(index=index, src=call.context.fill_all(operands["src"], 0)))


def _aside(call: Call, x: Padded, d: int, index: Padded) -> tuple[Tensor, Tensor]:
    """A tensor with one more row along a dimension, and an index that sends padding there."""
    bound = bound_of(x.dims[d])
    longer = torch.cat([x.tensor, x.tensor.narrow(d, 0, 1)], d)
    padded = call.context.fill_all(Padded(torch.zeros_like(index.tensor, dtype=torch.bool), index.dims), True)
    return longer, torch.where(padded, bound, _indices(call, index, x, d))


@rule(aten.scatter.src, aten.scatter.value)
def _scatter(call: Call) -> Any:
    x, operands = call.padded("self"), call.agreeing("index", "src")
    d = call["dim"] % max(len(x.dims), 1)
    longer, index = _aside(call, x, d, operands["index"])
    changes = {"src": operands["src"]} if "src" in operands else {}
    return like(x, call.run(self=longer, index=index, **changes).narrow(d, 0, bound_of(x.dims[d])))


@rule(aten.index_put)
def _index_put(call: Call) -> Any:
    x = call.padded("self")
    known, dims = _indexed(call, x)
    values = aligned(call.context, call.padded("values"), dims)
    filled = {d: _indices(call, each, x, d) for d, each in known.items()}
    d, new = next(iter(known)), broadcast(list(known.values()))
    if all(map(is_static, new)):
        return like(x, call.run(indices=_listed(filled), values=values))
    index = Padded(known[d].tensor.expand([bound_of(dim) for dim in new]), new)
    longer, filled[d] = _aside(call, x, d, index)
    value = call.run(self=longer, indices=_listed(filled), values=values)
    return like(x, value.narrow(d, 0, bound_of(x.dims[d])))


# --- losses -------------------------------------------------------------------------------------------------------------------

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
    changes = {n: aligned(call.context, each, dims) for n, each in call.arguments.items() if isinstance(each, Padded)}
    if call["reduction"] != MEAN:
        return Padded(call.run(**changes), dims)
    grad = call.padded("grad_output").tensor / call.context.count(dims)
    changes |= {"grad_output": grad.to(call.results[0].dtype), "reduction": SUM}
    return Padded(call.run(**changes), dims)
