"""Runs a graph on padded tensors, node by node, each by its rule."""

from typing import Any

import sympy
import torch
from torch import Tensor, fx

from torch_tpu.compiler.bounded import indexing, layers, products, reductions, rules, views  # noqa: F401  (they register rules)
from torch_tpu.compiler.bounded.context import Context, expression_of
from torch_tpu.compiler.bounded.layout import Padded, Size, UnboundedError, as_padded, bound_of, is_static, size_of
from torch_tpu.compiler.partition import site


class Recording(fx.Interpreter):
    """Runs a graph on padded tensors while the core records."""

    def __init__(self, module: fx.GraphModule, context: Context) -> None:
        super().__init__(module)
        self.context = context

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An input: a padded tensor, a size, or anything else as it is."""
        value, traced = super().placeholder(target, args, kwargs), self.node.meta.get("val")
        if not isinstance(traced, Tensor):
            return _as_size(traced, value)
        dims = self.context.dims(traced.shape)
        return value if all(map(is_static, dims)) else Padded(value, dims)

    def run_node(self, node: fx.Node) -> Any:
        """The value of a node."""
        self.node = node
        try:
            return super().run_node(node)
        except UnboundedError as error:
            raise UnboundedError(f"{node.target} ({site(node) or 'no Python line'}): {error}") from error

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Runs an op, by its rule where sizes change."""
        traced = self.node.meta.get("val")
        if isinstance(traced, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return _as_size(traced, None)
        if not isinstance(target, torch._ops.OperatorBase):
            return super().call_function(target, args, kwargs)
        changing = any(isinstance(each, (Padded, Size)) for each in rules.leaves([*args, *kwargs.values()]))
        if not changing and all(isinstance(n, int) for n in _sizes_of(traced)):
            return super().call_function(target, args, kwargs)
        rule = rules.find(target)
        if rule is None:
            raise UnboundedError("this op has no form for upper bounds")
        value = rule(rules.Call(self.context, self.node, args, kwargs))
        return self._checked(value, traced)

    def _checked(self, value: Any, traced: Any) -> Any:
        """The results, whose real sizes must be those that torch traced."""
        if isinstance(traced, (list, tuple)):
            return [self._checked(each, one) for each, one in zip(value, traced, strict=True)]
        if not isinstance(traced, Tensor) or value is None:
            return _as_size(traced, value)
        padded = as_padded(value)
        fits = len(padded.dims) == traced.ndim and tuple(map(bound_of, padded.dims)) == tuple(padded.tensor.shape)
        if not fits or any(
            sympy.expand(size_of(d) - expression_of(n)) != 0 for d, n in zip(padded.dims, traced.shape, strict=True)
        ):
            raise UnboundedError(f"the result's sizes {padded.dims} are not {tuple(traced.shape)}; please report this")
        return padded if padded.dynamic else padded.tensor


def _as_size(traced: Any, value: Any) -> Any:
    expression = expression_of(traced)
    return Size(expression) if isinstance(expression, sympy.Basic) else value if traced is None else expression


def _sizes_of(traced: Any) -> list[Any]:
    tensors = [each for each in rules.leaves(traced) if isinstance(each, Tensor)]
    return [expression_of(size) for tensor in tensors for size in tensor.shape]
