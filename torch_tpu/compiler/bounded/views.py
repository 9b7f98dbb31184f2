"""Rules of views, and of the ops that build or take apart along a dimension."""

import math
from typing import Any

import sympy
import torch

from torch_tpu.compiler.bounded.context import expression_of
from torch_tpu.compiler.bounded.layout import (
    Dim,
    Expression,
    Factor,
    Padded,
    Size,
    UnboundedError,
    as_padded,
    bound_of,
    is_static,
    normal,
    regroup,
    size_of,
    static,
)
from torch_tpu.compiler.bounded.rules import Call, aten, broadcast, like, rule


def _split(call: Call, x: Padded, d: int, sizes: list[Expression]) -> Padded:
    """With padding at the end of each part that a view makes of a dimension and those behind it, not of the whole."""
    before = math.prod((size_of(dim) for dim in x.dims[:d]), start=sympy.Integer(1))
    products = [math.prod(sizes[:i], start=sympy.Integer(1)) for i in range(len(sizes) + 1)]
    end, after = d + 1, before * size_of(x.dims[d])
    while after not in products and end < len(x.dims) and is_static(x.dims[end]):
        after, end = after * size_of(x.dims[end]), end + 1
    if before not in products or after not in products:
        return x
    parts = sizes[products.index(before) : products.index(after)]
    merged = (*x.dims[:d], normal(factor for dim in x.dims[d:end] for factor in dim), *x.dims[end:])
    whole = Padded(x.tensor.reshape([bound_of(dim) for dim in merged]), merged)
    return call.context.laid_out(whole, d, normal(factor for size in parts for factor in call.context.dim(size)))


@rule(aten.view.default, aten._unsafe_view, aten.reshape)
def _view(call: Call) -> Padded:
    x, sizes = call.padded("self"), [expression_of(size) for size in call.results[0].shape]
    for d in reversed(x.dynamic):
        if len(x.dims[d]) == 1:
            x = _split(call, x, d, sizes)
    dims = regroup(x.dims, sizes)
    return Padded(x.tensor.reshape([bound_of(dim) for dim in dims]), dims)


@rule(aten.view_as_real, aten.view_as_complex)
def _complex(call: Call) -> Padded:
    x = call.padded("self")
    value = call.run()
    return Padded(value, x.dims[: value.ndim] if value.ndim < len(x.dims) else (*x.dims, static(2)))


@rule(aten.permute, aten.transpose.int, aten.t)
def _permute(call: Call) -> Padded:
    x = call.padded("self")
    order = list(range(len(x.dims)))
    if call.has("dims"):
        order = [d % len(order) for d in call["dims"]]
    elif call.has("dim0"):
        a, b = call["dim0"] % len(order), call["dim1"] % len(order)
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Padded(call.run(), tuple(x.dims[d] for d in order))


@rule(aten.unsqueeze)
def _unsqueeze(call: Call) -> Padded:
    x = call.padded("self")
    dims = list(x.dims)
    dims.insert(call["dim"] % (len(dims) + 1), ())
    return Padded(call.run(), tuple(dims))


@rule(aten.squeeze)
def _squeeze(call: Call) -> Padded:
    x = call.padded("self")
    chosen = call.dims_of("self")
    dims = tuple(dim for d, dim in enumerate(x.dims) if dim != () or d not in chosen)
    return Padded(x.tensor.reshape([bound_of(dim) for dim in dims]), dims)


@rule(aten.expand)
def _expand(call: Call) -> Padded:
    x, sizes = call.padded("self"), call.results[0].shape
    given = ((),) * (len(sizes) - len(x.dims)) + x.dims
    dims = tuple(dim if dim != () else call.context.dim(expression_of(size)) for dim, size in zip(given, sizes, strict=True))
    return Padded(x.tensor.expand([bound_of(dim) for dim in dims]), dims)


