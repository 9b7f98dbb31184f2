"""Memory statistics, under the names of torch.cuda. Bytes are those of live device buffers and unwritten tensors."""

from collections import OrderedDict
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu.devices import _DeviceLike, index_of


def memory_stats(device: _DeviceLike = None) -> OrderedDict[str, Any]:
    """Returns torch's standard statistics, such as ``"allocated_bytes.all.peak"``."""
    return torch.accelerator.memory.memory_stats(index_of(device))


def _bytes(device: _DeviceLike, key: str) -> int:
    return _C._memory(index_of(device))[key]


def memory_allocated(device: _DeviceLike = None) -> int:
    """Returns the bytes held by tensors now."""
    return _bytes(device, "current")


def max_memory_allocated(device: _DeviceLike = None) -> int:
    """Returns the most bytes held at once since the last ``reset_peak_memory_stats``."""
    return _bytes(device, "peak")


def memory_reserved(device: _DeviceLike = None) -> int:
    """Returns the bytes held from the device: the plugin's allocator keeps no cache that can be seen, so as allocated."""
    return _bytes(device, "current")


def max_memory_reserved(device: _DeviceLike = None) -> int:
    """Returns the most bytes in use at once, those included that a program needed for itself while it ran.

    With ``EagerMode.DEFER_AND_FUSE`` intermediate results live inside programs: ``max_memory_allocated`` does not see them.
    """
    return _bytes(device, "reserved_peak")


def reset_peak_memory_stats(device: _DeviceLike = None) -> None:
    """Makes the present bytes the peak."""
    _C._reset_peak_memory(index_of(device))


def reset_accumulated_memory_stats(device: _DeviceLike = None) -> None:
    """Sets the totals of allocated and freed bytes and blocks back to zero."""
    _C._reset_accumulated_memory(index_of(device))


def mem_get_info(device: _DeviceLike = None) -> tuple[int, int]:
    """Returns (free, total) bytes of a device."""
    return _C._mem_get_info(index_of(device))


def empty_cache() -> None:
    """Gives back what nothing holds: scalars and staging buffers, and on a virtual TPU the memory of freed tensors."""
    _C._empty_cache()


def memory_summary(device: _DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns the statistics of a device as text, one line each."""
    snapshot = _C._memory(index_of(device))
    return "\n".join(f"{key:>20}  {value:,}" for key, value in snapshot.items())
