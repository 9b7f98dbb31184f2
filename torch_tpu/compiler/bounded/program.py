"""A graph of changing sizes as a program for upper bounds: recorded with padded tensors, run with real ones."""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._sympy.printers import PythonPrinter

from torch_tpu import _C, _graph_events
from torch_tpu.compiler.bounded import policy
from torch_tpu.compiler.bounded.context import Context, expression_of
from torch_tpu.compiler.bounded.layout import Padded, Size, UnboundedError, bound_of, is_static, size_of
from torch_tpu.compiler.bounded.recording import Recording
from torch_tpu.tpu.modes import get_dynamism

log = logging.getLogger("torch_tpu.compiler")

Numbers = Sequence[int]


def _compiled(expressions: Sequence[Any], symbols: Sequence[sympy.Symbol]) -> Callable[..., tuple[int, ...]]:
    """Sizes as a Python function of the symbols' values."""
    names = {symbol: sympy.Symbol(f"s{i}", integer=True, positive=True) for i, symbol in enumerate(symbols)}
    texts = [PythonPrinter().doprint(sympy.sympify(each).xreplace(names)) for each in expressions]
    body = "".join(f"{text}, " for text in texts)
    return eval(f"lambda {', '.join(map(str, names.values()))}: ({body})", {"math": math, "torch": torch})


@dataclass
class _Input:
    """How a tensor of changing sizes is given to the program."""

    place: int
    bounds: tuple[int, ...]


def _strides_of(sizes: Sequence[int], like: Sequence[int]) -> list[int]:
    """Strides without gaps, in the order of memory that `like` has."""
    strides, step = [0] * len(sizes), 1
    for d in sorted(range(len(sizes)), key=lambda d: (like[d], -d)):
        strides[d] = step
        step *= sizes[d]
    return strides


def _padded_view(tensor: Tensor, bounds: Sequence[int]) -> Tensor:
    """The tensor with the bounds' sizes: a view if it lies in a larger one of these bounds, a copy otherwise."""
    if tuple(tensor.shape) == tuple(bounds):
        return tensor
    strides, offset = tensor.stride(), int(tensor.storage_offset())
    end = offset + sum((size - 1) * stride for size, stride in zip(bounds, strides, strict=True)) + 1
    if strides == tuple(_strides_of(bounds, strides)) and end * tensor.itemsize <= tensor.untyped_storage().nbytes():
        return _C._restride(tensor, bounds, strides, offset)
    return _C._pad(tensor, bounds)


@dataclass
class _Output:
    """How a value that the graph returns is made of the inputs and the program's results."""

    make: Callable[[list[Any], list[Any], Numbers], Any]
    recorded: Tensor | None = None  # a result of the program


class _Bounded:
    """The program of a graph for one set of bounds."""

    def __init__(self, graph: "Graph", bounds: dict[sympy.Symbol, int]) -> None:
        self.graph, self.bounds = graph, bounds
        self.symbols = list(bounds)
        self.outputs: list[_Output] = []
        self.inputs: list[_Input] = []
        self.numbers: dict[int, int] = {}
        context = Context(bounds, {})
        for place, traced in enumerate(graph.traced):
            if isinstance(traced, Tensor):
                dims = context.dims(traced.shape)
                if not all(map(is_static, dims)):
                    self.inputs.append(_Input(place, tuple(map(bound_of, dims))))
            elif isinstance(traced, (torch.SymInt, torch.SymFloat)):
                self.numbers[place] = context.bound(expression_of(traced))
        name = f"{graph.name} for {', '.join(f'{symbol} <= {bound}' for symbol, bound in bounds.items())}"
        self.run = _C._CompiledGraph(name, len(graph.traced) + len(bounds), graph.fast_math, self._record, [])

    def _record(self, *values: Any) -> list[Any]:
        count = len(self.graph.traced)
        context = Context(self.bounds, dict(zip(self.symbols, values[count:], strict=True)))
        results = Recording(self.graph.module, context).run(*values[:count])
        recorded: list[Tensor] = []
        self.outputs = []
        for i, (node, value) in enumerate(zip(self.graph.returned, results, strict=True)):
            output = self._output(context, i, node, value, len(recorded))
            self.outputs.append(output)
            if output.recorded is not None:
                recorded.append(output.recorded)
        return recorded

    def _output(self, context: Context, i: int, node: Any, value: Any, place: int) -> _Output:
        if isinstance(node, fx.Node) and node.op == "placeholder":
            at = self.graph.place[node]
            return _Output(lambda given, results, sizes: given[at])
        if isinstance(value, Size):
            number = self._function([value.expression])
            return _Output(lambda given, results, sizes: number(*sizes)[0])
        if not isinstance(value, (Padded, Tensor)):
            return _Output(lambda given, results, sizes: value)
        if i in self.graph.aliases:
            return self._described(node.meta["val"])
        if isinstance(value, Tensor):
            return _Output(lambda given, results, sizes: results[place], value)
        if i >= self.graph.visible and all(len(dim) <= 1 for dim in value.dims):
            return self._kept(value, place)
        return self._compact(context, value, node.meta["val"], place)

    def _function(self, expressions: Sequence[Any]) -> Callable[..., tuple[int, ...]]:
        return _compiled([expression_of(each) for each in expressions], self.symbols)

    def _described(self, traced: Tensor) -> _Output:
        """A view that AOTAutograd makes itself, for which it asks the sizes and strides only."""
        numbers = self._function([*traced.shape, *traced.stride(), traced.storage_offset()])
        rank, dtype = traced.ndim, traced.dtype

        def make(given: list[Any], results: list[Any], sizes: Numbers) -> Tensor:
            known = numbers(*sizes)
            storage = torch.UntypedStorage(0, device="meta")
            return torch.empty(0, dtype=dtype, device="meta").set_(storage, known[-1], known[:rank], known[rank:-1])

        return _Output(make)

    def _kept(self, value: Padded, place: int) -> _Output:
        """A result for a program of the same bounds, which takes its padding as it is."""
        real = self._function([size_of(dim) for dim in value.dims])

        def make(given: list[Any], results: list[Any], sizes: Numbers) -> Tensor:
            tensor = results[place]
            return _C._restride(tensor, real(*sizes), tensor.stride(), int(tensor.storage_offset()))

        return _Output(make, value.tensor)

    def _compact(self, context: Context, value: Padded, traced: Tensor, place: int) -> _Output:
        """A result that the user sees: its real elements lie together, in the order of memory that eager mode's have."""
        strides = [int(sympy.sympify(expression_of(stride)).subs(self.bounds)) for stride in traced.stride()]
        order = sorted(range(len(strides)), key=lambda d: (-strides[d], d))
        ordered = Padded(value.tensor.permute(order), tuple(value.dims[d] for d in order))
        real = self._function([size_of(dim) for dim in value.dims])

        def make(given: list[Any], results: list[Any], sizes: Numbers) -> Tensor:
            numbers, tensor = real(*sizes), results[place]
            return _C._restride(tensor, numbers, _strides_of(numbers, strides), int(tensor.storage_offset()))

        return _Output(make, context.compact(ordered))

    def __call__(self, values: list[Any], sizes: Numbers) -> list[Any]:
        given = list(values)
        values.clear()
        padded = list(given)
        for each in self.inputs:
            padded[each.place] = _padded_view(given[each.place], each.bounds)
        for place, number in self.numbers.items():
            padded[place] = number
        padded += [torch.tensor(size) for size in sizes]
        results = self.run(padded)
        return [output.make(given, results, sizes) for output in self.outputs]


