"""How the elements of a tensor of changing sizes lie in one of fixed sizes.

A program is compiled for upper bounds. A dimension whose size changes is padded to its bound: the real elements come first.
When dimensions are merged, as in ``x.view(batch * length, 768)``, the padding lies between the real elements, so a dimension
is a list of factors, each with a bound and a real size; the real elements are those whose every digit is below the real size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

Expression = Any  # an int, or a sympy expression in the symbols of Dynamo's shape environment


class UnboundedError(Exception):
    """A graph, or a node of it, has no form for upper bounds; the message says why."""


@dataclass(frozen=True)
class Factor:
    """A digit of a dimension's index: below `size` where the element is real, and always below `bound`."""

    bound: int
    size: Expression

    @property
    def is_static(self) -> bool:
        """Is there no padding?"""
        return self.size == self.bound


Dim = tuple[Factor, ...]  # the most significant digit first; () is a dimension of size 1
Dims = tuple[Dim, ...]


def static(size: int) -> Dim:
    """A dimension that does not change."""
    return () if size == 1 else (Factor(size, size),)


def is_static(dim: Dim) -> bool:
    """Has the dimension no padding?"""
    return all(factor.is_static for factor in dim)


def bound_of(dim: Dim) -> int:
    """The size of the padded dimension."""
    bound = 1
    for factor in dim:
        bound *= factor.bound
    return bound


def size_of(dim: Dim) -> Expression:
    """The real size of the dimension."""
    size: Expression = 1
    for factor in dim:
        size = size * factor.size
    return size


def normal(factors: Iterable[Factor]) -> Dim:
    """The same dimension with as few factors as possible: what follows a factor without padding of its own joins it."""
    joined: list[Factor] = []
    for factor in factors:
        if factor.size == 1 and factor.bound == 1:
            continue
        if joined and factor.is_static:
            last = joined.pop()
            factor = Factor(last.bound * factor.bound, last.size * factor.size)
        joined.append(factor)
    return tuple(joined)


def quotient(whole: Expression, part: Expression) -> Expression | None:
    """Whole / part if that is free of fractions."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    ratio = sympy.cancel(sympy.sympify(whole) / part)
    if sympy.fraction(ratio)[1] != 1:
        return None
    return int(ratio) if ratio.is_Integer else ratio


def regroup(dims: Dims, sizes: Sequence[Expression]) -> Dims:
    """The dimensions of a view of these real sizes."""
    left = [factor for dim in dims for factor in dim]
    result = []
    for size in sizes:
        rest: Expression = size
        factors: list[Factor] = []
        while rest != 1:
            factor = left.pop(0) if left else Factor(1, 1)
            more, inner = quotient(rest, factor.size), quotient(factor.size, rest)
            if more is not None and factor.size != 1:
                factors.append(factor)
                rest = more
            elif isinstance(inner, int) and inner > 1 and factor.bound % inner == 0:
                factors.append(Factor(factor.bound // inner, rest))
                left.insert(0, Factor(inner, inner))
                rest = 1
            else:
                raise UnboundedError(f"a view of sizes {tuple(map(str, sizes))} splits a padded dimension")
        result.append(normal(factors))
    if left:
        raise UnboundedError(f"a view of sizes {tuple(map(str, sizes))} drops a padded dimension")
    return tuple(result)


@dataclass(frozen=True)
class Padded:
    """A tensor of the bounds' sizes, and which of its elements are real. The others may be anything."""

    tensor: torch.Tensor
    dims: Dims

    @property
    def dynamic(self) -> list[int]:
        """The dimensions with padding."""
        return [d for d, dim in enumerate(self.dims) if not is_static(dim)]


def as_padded(value: "Padded | torch.Tensor") -> Padded:
    """A tensor without padding as one that may have some."""
    if isinstance(value, Padded):
        return value
    return Padded(value, tuple(static(size) for size in value.shape))


@dataclass(frozen=True)
class Size:
    """A number of the graph that is computed from sizes."""

    expression: sympy.Expr
