"""Rules of embeddings and of indexing."""

from typing import Any

import torch
from torch import Tensor

from torch_tpu.compiler.bounded.layout import Dims, Padded, UnboundedError, as_padded, bound_of, is_static, size_of
from torch_tpu.compiler.bounded.rules import Call, aligned, aten, broadcast, like, rule
from torch_tpu.compiler.bounded.views import single


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
    """Indices that are 0 in the padding.

    Those of a padded dimension count from its real end, and are beyond its bound if they are beyond its real size: refused.
    """
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