@rule(aten.repeat)
def _repeat(call: Call) -> Padded:
    x, repeats = call.padded("self"), call["repeats"]
    if any(isinstance(each, Size) for each in repeats):
        raise UnboundedError("repeat takes a number that is computed from sizes")
    given = ((),) * (len(repeats) - len(x.dims)) + x.dims
    return Padded(call.run(), tuple((*static(n), *dim) for n, dim in zip(repeats, given, strict=True)))


# --- parts of a dimension -----------------------------------------------------------------------------------------------------


def single(dim: Dim) -> Factor:
    """The factor of a dimension whose real elements come first."""
    if len(dim) > 1:
        raise UnboundedError("padding lies between the elements of a dimension that is taken apart")
    return dim[0] if dim else Factor(1, 1)


def _replace(x: Padded, d: int, tensor: torch.Tensor, dim: Dim) -> Padded:
    return Padded(tensor, (*x.dims[:d], dim, *x.dims[d + 1 :]))


def _expression(value: Any) -> Expression:
    return value.expression if isinstance(value, Size) else value


def _start(value: Any, size: Expression) -> Expression:
    """The start of a slice or an index as a distance from the beginning."""
    start = _expression(value)
    if isinstance(start, int) and start < 0:
        return start + size
    return start


def _taken(call: Call, x: Padded, d: int, start: Expression, step: int, length: Dim) -> Padded:
    """Elements start, start + step, ... of a dimension; `length` of them."""
    count, own = bound_of(length), bound_of(x.dims[d])
    if isinstance(start, int) and start + (count - 1) * step < own:
        index = [slice(None)] * d + [slice(start, start + (count - 1) * step + 1, step)]
        return _replace(x, d, x.tensor[tuple(index)], length)
    at = call.context.positions(count) * step + call.context.number(start)
    return _replace(x, d, x.tensor.index_select(d, at.clamp(0, own - 1)), length)


@rule(aten.slice.Tensor)
def _slice(call: Call) -> Padded:
    x = call.padded("self")
    d = call["dim"] % len(x.dims)
    length = call.context.dim(expression_of(call.results[0].shape[d]))
    own = single(x.dims[d])
    if length == x.dims[d] and call["step"] == 1:
        return x
    start = _start(call["start"] or 0, own.size)
    return _taken(call, x, d, start, call["step"], length)


@rule(aten.select.int)
def _select(call: Call) -> Padded:
    x = call.padded("self")
    d = call["dim"] % len(x.dims)
    if is_static(x.dims[d]) and isinstance(call["index"], int):
        return Padded(call.run(), x.dims[:d] + x.dims[d + 1 :])
    one = _taken(call, x, d, _start(call["index"], single(x.dims[d]).size), 1, ())
    return Padded(one.tensor.squeeze(d), one.dims[:d] + one.dims[d + 1 :])


