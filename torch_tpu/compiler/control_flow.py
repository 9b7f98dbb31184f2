"""torch's control flow operators in a program: ``cond``, ``while_loop``, ``scan`` and ``map`` become StableHLO's control flow.

Each is registered for TPU tensors. While a program is recorded, the functions that it holds run once on stand-ins and become
regions of one op (bridge/control_flow.cpp); what they read from outside needs no mention, since the core finds it. Otherwise
torch's own kernels run op by op and read conditions on the host. ``associative_scan`` is written in ops by torch, in as many
levels as the logarithm of its length.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._higher_order_ops.cond import cond_op, cond_op_dense
from torch._higher_order_ops.map import map_dense, map_impl
from torch._higher_order_ops.scan import scan_op, scan_op_dense
from torch._higher_order_ops.while_loop import while_loop_dense, while_loop_op

from torch_tpu import _C

Function = Callable[..., Any]


class _Body:
    """A function as a region: gives its tensors alone, and remembers what else it gave."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.leaves: list[Any] = []
        self.spec: pytree.TreeSpec | None = None

    def __call__(self, *arguments: Any) -> list[Tensor]:
        """The tensors among the results."""
        leaves, self.spec = pytree.tree_flatten(self.function(*arguments))
        self.leaves = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def results(self, tensors: Sequence[Tensor]) -> Any:
        """The results with these tensors."""
        assert self.spec is not None
        given = iter(tensors)
        leaves = [next(given) if constant is None else constant[0] for constant in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def _check_tensors(op: str, values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, Tensor) or value.device.type != "tpu":
            raise NotImplementedError(f"{op}: a program carries tensors on tpu, but got {value}")


def _truth(function: Function) -> Function:
    """A condition as a boolean scalar tensor."""

    def condition(*arguments: Any) -> list[Tensor]:
        value = function(*arguments)
        if isinstance(value, bool):
            return [torch.full((), value, device="tpu")]
        if not isinstance(value, Tensor) or value.shape != () or value.dtype != torch.bool:
            raise RuntimeError(f"cond_fn must return a boolean scalar tensor or a boolean but got {value}")
        return [value]

    return condition


def _cond(predicate: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any] = ()) -> Any:
    """``torch.cond``: a case of two branches."""
    if not (_C._record_active() and isinstance(predicate, Tensor)):
        return cond_op_dense(predicate, true_fn, false_fn, operands)
    true, false = _Body(lambda: true_fn(*operands)), _Body(lambda: false_fn(*operands))
    results = _C._record_case(predicate.reshape(()) != 0, [false, true])
    if true.leaves != false.leaves:
        raise NotImplementedError("cond: the branches give different values that are no tensors")
    return true.results(results)


def _while_loop(
    cond_fn: Function, body_fn: Function, carried: Sequence[Any], additional: Sequence[Any], mutated_arg_indices: str = ""
) -> Any:
    """``while_loop``: a while."""
    if not _C._record_active():
        return while_loop_dense(cond_fn, body_fn, carried, additional, mutated_arg_indices=mutated_arg_indices)
    _check_tensors("while_loop", carried)
    body = _Body(lambda *values: body_fn(*values, *additional))
    return body.results(_C._record_while(_truth(lambda *values: cond_fn(*values, *additional)), body, carried))


def _scan(combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any]) -> Any:
    """``scan``: a while that cuts x[i] out of each x and puts y[i] into each y."""
    if not _C._record_active():
        return scan_op_dense(combine_fn, init, xs, additional_inputs)
    _check_tensors("scan", [*init, *xs])
    body = _Body(lambda *values: combine_fn(*values, *additional_inputs))
    results = _C._record_scan(body, xs[0].shape[0], init, xs)
    if any(body.leaves[: len(init)]):
        raise NotImplementedError("scan: a program carries tensors alone")
    return tuple(body.results(results))


def _map(f: Function, xs: Sequence[Any], pos_args: Sequence[Any]) -> Any:
    """``map``: a scan that carries nothing."""
    if not _C._record_active():
        return map_dense(f, xs, pos_args)
    _check_tensors("map", xs)
    body = _Body(lambda *values: f(*values, *pos_args))
    return body.results(_C._record_scan(body, xs[0].shape[0], [], xs))


def register() -> None:
    """Registers the operators' kernels for TPU tensors."""
    for op, kernel in ((cond_op, _cond), (while_loop_op, _while_loop), (scan_op, _scan), (map_impl, _map)):
        op.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)
