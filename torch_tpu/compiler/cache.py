"""Compiled graphs in AOTAutograd's cache, so that a second process traces nothing below Dynamo's graph.

AOTAutograd keeps what a compiler gives if that is an ``OutputCode`` (``SerializableAOTDispatchCompiler``); ours holds the
graph of ATen ops, which the second process records anew: the program itself comes from the compile cache (docs/cache.md).
Everything else is torch's: the folder (``TORCHINDUCTOR_CACHE_DIR``), its switches, guards, counters. What cannot be kept is
compiled as if there were no cache.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
from torch import fx
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options

from torch_tpu import _C
from torch_tpu.compiler import partition

Make = Callable[[fx.GraphModule, dict[str, Any]], Callable[[list[Any]], Any]]

# Fake tensors in the metadata would take three quarters of the time that it takes to read a graph.
_OPTIONS = Options(ops_filter=None, node_metadata_key_filter=partition.KEPT.__contains__)


def _check(graph: fx.Graph) -> None:
    """Refuses what AOTAutograd would not call as before, or what belongs to the process.

    Tokens, which order effects, are arguments that AOTAutograd leaves out when it has read an entry. Reading symbolic sizes
    would put the first process's symbols into the second's.
    """
    for node in graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            raise autograd_cache.BypassAOTAutogradCache("effects in a fixed order")
        value = node.meta.get("val")
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, (torch.SymInt, torch.SymFloat, torch.SymBool)) or (
                isinstance(each, torch.Tensor) and each._has_symbolic_sizes_strides
            ):
                raise autograd_cache.BypassAOTAutogradCache("sizes that change")


class CompiledCode(OutputCode):
    """A graph that runs on "tpu", and how to make it run again in another process."""

    def __init__(self, module: fx.GraphModule, options: dict[str, Any], make: Make) -> None:
        super().__init__()
        self._boxed_call = True
        self._options = options
        self._make = make
        self._module: fx.GraphModule | None = module
        self._serialized: bytes | None = None
        self._run: Callable[[list[Any]], Any] | None = make(module, options)

    def __call__(self, inputs: Any) -> Any:
        """Runs it with the list of its inputs, which it empties."""
        assert self._run is not None
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Keeps the graph as bytes; called on a copy."""
        assert self._module is not None
        for module in self._module.modules():
            if isinstance(module, fx.GraphModule):
                _check(module.graph)
                partition.prepare_to_write(module.graph)
        try:
            self._serialized = GraphPickler.dumps(self._module, _OPTIONS)
        except Exception as error:
            raise autograd_cache.BypassAOTAutogradCache(f"a graph that cannot be written: {error}") from error
        self._module = self._run = None

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Makes it run after it was read."""
        if self._run is None:
            assert self._serialized is not None
            module = GraphPickler.loads(self._serialized, FakeTensorMode())
            assert isinstance(module, fx.GraphModule)
            self._module, self._serialized = module, None
            self._run = self._make(module, self._options)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing: there are no such kernels."""


@functools.cache
def _own_version() -> str:
    """What of torch_tpu decides how a graph is traced: its version, its Python, and the table of ops."""
    digest = hashlib.sha256(importlib.metadata.version("torch_tpu").encode())
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(repr(_C._ops()).encode())
    return digest.hexdigest()


class _Details(autograd_cache.AOTAutogradCacheDetails):
    """What a cached graph depends on: as torch's, less what only Inductor's code depends on.

    Torch's own takes 1.3 s in a new process to hash torch's sources and to load Inductor's code generators.
    """

    def _init_fx_graph_hash_details(self, gm: Any, example_inputs: Any, fx_config: Any) -> None:
        if any(isinstance(value, torch.Tensor) for module in gm.modules() for value in vars(module).values()):
            raise autograd_cache.BypassAOTAutogradCache("tensors in the graph")
        self.gm = gm
        self.example_inputs = example_inputs
        self.cache_key_tag = torch.compiler.config.cache_key_tag
        self.versions = torch.__version__, torch.version.git_version, _own_version()
        self.default_dtype = torch.get_default_dtype()
        self.default_device = str(torch.get_default_device())
        self.matmul_precision = torch.get_float32_matmul_precision(), _C._get_precision()
        self.options = _options_of_the_call


_options_of_the_call: dict[str, Any] = {}


@contextlib.contextmanager
def enabled(options: dict[str, Any]) -> Iterator[None]:
    """AOTAutograd keeps the graphs that are compiled in this block, under keys of ours.

    The backward graph is handed over with the forward one, since both are one entry of the cache.
    """
    global _options_of_the_call
    before, _options_of_the_call = _options_of_the_call, options
    try:
        with (
            torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
            mock.patch.object(autograd_cache, "AOTAutogradCacheDetails", _Details),
        ):
            yield
    finally:
        _options_of_the_call = before


def compiler(find_make: Callable[[], Make], options: dict[str, Any]) -> SerializableAOTDispatchCompiler:
    """What AOTAutograd calls with a graph. `find_make` then gives what makes the callable, a function that can be pickled."""
    return SerializableAOTDispatchCompiler(CompiledCode, lambda module, _: CompiledCode(module, options, find_make()))
