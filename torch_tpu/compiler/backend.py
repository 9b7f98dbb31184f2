"""``torch.compile(backend="tpu")``.

Dynamo captures the graph, AOTAutograd makes it functional and splits it into forward and backward. Each is run once, op by
op, while the core records (bridge/compiled.cpp): the same kernels and lowerings as in eager mode, but one program.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_tpu import _C
from torch_tpu.compiler import cache, partition

# torch.compile's modes. XLA has no cheaper and no longer compilation to offer, and launches of programs cost next to nothing.
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# fast_math: XLA may change values, as in (x + 1e8) - 1e8, and keep bfloat16 sums in float32.
_OPTIONS = {"fast_math": bool}

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


def _program(module: fx.GraphModule, options: dict[str, Any]) -> partition.Runner:
    """A graph of ATen ops as one program, called with the list of its inputs, which it empties.

    A node that cannot be recorded, since its kernel reads values on the host, runs by itself from then on, between programs. If
    the user's arguments are at fault, they are refused there.
    """
    arguments = sum(node.op == "placeholder" for node in module.graph.nodes)
    recording = _Recording(module)
    recording.name = f"compiled graph {next(_numbers)}"
    run: partition.Runner = _C._CompiledGraph(recording.name, arguments, options.get("fast_math", False), recording.run)

    def call(values: list[Any]) -> Any:
        nonlocal run
        try:
            return run(values)
        except Exception as error:
            if recording.failed is None:
                raise
            on_host = {recording.failed: partition.refused(recording.failed, error)}
        run = partition.split(module, lambda part: _program(part, options), on_host)
        recording.failed = None
        return run(values)

    return call


def _run_of(module: fx.GraphModule, options: dict[str, Any]) -> partition.Runner:
    """What runs a graph that AOTAutograd made."""
    return partition.split(module, lambda part: _program(part, options))


def tpu(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured; see docs/compile.md."""
    known = options or {}
    _check(mode, known)

    with cache.enabled(known):
        return aot_autograd(
            fw_compiler=cache.compiler(_run_of, known),
            bw_compiler=cache.compiler(_run_of, known),
            inference_compiler=cache.compiler(_run_of, known),
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )(graph, inputs)