def _placed(call: Call, grad: Padded, d: int, start: Expression, step: int, sizes: Any) -> Padded:
    """Zeros of these sizes with `grad` at start, start + step, ... along a dimension."""
    dim = call.context.dim(expression_of(sizes[d]))
    own = bound_of(grad.dims[d])
    at = call.context.positions(bound_of(dim)) - call.context.number(start)
    outside = (at < 0) | (at % step != 0) | (at // step >= call.context.number(single(grad.dims[d]).size))
    taken = grad.tensor.index_select(d, (at // step).clamp(0, own - 1))
    return _replace(grad, d, taken.masked_fill(outside.view([-1] + [1] * (len(grad.dims) - d - 1)), 0), dim)


@rule(aten.slice_backward)
def _slice_backward(call: Call) -> Padded:
    grad = call.padded("grad_output")
    d = call["dim"] % len(grad.dims)
    sizes = call.results[0].shape
    return _placed(call, grad, d, _start(call["start"] or 0, expression_of(sizes[d])), call["step"], sizes)


@rule(aten.select_backward)
def _select_backward(call: Call) -> Padded:
    grad, sizes = call.padded("grad_output"), call.results[0].shape
    d = call["dim"] % len(sizes)
    row = Padded(grad.tensor.unsqueeze(d), (*grad.dims[:d], (), *grad.dims[d:]))
    return _placed(call, row, d, _start(call["index"], expression_of(sizes[d])), 1, sizes)


@rule(aten.split, aten.split_with_sizes, aten.chunk, aten.unbind)
def _parts(call: Call) -> Any:
    x = call.padded("self")
    d = call["dim"] % len(x.dims)
    if not is_static(x.dims[d]):
        return _padded_parts(call, x, d)
    parts = call.run()
    if call.target is aten.unbind.int:
        return [Padded(part, x.dims[:d] + x.dims[d + 1 :]) for part in parts]
    return list(like(x, tuple(parts), {d}))


def _padded_parts(call: Call, x: Padded, d: int) -> list[Padded]:
    """The parts of a padded dimension, as many as torch traced."""
    single(x.dims[d])
    parts, start = [], 0
    for traced in call.results:
        if traced.ndim < len(x.dims):
            raise UnboundedError("as many results as there are elements")
        length = expression_of(traced.shape[d])
        parts.append(_taken(call, x, d, start, 1, call.context.dim(length)))
        start = start + length
    return parts


@rule(aten.flip, aten.roll)
def _moved(call: Call) -> Padded:
    x = call.padded("self")
    is_roll = "shifts" in call.arguments
    dims = call["dims"]
    if is_roll and not dims:
        raise UnboundedError("a roll of all elements")
    dynamic = [d % len(x.dims) for d in dims if not is_static(x.dims[d])]
    others = [i for i, d in enumerate(dims) if is_static(x.dims[d])]
    shifts = [_expression(shift) for shift in call["shifts"]] if is_roll else [0] * len(dims)
    changes = {"dims": [dims[i] for i in others]} | ({"shifts": [shifts[i] for i in others]} if is_roll else {})
    tensor = call.run(**changes) if others else x.tensor
    for d in dynamic:
        size = call.context.number(single(x.dims[d]).size)
        at = call.context.positions(bound_of(x.dims[d]))
        source = (
            (at - call.context.number(shifts[[k % len(x.dims) for k in dims].index(d)])) % size if is_roll else size - 1 - at
        )
        tensor = tensor.index_select(d, source.clamp(min=0))
    return like(x, tensor)


@rule(aten.glu, aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp)
def _along(call: Call) -> Any:
    x, dims = call.padded("self"), call.dims_of("self")
    if call.target.overloadpacket in _PREFIX and len(x.dims[dims[0]]) == 1:
        return like(x, call.run())
    return like(x, call.run(), set(dims))


# A result depends only on what comes before it, and padding comes last.
_PREFIX = (aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp)


@rule(aten.tril, aten.triu)
def _triangle(call: Call) -> Padded:
    x = call.padded("self")
    single(x.dims[-1]), single(x.dims[-2])
    return like(x, call.run())


# --- joining ------------------------------------------------------------------------------------------------------------------


@rule(aten.cat)
def _cat(call: Call) -> Padded:
    parts = [
        as_padded(each)
        for each in call["tensors"]
        if tuple(each.tensor.shape if isinstance(each, Padded) else each.shape) != (0,)
    ]
    d = call["dim"] % len(parts[0].dims)
    others = broadcast([Padded(part.tensor, (*part.dims[:d], (), *part.dims[d + 1 :])) for part in parts])
    joined = torch.cat([part.tensor for part in parts], d)
    result = Padded(joined, (*others[:d], static(joined.shape[d]), *others[d + 1 :]))
    if all(is_static(part.dims[d]) for part in parts[:-1]):  # padding comes last
        last, before = single(parts[-1].dims[d]), joined.shape[d] - bound_of(parts[-1].dims[d])
        return _replace(result, d, joined, (Factor(joined.shape[d], before + last.size),))
    return _closed_up(call, result, [single(part.dims[d]) for part in parts], d)


def _closed_up(call: Call, joined: Padded, parts: list[Factor], d: int) -> Padded:
    """Padded parts that were concatenated, without the padding between them."""
    at = call.context.positions(sum(part.bound for part in parts))
    source, begin, padded_begin = at, 0, 0
    for part in parts:
        source = torch.where(at >= begin, at - begin + padded_begin, source)
        begin, padded_begin = begin + call.context.number(part.size), padded_begin + part.bound
    dim = (Factor(padded_begin, sum(part.size for part in parts)),)
    return _replace(joined, d, joined.tensor.index_select(d, source.clamp(max=padded_begin - 1)), dim)


@rule(aten.stack)
def _stack(call: Call) -> Padded:
    parts = [as_padded(each) for each in call["tensors"]]
    dims = list(broadcast(parts))
    dims.insert(call["dim"] % (len(dims) + 1), static(len(parts)))
    return Padded(call.run(), tuple(dims))


@rule(aten.constant_pad_nd)
def _constant_pad(call: Call) -> Padded:
    x, pad = call.padded("self"), [_expression(count) for count in call["pad"]]
    rest = list(pad)  # of the dimensions without padding, which the op itself does
    for i in range(0, len(pad), 2):
        d = len(x.dims) - 1 - i // 2
        if is_static(x.dims[d]) and all(isinstance(count, int) for count in pad[i : i + 2]):
            continue
        rest[i : i + 2] = [0, 0]
        if pad[i : i + 2] != [0, 0]:
            x = _extended(call, x, d, pad[i], pad[i + 1])
    value = call.run(self=x, pad=rest)
    dims = (dim if n == bound_of(dim) else static(n) for dim, n in zip(x.dims, value.shape, strict=True))
    return Padded(value, tuple(dims))


def _extended(call: Call, x: Padded, d: int, left: Expression, right: Expression) -> Padded:
    """A dimension with the pad's value before and behind its real elements, or with fewer of them."""
    own, size = bound_of(x.dims[d]), single(x.dims[d]).size
    dim = call.context.dim(size + left + right)
    at = call.context.positions(bound_of(dim)) - call.context.number(left)
    outside = ((at < 0) | (at >= call.context.number(size))).view([-1] + [1] * (len(x.dims) - d - 1))
    tensor = x.tensor.index_select(d, at.clamp(0, own - 1)).masked_fill(outside, call["value"])
    return _replace(x, d, tensor, dim)


# --- new tensors --------------------------------------------------------------------------------------------------------------


@rule(
    aten.zeros,
    aten.ones,
    aten.empty.memory_format,
    aten.rand,
    aten.randn,
    aten.randint,
    aten.new_zeros,
    aten.new_ones,
    aten.new_empty,
)
def _new(call: Call) -> Padded:
    dims = call.traced_dims()
    return Padded(call.run(size=[bound_of(dim) for dim in dims]), dims)


@rule(aten.full, aten.new_full)
def _full(call: Call) -> Padded:
    dims, name = call.traced_dims(), "fill_value"
    size = [bound_of(dim) for dim in dims]
    number = call.context.number(call[name])
    if not isinstance(number, torch.Tensor):
        return Padded(call.run(size=size), dims)
    return Padded(number.to(call.results[0].dtype).expand(size).contiguous(), dims)


@rule(aten.scalar_tensor)
def _scalar(call: Call) -> torch.Tensor:
    number = call.context.number(call["s"])
    return number.to("tpu", call.results[0].dtype) if isinstance(number, torch.Tensor) else call.run()


@rule(aten.arange)
def _arange(call: Call) -> Padded:
    dims, result = call.traced_dims(), call.results[0]
    start, step = (_expression(call.arguments.get(name, otherwise)) for name, otherwise in (("start", 0), ("step", 1)))
    if not (isinstance(start, int) and isinstance(step, int)) and result.dtype.is_floating_point:
        raise UnboundedError("arange of fractions")
    at = call.context.positions(math.prod(map(bound_of, dims)))
    return Padded((at * call.context.number(step) + call.context.number(start)).to(result.dtype), dims)
