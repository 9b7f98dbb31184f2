"""``torch.compile(backend="tpu")``.

Dynamo captures the graph, AOTAutograd makes it functional and splits it into forward and backward. Each is run once, op by
op, while the core records (bridge/compiled.cpp): the same kernels and lowerings as in eager mode, but one program.
"""

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import disable
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler, aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from torch_tpu import _C
from torch_tpu.compiler import bounded, cache, partition

# torch.compile's modes. XLA has no cheaper and no longer compilation to offer, and launches of programs cost next to nothing.
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# fast_math: XLA may change values, as in (x + 1e8) - 1e8, and keep bfloat16 sums in float32.
_OPTIONS = {"fast_math": bool}

# Overloads with the same arguments that take the place of others.
_REPLACED: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default,
}

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


def _check(mode: str | None, options: dict[str, Any]) -> None:
    if mode not in _MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(filter(None, _MODES))}")
    for name, value in options.items():
        if name not in _OPTIONS:
            raise RuntimeError(f"Unexpected optimization option {name}, known options are {list(_OPTIONS)}")
        if not isinstance(value, _OPTIONS[name]):
            raise RuntimeError(f"Unexpected type of attr {name}, got {type(value)} should be {_OPTIONS[name]}")


class _Recording(fx.Interpreter):
    """Runs a graph while the core records, and remembers the node that failed."""

    failed: fx.Node | None = None
    name = "a graph"
    programs = 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the graph gives for these arguments."""
        self.programs += 1
        if log.isEnabledFor(logging.INFO):
            why = "a new graph" if self.programs == 1 else "other sizes, dtypes or layouts of inputs, numbers or modes"
            count = sum(node.op == "call_function" for node in self.module.graph.nodes)  # type: ignore[union-attr]
            log.info("%s: program %d, of %d calls, with %d inputs: %s", self.name, self.programs, count, len(args), why)
        return super().run(*args, **kwargs)

    def run_node(self, node: fx.Node) -> Any:
        """The value of a node."""
        try:
            return super().run_node(node)
        except Exception:
            self.failed = node
            raise


def _results(is_forward: bool) -> bounded.Results:
    """What becomes of the results of a graph of the model that is being compiled."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    if metadata is None:
        return bounded.Results()
    first = metadata.num_mutated_inp_runtime_indices
    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    aliases = frozenset(first + i for i, info in enumerate(metadata.output_info) if info.output_type not in own)
    return bounded.Results(metadata.num_forward_returns if is_forward else sys.maxsize, aliases)


def _program(module: fx.GraphModule, options: dict[str, Any], results: bounded.Results) -> partition.Runner:
    """A graph of ATen ops as one program, or as one for each set of upper bounds of the sizes that change."""
    name = f"compiled graph {next(_numbers)}"
    traced = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    sizes = [size for each in traced for size in (each.shape if isinstance(each, torch.Tensor) else [each])]
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return _exact(name, module, options)
    return bounded.program(name, module, options.get("fast_math", False), results, lambda: _exact(name, module, options))


def _exact(name: str, module: fx.GraphModule, options: dict[str, Any]) -> partition.Runner:
    """A graph of ATen ops as one program, called with the list of its inputs, which it empties.

    A node that cannot be recorded, since its kernel reads values on the host, runs by itself from then on, between programs. If
    the user's arguments are at fault, they are refused there.
    """
    arguments = [node for node in module.graph.nodes if node.op == "placeholder"]
    written = {node.args[0] for node in module.graph.nodes if node.target is torch.ops.aten.copy_.default}
    overwritten = [i for i, node in enumerate(arguments) if node in written]
    recording = _Recording(module)
    recording.name = name
    run: partition.Runner = _C._CompiledGraph(name, len(arguments), options.get("fast_math", False), recording.run, overwritten)

    def call(values: list[Any]) -> Any:
        nonlocal run
        try:
            return run(values)
        except Exception as error:
            if recording.failed is None:
                raise
            on_host = {recording.failed: partition.refused(recording.failed, error)}
        run = partition.split(module, lambda part: _program(part, options, bounded.Results()), on_host)
        recording.failed = None
        return run(values)

    return call


def _run_of(module: fx.GraphModule, options: dict[str, Any], results: bounded.Results) -> partition.Runner:
    """What runs a graph that AOTAutograd made.

    Its views become reshapes: whether a view is possible depends on strides, and a kernel of ours may have others than torch
    traced. Zeros without memory, as the gradient of ``sgn`` is, become plain ones.
    """
    for node in module.graph.nodes:
        node.target = _REPLACED.get(node.target, node.target)
    module.recompile()
    return partition.split(module, lambda part: _program(part, options, results if part is module else bounded.Results()))


def _autograd(graph: fx.GraphModule, inputs: Sequence[Any], **compilers: Any) -> Callable[..., Any]:
    """AOTAutograd as torch's own backends call it.

    The function for that, ``torch._dynamo.backends.common.aot_autograd``, imports Inductor for its logs.
    """
    if any(isinstance(each, (list, tuple, dict)) for each in inputs):
        return flatten_graph_inputs(graph, inputs, functools.partial(_autograd, **compilers))
    counters["aot_autograd"]["total"] += 1
    try:
        run = aot_module_simplified(graph, inputs, **compilers)
    except TensorifyScalarRestartAnalysis:
        raise
    except Exception:
        counters["aot_autograd"]["not_ok"] += 1
        raise
    counters["aot_autograd"]["ok"] += 1
    return disable(run, reason="do not trace AOT-compiled graph")


def tpu(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured; see docs/compile.md."""
    known = options or {}
    _check(mode, known)

    def compiler(find_results: Callable[[], bounded.Results]) -> SerializableAOTDispatchCompiler:
        return cache.compiler(lambda: functools.partial(_run_of, results=find_results()), known)

    backward = compiler(bounded.Results)
    compile_backward = disable(backward.compiler_fn, reason="do not trace backward compiler function")
    backward.compiler_fn = lambda *arguments: disable(
        compile_backward(*arguments), reason="do not trace generated backwards pass"
    )
    # XLA finds common subexpressions itself, and torch's pass for them imports all of Inductor.
    with cache.enabled(known), functorch_config.patch(cse=False):
        return _autograd(
            graph,
            inputs,
            fw_compiler=compiler(functools.partial(_results, is_forward=True)),
            bw_compiler=backward,
            inference_compiler=compiler(functools.partial(_results, is_forward=False)),
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )
