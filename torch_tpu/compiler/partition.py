"""Which part of a graph runs where.

Most graphs are one program. What a program cannot hold runs op by op between programs: ops on CPU tensors (the step counts of
torch.optim), copies between the host and the device or between devices, ops that the CPU does for the TPU. Others show when
they are recorded (backend.py): results as long as the data says, kernels that read values on the host. A graph over several
devices has programs for each.
"""

import functools
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_tpu import _C, _graph_events
from torch_tpu._graph_events import HostPart

log = logging.getLogger(__name__)


@functools.cache
def _on_host() -> frozenset[str]:
    """Overloads that run on the CPU, or read values on the host."""
    return frozenset(name for name, how, _ in _C._ops() if how in ("CPU", "none"))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _tensors_of(node: fx.Node) -> list[torch.Tensor]:
    return list(_tensors(node.meta.get("val")))


# Its results, the states of a loop for the backward pass, are as long as the data says.
_STACKING_LOOP = "while_loop_stack_output"


# What this file asks of nodes' metadata once the graph was partitioned.
NEEDS_HOST, SITE, DEVICE = "torch_tpu_needs_host", "torch_tpu_site", "torch_tpu_device"
#: What is left of it in a graph that is written to a cache (cache.py), after `prepare_to_write`.
KEPT = frozenset({NEEDS_HOST, SITE, DEVICE})


def needs_host(node: fx.Node) -> HostPart | None:
    """The op and why no program can hold it, or None. The answer stays with the node."""
    if NEEDS_HOST not in node.meta:
        reason = _why_on_host(node)
        node.meta[NEEDS_HOST] = HostPart(str(node.target), site(node), reason) if reason else None
    found: HostPart | None = node.meta[NEEDS_HOST]
    return found


def refused(node: fx.Node, error: Exception) -> HostPart:
    """The same of a node whose recording failed."""
    why = str(error).partition("\n\nWhile executing")[0]  # torch.fx tells the node again
    return HostPart(str(node.target), site(node), why)


def site(node: fx.Node) -> str | None:
    """The line of the captured function that calls it."""
    if SITE in node.meta:
        return node.meta[SITE]
    lines = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    return ":".join(lines[-1]) if lines else None


def prepare_to_write(graph: fx.Graph) -> None:
    """Puts all that must be kept into the nodes' metadata."""
    for node in graph.nodes:
        node.meta[SITE] = site(node)
        node.meta[DEVICE] = _device(node)


def _devices(node: fx.Node) -> set[int]:
    """The TPUs that a node's tensors are on."""
    tensors = [tensor for each in (node, *node.all_input_nodes) for tensor in _tensors_of(each)]
    return {tensor.device.index or 0 for tensor in tensors if tensor.device.type == "tpu"}


def _device(node: fx.Node) -> int:
    """The TPU that a node's program runs on."""
    if DEVICE in node.meta:
        return node.meta[DEVICE]
    return min(_devices(node), default=0)


def _why_on_host(node: fx.Node) -> str | None:
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == _STACKING_LOOP:
        return "its results are as long as the data says"
    if isinstance(node.target, torch._ops.OpOverload) and node.target.name() in _on_host():
        return "it runs on the CPU, or reads values on the host"
    own, inputs = _tensors_of(node), [tensor for each in node.all_input_nodes for tensor in _tensors_of(each)]
    if own and not any(tensor.device.type == "tpu" for tensor in own):
        return "its results are tensors of the CPU"
    if any(tensor.device.type != "tpu" and tensor.ndim > 0 for tensor in inputs):  # CPU scalars are inputs of programs
        return "it takes tensors of the CPU"
    if len(_devices(node)) > 1:
        return "its tensors are on several devices"
    return None


