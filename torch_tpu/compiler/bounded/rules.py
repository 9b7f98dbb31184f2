"""Which op takes padded operands how: a table of rules, one for each ATen overload, filled by the modules beside this one.

A rule runs the op on tensors of the bounds' sizes, through the ordinary dispatcher, and says where the real elements of its
results are. What lies in padding is arbitrary, NaN or an index out of range: a rule fills it wherever the op lets it reach real
elements or checks it. An op without a rule makes the graph one of exact sizes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from torch_tpu.compiler.bounded.context import Context
from torch_tpu.compiler.bounded.layout import Dim, Dims, Padded, Size, UnboundedError, as_padded, bound_of, is_static, static

aten = torch.ops.aten


class Call:
    """A node of a graph with the values of its arguments, by the names of its schema."""

    def __init__(self, context: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target: Any = node.target
        self.context, self.node, self.target = context, node, target
        parameters = target._schema.arguments
        given = dict(zip((each.name for each in parameters), args, strict=False)) | kwargs
        self.arguments = {each.name: given.get(each.name, each.default_value) for each in parameters}

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def padded(self, name: str) -> Padded:
        """A tensor argument."""
        return as_padded(self.arguments[name])

    def has(self, name: str) -> bool:
        """Is there such an argument, and is it given?"""
        return self.arguments.get(name) is not None

    def dims_of(self, name: str, parameter: str = "dim") -> list[int]:
        """Dimensions of a tensor argument that another argument lists: all for None or an empty list."""
        rank, listed = len(self.padded(name).dims), self.arguments.get(parameter)
        if listed is None or listed == []:
            return list(range(rank))
        return [d % max(rank, 1) for d in (listed if isinstance(listed, (list, tuple)) else [listed])]

    def agreeing(self, *names: str) -> dict[str, Padded]:
        """Tensor arguments whose dimensions are the same, or 1, with their padding in the same places."""
        operands = {name: self.padded(name) for name in names if self.has(name)}
        dims = broadcast(list(operands.values()))
        return {name: aligned(self.context, x, dims) for name, x in operands.items()}

    @property
    def results(self) -> list[Tensor]:
        """The results as torch traced them, with symbolic sizes."""
        value = self.node.meta["val"]
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def traced_dims(self, result: int = 0) -> Dims:
        """The dimensions of a result by its traced sizes, real elements first."""
        return self.context.dims(self.results[result].shape)

    def run(self, /, **changes: Any) -> Any:
        """The op on the padded tensors, with other arguments where `changes` says so."""
        known = {name: value for name, value in self.arguments.items() if name not in changes}
        for value in leaves(list(known.values())):
            if isinstance(value, Size):
                raise UnboundedError(f"{self.target} takes the number {value.expression}")
        return self.target(**{name: self.context.at_bound(value) for name, value in (known | changes).items()})


Rule = Callable[[Call], Any]
_rules: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for overloads, or for all overloads of a packet."""

    def register(function: Rule) -> Rule:
        for target in targets:
            overloads = (
                [target] if isinstance(target, torch._ops.OpOverload) else [getattr(target, n) for n in target.overloads()]
            )
            for overload in overloads:
                _rules[overload] = function
        return function

    return register


def find(target: Any) -> Rule | None:
    """The rule of a node's target."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    if target in _rules:
        return _rules[target]
    return pointwise if torch.Tag.pointwise in target.tags else None


def leaves(value: Any) -> Iterator[Any]:
    """What is in a nest of lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def broadcast(operands: list[Padded]) -> Dims:
    """The dimensions of a result of operands that broadcast: where they are padded in different ways, the finest one's."""
    rank = max((len(each.dims) for each in operands), default=0)
    result: list[Dim] = []
    for d in range(-rank, 0):
        found = {each.dims[d] for each in operands if -d <= len(each.dims)} - {()}
        result.append(max(found, key=lambda dim: (len(dim), str(dim)), default=()))
    return tuple(result)


def aligned(context: Context, x: Padded, dims: Dims) -> Padded:
    """An operand with the padding of a result's dimensions."""
    for d in range(-len(x.dims), 0):
        if x.dims[d] != ():
            x = context.laid_out(x, d + len(x.dims), dims[d])
    return x


def spread(value: Any, dims: Dims) -> Any:
    """All results of an op, with the same padding."""
    if isinstance(value, (list, tuple)):
        return tuple(spread(each, dims) for each in value)
    return Padded(value, dims) if isinstance(value, Tensor) else value


def like(x: Padded, value: Any, changed: set[int] | None = None) -> Any:
    """Results with x's padding, but for dimensions that the op changed, which have none."""
    changed = changed or set()
    if any(not is_static(x.dims[d]) for d in changed):
        raise UnboundedError(f"the op works along a padded dimension of {tuple(map(bound_of, x.dims))}")
    if isinstance(value, (list, tuple)):
        return tuple(like(x, each, changed) for each in value)
    if not isinstance(value, Tensor):
        return value
    dims = tuple(static(value.shape[d]) if d in changed else dim for d, dim in enumerate(x.dims))
    return Padded(value, dims)


def pointwise(call: Call) -> Any:
    """Element by element: padding stays padding. Numbers computed from sizes become 0-d tensors."""
    given = call.arguments
    dims = broadcast([as_padded(each) for each in leaves(list(given.values())) if isinstance(each, (Padded, Tensor))])
    changes = {name: aligned(call.context, each, dims) for name, each in given.items() if isinstance(each, Padded)}
    if not any(isinstance(each, Size) for each in given.values()):
        return spread(call.run(**changes), dims)
    values = {name: call.context.at_bound(call.context.number(value)) for name, value in (given | changes).items()}
    return spread(call.target.overloadpacket(**values).to(call.results[0].dtype), dims)


@rule(
    aten.clone,
    aten.alias,
    aten.detach,
    aten.lift_fresh_copy,
    aten.contiguous,
    aten._to_copy,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.empty_like,
    aten.rand_like,
    aten.randn_like,
    aten.randint_like,
    aten.native_dropout,
)
def same(call: Call) -> Any:
    """Results of the same sizes as the first argument."""
    first = next(iter(call.arguments))
    return like(call.padded(first), call.run())


@rule(aten.bernoulli)
def _bernoulli(call: Call) -> Any:
    """Probabilities are checked, those in padding as well: they are 0 there."""
    names = [name for name in ("self", "p") if isinstance(call.arguments.get(name), (Padded, Tensor))]
    operands = call.agreeing(*names)
    filled = {name: call.context.fill_all(each, 0) for name, each in operands.items()}
    return like(operands["self"], call.run(**filled))


@rule(aten.native_dropout_backward)
def _dropout_backward(call: Call) -> Any:
    operands = call.agreeing("grad_output", "mask")
    return like(operands["grad_output"], call.run(**operands))
