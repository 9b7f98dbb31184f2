"""Counters: compiles, host waits and fallbacks can be read, logged and asserted to be flat."""

from typing import Any

from torch_tpu import _C


def counters() -> dict[str, Any]:
    """Returns the counts since the process began or ``reset_counters``.

    Keys: ``compiles`` (programs given to the compiler), ``cache_hits`` (programs found compiled in this process), ``disk_hits``
    and ``remote_hits`` (programs loaded from the cache folder or the remote cache, docs/cache.md), ``plan_hits`` (calls whose
    signature was seen before), ``graph_hits`` (graphs of deferred calls that were seen before), ``executions`` (programs run),
    ``fallbacks`` (a dict: calls that ran on the CPU, by op), ``host_waits`` (times the host waited for the device),
    ``bytes_to_device`` and ``bytes_from_device``.
    """
    return _C._counters()


def reset_counters() -> None:
    """Sets every counter to zero."""
    _C._reset_counters()
