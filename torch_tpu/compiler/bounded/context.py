"""The sizes of one recording: bounds that the program is compiled for, and real sizes that are its inputs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import TensorReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torch_tpu.compiler.bounded.layout import (
    Dim,
    Dims,
    Expression,
    Factor,
    Padded,
    Size,
    UnboundedError,
    bound_of,
    is_static,
    size_of,
    static,
)


def expression_of(value: Any) -> Expression:
    """What a size of torch's tracing stands for."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expression = value.node.expr
        return int(expression) if expression.is_Integer else expression
    return value


class Context:
    """Bounds and real sizes of the symbols, and what is made of them: masks of padding, numbers."""

    def __init__(self, bounds: Mapping[sympy.Symbol, int], sizes: Mapping[sympy.Symbol, Tensor]) -> None:
        self.bounds, self._sizes = bounds, dict(sizes)
        self._ranges = {symbol: ValueRanges(1, bound) for symbol, bound in bounds.items()}
        self._numbers: dict[Expression, Tensor] = {}
        self._padding: dict[Dim, Tensor] = {}

    def bound(self, size: Expression) -> int:
        """The largest value of a size while the symbols keep their bounds."""
        if isinstance(size, int):
            return size
        if not size.free_symbols <= self.bounds.keys():
            raise UnboundedError(f"the size {size} is not known before the program runs")
        bound = size.subs(self.bounds)
        if not bound.is_Integer or bound_sympy(size, self._ranges).upper != bound:
            raise UnboundedError(f"the size {size} does not grow with its symbols")
        return int(bound)

    def dim(self, size: Expression) -> Dim:
        """A dimension of this size whose real elements come first."""
        if isinstance(size, int):
            return static(size)
        return (Factor(self.bound(size), size),)

    def dims(self, sizes: Sequence[Any]) -> Dims:
        """Dimensions of these sizes, in torch's form."""
        return tuple(self.dim(expression_of(size)) for size in sizes)

    def number(self, value: Any) -> Any:
        """A number as the program sees it: itself, or a 0-d tensor for one that is computed from sizes."""
        expression = value.expression if isinstance(value, Size) else value
        if not isinstance(expression, sympy.Expr):
            return value
        if expression not in self._numbers:
            if not expression.free_symbols <= self._sizes.keys():
                raise UnboundedError(f"the number {expression} is not known before the program runs")
            self._numbers[expression] = sympy_interp(TensorReferenceAnalysis, self._sizes, expression)
        return self._numbers[expression]

    def at_bound(self, value: Any) -> Any:
        """What an op on padded tensors takes for a padded tensor, or for a size."""
        if isinstance(value, Padded):
            return value.tensor
        if isinstance(value, Size):
            return self.bound(value.expression)
        if isinstance(value, (list, tuple)):
            return type(value)(self.at_bound(each) for each in value)
        return value

    def positions(self, count: int) -> Tensor:
        """0, 1, ... count - 1 on the device."""
        return torch.arange(count, device="tpu")

    def padding(self, dim: Dim) -> Tensor:
        """Which indices of a dimension are padding: bool [bound]."""
        if dim not in self._padding:
            mask = torch.zeros((1,), dtype=torch.bool, device="tpu")
            for factor in dim:
                digits = self.positions(factor.bound) >= self.number(factor.size)
                mask = (mask.unsqueeze(-1) | digits).reshape(-1)
            self._padding[dim] = mask
        return self._padding[dim]

    def fill(self, x: Padded, dims: Sequence[int], value: float) -> Tensor:
        """The tensor with `value` in the padding of these dimensions."""
        tensor = x.tensor
        for d in dims:
            if is_static(x.dims[d]):
                continue
            shape = [1] * tensor.ndim
            shape[d] = -1
            tensor = tensor.masked_fill(self.padding(x.dims[d]).view(shape), value)
        return tensor

    def fill_all(self, x: Padded, value: float) -> Tensor:
        """The tensor with `value` in all of its padding."""
        return self.fill(x, range(len(x.dims)), value)

    def count(self, dims: Sequence[Dim]) -> Any:
        """The number of real elements of these dimensions together."""
        factors = [self.number(factor.size) for dim in dims for factor in dim]
        return math.prod(factors)

    def _source(self, target: Dim, source: Dim) -> Tensor:
        """For each index of a dimension: where another dimension of the same real elements has the element."""
        index, rank = self.positions(bound_of(target)), None
        stride: Any = 1
        for factor in reversed(target):
            digit = index % factor.bound * stride
            rank = digit if rank is None else rank + digit
            index, stride = index // factor.bound, stride * self.number(factor.size)
        if len(source) <= 1 or rank is None:
            return rank.clamp(max=bound_of(source) - 1) if rank is not None else index
        found, step = torch.zeros_like(rank), 1
        for factor in reversed(source):
            number = self.number(factor.size)
            found, rank, step = found + rank % number * step, rank // number, step * factor.bound
        return found.clamp(max=bound_of(source) - 1)

    def laid_out(self, x: Padded, d: int, dim: Dim) -> Padded:
        """The tensor with the padding of one dimension elsewhere."""
        if x.dims[d] == dim:
            return x
        if size_of(x.dims[d]) != size_of(dim):
            raise UnboundedError(f"sizes {size_of(x.dims[d])} and {size_of(dim)} of one dimension")
        tensor = x.tensor.index_select(d, self._source(dim, x.dims[d]))
        return Padded(tensor, (*x.dims[:d], dim, *x.dims[d + 1 :]))

    def compact(self, x: Padded) -> Tensor:
        """The real elements first, in row-major order, as [rows, elements of a row] of the bounds' number."""
        factors = [factor for dim in x.dims for factor in dim]
        last = max(i for i, factor in enumerate(factors) if not factor.is_static)
        rows = tuple(factors[: last + 1])
        flat = x.tensor.reshape([math.prod(factor.bound for factor in each) for each in (rows, factors[last + 1 :])])
        if last == 0:
            return flat.contiguous()  # a view, of a tensor that was expanded or stacked, has other strides
        return flat.index_select(0, self._source((Factor(flat.shape[0], size_of(rows)),), rows))
