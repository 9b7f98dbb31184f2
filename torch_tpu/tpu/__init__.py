"""``torch.tpu``: what ``torch.cuda`` is for CUDA devices.

Devices, streams, events, random state, memory statistics, eager modes, matmul precision, counters. Names and meanings are those
of ``torch.cuda`` wherever it has them. Asking for the number of devices starts nothing; the first tensor does.
"""

import sys
import types
from typing import Any

from torch_tpu import _C
from torch_tpu.tpu import modes
from torch_tpu.tpu.counters import counters, reset_counters
from torch_tpu.tpu.devices import (
    DeviceProperties,
    _is_in_bad_fork,  # noqa: F401  (asked by torch)
    _lazy_init,  # noqa: F401
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.tpu.diagnostics import RecompilationWarning, explain, forbid_compiles, forbid_waits, set_log
from torch_tpu.tpu.exporting import Exported, export, load_exported
from torch_tpu.tpu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_tpu.tpu.modes import EagerMode, Precision, pending_graph, precision, set_eager_mode
from torch_tpu.tpu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.streams import Event, Stream, StreamContext, current_stream, default_stream, set_stream, stream

__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Event",
    "Exported",
    "Precision",
    "RecompilationWarning",
    "Stream",
    "StreamContext",
    "allow_excess_precision",
    "can_device_access_peer",
    "counters",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "dynamism",
    "eager_mode",
    "empty_cache",
    "explain",
    "export",
    "fallback",
    "forbid_compiles",
    "forbid_waits",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "load_exported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "pending_graph",
    "precision",
    "reset_accumulated_memory_stats",
    "reset_counters",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_log",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


class _TpuModule(types.ModuleType):
    """The module's class, so that modes read and assign like attributes."""

    @property
    def eager_mode(self) -> EagerMode:
        """How calls run now; assign an ``EagerMode`` to change it for the process, or use ``set_eager_mode``."""
        return modes.get_eager_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        modes.set_eager_mode(mode)

    @property
    def allow_excess_precision(self) -> bool:
        """Whether intermediate results may keep more bits than their dtype has: a permission, not used yet."""
        return modes.get_allow_excess_precision()

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        modes.set_allow_excess_precision(allow)

    @property
    def dynamism(self) -> str:
        """Which programs ``torch.compile`` makes for sizes that change; see docs/compile.md.

        ``"bucket"``, at first: one for each power of two that is an upper bound of sizes. ``"bounded"``: one for the largest
        bound that was needed so far. ``"off"``: one for each size.
        """
        return modes.get_dynamism()

    @dynamism.setter
    def dynamism(self, name: str) -> None:
        modes.set_dynamism(name)

    @property
    def fallback(self) -> str:
        """What happens at an op that only the CPU can run: ``"error"``, ``"warn"`` (once per op) or ``"allow"``.

        The first value comes from ``TORCH_TPU_FALLBACK``, ``"warn"`` if unset.
        """
        return _C._get_fallback()

    @fallback.setter
    def fallback(self, policy: str) -> None:
        if policy not in ("error", "warn", "allow"):
            raise ValueError(f"torch.tpu.fallback must be 'error', 'warn' or 'allow', got {policy!r}")
        _C._set_fallback(policy)

    @property
    def _initialized(self) -> bool:
        """What ``torch.utils.checkpoint`` asks before it saves the random state for the recomputation."""
        return is_initialized()

    @property
    def default_generators(self) -> tuple[Any, ...]:
        """The default ``torch.Generator`` of each device."""
        return tuple(_C._default_generator(index) for index in range(device_count()))


sys.modules[__name__].__class__ = _TpuModule
