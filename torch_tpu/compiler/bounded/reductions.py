"""Rules of reductions, softmax and sorting along padded dimensions: the padding is filled with what changes nothing."""

import math
from typing import Any

import torch

from torch_tpu.compiler.bounded.context import Context
from torch_tpu.compiler.bounded.layout import Dims, Padded, Size, UnboundedError, is_static, static
from torch_tpu.compiler.bounded.rules import Call, aten, like, rule, spread
from torch_tpu.compiler.bounded.views import single


def lowest(dtype: torch.dtype) -> float:
    """What no maximum takes before a real element."""
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float:
    """What no minimum takes before a real element."""
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def reduced(dims: Dims, over: list[int], keepdim: bool) -> Dims:
    """The dimensions of a reduction's result."""
    return tuple(() if d in over else dim for d, dim in enumerate(dims) if keepdim or d not in over)


def _reduction(call: Call, identity: float) -> Any:
    x, over = call.padded("self"), call.dims_of("self")
    value = call.run(self=call.context.fill(x, over, identity))
    return spread(value, reduced(x.dims, over, bool(call.arguments.get("keepdim"))))


@rule(aten.sum, aten.nansum, aten.count_nonzero, aten.any)
def _sum(call: Call) -> Any:
    return _reduction(call, 0)


@rule(aten.prod, aten.all)
def _product(call: Call) -> Any:
    return _reduction(call, 1)


@rule(aten.amax, aten.max.default, aten.max.dim, aten.logsumexp)
def _maximum(call: Call) -> Any:
    return _reduction(call, lowest(call.padded("self").tensor.dtype))


@rule(aten.amin, aten.min.default, aten.min.dim)
def _minimum(call: Call) -> Any:
    return _reduction(call, highest(call.padded("self").tensor.dtype))


@rule(aten.argmax, aten.argmin)
def _position(call: Call) -> Any:
    x = call.padded("self")
    for d in x.dynamic if call["dim"] is None else call.dims_of("self"):
        single(x.dims[d])
        if call["dim"] is None and d != 0:  # the position would count padding
            raise UnboundedError(f"{call.target} of all elements, padded in dimension {d}")
    extreme = lowest if call.target is aten.argmax.default else highest
    return _reduction(call, extreme(x.tensor.dtype))


@rule(aten.linalg_vector_norm)
def _norm(call: Call) -> Any:
    if call["ord"] < 0:
        raise UnboundedError("a norm of negative order")
    return _reduction(call, 0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _mean(context: Context, x: Padded, over: list[int], keepdim: bool, dtype: torch.dtype) -> torch.Tensor:
    total = context.fill(x, over, 0).sum(over, keepdim, dtype=dtype)
    return total / context.count([x.dims[d] for d in over])


@rule(aten.mean)
def _average(call: Call) -> Padded:
    x, over, keepdim = call.padded("self"), call.dims_of("self"), bool(call.arguments.get("keepdim"))
    dtype = call.results[0].dtype
    value = _mean(call.context, x, over, keepdim, _wide(dtype)).to(dtype)
    return Padded(value, reduced(x.dims, over, keepdim))


@rule(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _variance(call: Call) -> Any:
    x, over, keepdim = call.padded("self"), call.dims_of("self"), bool(call["keepdim"])
    correction, dtype = call["correction"], x.tensor.dtype
    if dtype.is_complex or isinstance(correction, Size):
        raise UnboundedError(f"{call.target} of complex numbers or with a changing correction")
    mean = _mean(call.context, x, over, True, _wide(dtype))
    squares = call.context.fill(Padded((x.tensor - mean).square(), x.dims), over, 0).sum(over, keepdim)
    count = call.context.count([x.dims[d] for d in over])
    value = squares / (count - (1 if correction is None else correction))
    if "std" in call.target._schema.name:
        value = value.sqrt()
    dims = reduced(x.dims, over, keepdim)
    if "mean" not in call.target._schema.name:
        return Padded(value.to(dtype), dims)
    return Padded(value.to(dtype), dims), Padded(mean.reshape(value.shape).to(dtype), dims)


@rule(aten._softmax, aten._log_softmax, aten._safe_softmax)
def _softmax(call: Call) -> Any:
    x = call.padded("self")
    return like(x, call.run(self=call.context.fill(x, call.dims_of("self"), -math.inf)))


@rule(aten._softmax_backward_data, aten._log_softmax_backward_data)
def _softmax_backward(call: Call) -> Any:
    operands, over = call.agreeing("grad_output", "output"), call.dims_of("output")
    return like(operands["output"], call.run(**{name: call.context.fill(x, over, 0) for name, x in operands.items()}))


@rule(aten.sort, aten.topk)
def _sorted(call: Call) -> Any:
    x = call.padded("self")
    d = call["dim"] % max(len(x.dims), 1)
    is_top = call.target.overloadpacket is aten.topk
    if is_static(x.dims[d]):
        return like(x, call.run(), {d})
    single(x.dims[d])
    dtype, descending = x.tensor.dtype, call["largest" if is_top else "descending"]
    last: float = lowest(dtype) if descending else math.nan if dtype.is_floating_point else highest(dtype)
    changes: dict[str, Any] = {"self": call.context.fill(x, [d], last)}
    if not is_top and "stable" in call.arguments:
        changes["stable"] = True  # padding stays behind equal elements
    dim = static(call["k"]) if is_top else x.dims[d]
    return spread(call.run(**changes), (*x.dims[:d], dim, *x.dims[d + 1 :]))