def _writes(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors it writes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    named = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    found = [named[name] for name in written if name in named]
    return [each for value in found for each in (value if isinstance(value, (list, tuple)) else [value])]


def _stages(graph: fx.Graph, on_host: Mapping[fx.Node, HostPart]) -> dict[fx.Node, int]:
    """A number for each call: even ones run op by op, odd ones are programs, and all run in the order of their numbers."""
    stages: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module"):
            continue
        least = max((stages.get(each, 0) for each in node.all_input_nodes), default=0)
        if node.target is operator.getitem:  # of a list that only its own stage has
            stages[node] = least
            continue
        for written in _writes(node):  # after all that reads what was there before
            least = max([least, *(stages.get(user, 0) for user in written.users if user is not node)])
        is_program = node not in on_host and not needs_host(node)
        stages[node] = least if least % 2 == is_program else least + 1
    return stages


Runner = Callable[[list[Any]], Sequence[Any]]


@dataclass
class Part:
    """A part of a graph: a callable that takes the values of these numbers and gives those, after which some are of no use."""

    run: Runner
    inputs: list[int]
    outputs: list[int]
    dead: list[int]


def _extract(module: fx.GraphModule, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = node.meta
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(module, graph)


def _on_the_host(module: fx.GraphModule, parts: list[HostPart]) -> Runner:
    for part in parts:
        log.info("%s (%s) runs between programs: %s", part.op, part.site or "no Python line", part.reason)

    def run(values: list[Any]) -> Sequence[Any]:
        _graph_events.tell(parts)
        return module(*values)

    return run


def split(
    module: fx.GraphModule, compile_part: Callable[[fx.GraphModule], Runner], on_host: Mapping[fx.Node, HostPart] | None = None
) -> Runner:
    """A callable for a graph, which empties the list of its inputs.

    `compile_part` makes a program of what can be one; the nodes `on_host` cannot.
    """
    on_host = on_host or {}
    stages = _stages(module.graph, on_host)
    keys = {node: (stage, _device(node) if stage % 2 else 0) for node, stage in stages.items()}
    order = {key: i for i, key in enumerate(sorted(set(keys.values())))}
    if len(order) <= 1 and all(stage == 1 for stage, _ in order):
        return compile_part(module)
    calls = {node: order[key] for node, key in keys.items()}  # which part has it
    attributes = {node for node in module.graph.nodes if node.op == "get_attr"}
    count = len(order)
    arguments = [node for node in module.graph.nodes if node.op == "placeholder"]
    output = next(iter(reversed(module.graph.nodes)))
    number = {node: i for i, node in enumerate(node for node in module.graph.nodes if node.op != "output")}
    last_use = {node: max((calls.get(user, count) for user in node.users), default=-1) for node in number}

    parts = []
    for (stage, _), at in order.items():
        nodes = [node for node in number if calls.get(node) == at]
        used = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
        own_attributes = [node for node in used if node in attributes]
        inputs = [node for node in used if node not in attributes and calls.get(node) != at]
        results = [node for node in nodes if last_use[node] > at]
        part = _extract(module, own_attributes + nodes, inputs, results)
        calls_of_part = [node for node in nodes if node.target is not operator.getitem]
        reasons = [found for found in (on_host.get(node) or needs_host(node) for node in calls_of_part) if found]
        parts.append(
            Part(
                compile_part(part) if stage % 2 else _on_the_host(part, reasons),
                [number[node] for node in inputs],
                [number[node] for node in results],
                [number[node] for node in inputs if last_use[node] == at],
            )
        )
    returned = [_Reference(number[each]) if isinstance(each, fx.Node) else each for each in output.args[0]]
    constants = {number[node]: operator.attrgetter(node.target)(module) for node in attributes if last_use[node] == count}

    def run(values: list[Any]) -> Sequence[Any]:
        table: list[Any] = [None] * len(number)
        for node, value in zip(arguments, values, strict=True):
            table[number[node]] = value
        values.clear()
        for i, constant in constants.items():
            table[i] = constant
        for part in parts:
            given = [table[i] for i in part.inputs]
            for i in part.dead:
                table[i] = None
            for i, value in zip(part.outputs, part.run(given), strict=True):
                table[i] = value
        return [table[each.number] if isinstance(each, _Reference) else each for each in returned]

    return run


@dataclass(frozen=True)
class _Reference:
    """Stands for the value of a node in what a graph returns."""

    number: int