@dataclass(frozen=True)
class Results:
    """What becomes of a graph's results."""

    visible: int = sys.maxsize
    aliases: frozenset[int] = frozenset()


class Graph:
    """A graph whose sizes change, with a program for each set of bounds.

    Of the results only the first ``visible`` are seen by the user; later ones go to a program for the same bounds and keep
    their padding. Those in ``aliases`` are views that AOTAutograd makes anew, of inputs or of other results.
    """

    def __init__(self, name: str, module: fx.GraphModule, fast_math: bool, results: Results) -> None:
        self.name, self.module, self.fast_math = name, module, fast_math
        self.visible, self.aliases = results.visible, results.aliases
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.place = {node: i for i, node in enumerate(placeholders)}
        self.traced = [node.meta.get("val") for node in placeholders]
        self.returned = next(iter(reversed(module.graph.nodes))).args[0]
        self.sources = self._find_sources()
        self.policies = [policy.Bounds(self._range(symbol)) for symbol in self.sources]
        self._programs: dict[tuple[int, ...], _Bounded] = {}

    def _symbolic(self) -> list[Any]:
        numbers = [each for each in self.traced if isinstance(each, (torch.SymInt, torch.SymFloat))]
        return numbers + [
            size for each in self.traced if isinstance(each, Tensor) for size in each.shape if isinstance(size, torch.SymInt)
        ]

    def _find_sources(self) -> dict[sympy.Symbol, tuple[int, int | None]]:
        """Where each symbol's value is found: an input that is a number, or a dimension of one."""
        found: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for place, traced in enumerate(self.traced):
            for d, size in enumerate(traced.shape) if isinstance(traced, Tensor) else [(None, traced)]:
                expression = expression_of(size)
                if isinstance(expression, sympy.Symbol):
                    found.setdefault(expression, (place, d))
        missing = {symbol for size in self._symbolic() for symbol in size.node.expr.free_symbols} - found.keys()
        if missing:
            raise UnboundedError(f"no input tells the size {', '.join(map(str, missing))}")
        return found

    def _range(self, symbol: sympy.Symbol) -> Any:
        return self._symbolic()[0].node.shape_env.var_to_range[symbol]

    @property
    def has_run(self) -> bool:
        """Is there a program?"""
        return any(each.outputs for each in self._programs.values())

    def __call__(self, values: list[Any]) -> list[Any]:
        """Runs the program for the sizes of these inputs."""
        sizes = [values[place] if d is None else values[place].shape[d] for place, d in self.sources.values()]
        bounds = tuple(each.bound(size) for each, size in zip(self.policies, sizes, strict=True))
        if bounds not in self._programs:
            self._programs[bounds] = _Bounded(self, dict(zip(self.sources, bounds, strict=True)))
        return self._programs[bounds](values, sizes)


def program(
    name: str, module: fx.GraphModule, fast_math: bool, results: Results, exact: Callable[[], Callable[[list[Any]], Any]]
) -> Callable[[list[Any]], Any]:
    """A callable for a graph whose sizes change. `exact` makes one with a program for each size, for a graph that needs it."""
    graph: Graph | None = None
    exactly: Callable[[list[Any]], Any] | None = None
    why: list[_graph_events.ExactSizes] = []

    def call(values: list[Any]) -> Any:
        nonlocal exactly, graph
        if get_dynamism() != "off" and not why:
            given = list(values)
            try:
                graph = graph or Graph(name, module, fast_math, results)
                return graph(values)
            except Exception as error:
                if graph is not None and graph.has_run and not isinstance(error, UnboundedError):
                    raise
                reason = str(error).partition("\n\nWhile executing")[0]  # torch.fx tells the node again
                log.info("%s has a program for each size: %s", name, reason)
                why.append(_graph_events.ExactSizes(name, reason))
            values = given
        _graph_events.tell(why)
        exactly = exactly or exact()
        return exactly(values)

    return call
