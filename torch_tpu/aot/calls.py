"""Calls that reach the rows of the table of lowered operators: the samples of torch's own operator tests, then the rest.

The rest are rows that no sample reaches. Their arguments are made up from the schema or, where those would be refused, written
down in ``by_hand.py``. A new row is therefore reached without anything to add, or it is told of as not reached.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
# Of the samples of an operator and dtype, these many are looked at and the first and last of them run.
_SAMPLES_SEEN = 12


def _to_tpu(tree: Any) -> Any:
    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to("tpu").requires_grad_(x.requires_grad)
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return torch.device("tpu")
        return x

    return pytree.tree_map(move, tree)


def _backward(result: Any) -> None:
    outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])


def _run_samples(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    grad = dtype == torch.float32 and op.supports_autograd
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), _SAMPLES_SEEN))
    for sample in dict.fromkeys((0, len(samples) - 1)) if samples else ():
        operand, args, kwargs = _to_tpu((samples[sample].input, samples[sample].args, samples[sample].kwargs))
        result = op(operand, *args, **kwargs)
        if grad:
            _backward(result)


def from_samples(dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[tuple[str, Callable[[], None]]]:
    """Calls by torch's operator tests, forward and for float32 backward, named "add float32"."""
    from torch.testing._internal import common_methods_invocations

    for op in common_methods_invocations.op_db:
        for dtype in dtypes:
            if dtype in op.supported_dtypes("cpu"):
                name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {str(dtype)[6:]}"
                yield name, lambda op=op, dtype=dtype: _run_samples(op, dtype)  # type: ignore[misc]


# --- rows that no sample reaches ---------------------------------------------------------------------------------------------


def _tensor(dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(1, 7).reshape(2, 3)
    return (values / 8 if dtype.is_floating_point else values).to(dtype).to("tpu")


def _value(kind: str, dtype: torch.dtype) -> Any:
    """An argument of a schema's type, e.g. "List[Tensor]"."""
    if kind == "Tensor":
        return _tensor(dtype)
    if kind.startswith("List[Optional"):
        return [None]
    if kind.startswith("List["):
        # Always two, so that lists of tensors and of their numbers fit together.
        return [_value(kind[5:-1], dtype) for _ in range(2)]
    return {"number": 2, "int": 1, "float": 0.5, "bool": False, "str": "none"}.get(kind)  # None for what may be missing


def overload_of(row: str) -> torch._ops.OpOverload:
    """The torch operator that a row names, e.g. "add.Tensor"."""
    name, _, overload = row.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def _by_schema(row: str) -> None:
    op = overload_of(row)
    errors = []
    for dtype in DTYPES:
        positional, by_name = [], {}
        for argument in op._schema.arguments:
            value = argument.default_value if argument.has_default_value() else _value(str(argument.type), dtype)
            if argument.kwarg_only:
                by_name[argument.name] = value
            else:
                positional.append(value)
        try:
            op(*positional, **by_name)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            errors.append(error)
    if len(errors) == len(DTYPES):
        raise errors[0]


def by_hand() -> Iterator[tuple[str, Callable[[], None]]]:
    """The calls of by_hand.py, named "row _int_mm by hand"."""
    from torch_tpu.aot.by_hand import CALLS

    for row, call in CALLS.items():
        yield f"row {row} by hand", call


def by_schema(rows: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Calls of these rows with arguments made up from their schemas, named "row add.Tensor"."""
    for row in rows:
        yield f"row {row}", lambda row=row: _by_schema(row)  # type: ignore[misc]
