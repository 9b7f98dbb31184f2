"""Streams and events.

A TPU runs its programs in one queue, so streams order nothing among themselves; events and waits tell the truth about that
queue: ``query`` is true only when the work is done, and ``elapsed_time`` measures between real completions.
"""

from typing import Any

import torch

from torch_tpu.tpu.devices import _DeviceLike, index_of


class Stream(torch.Stream):
    """A stream of a device, as ``torch.cuda.Stream``.

    Args:
        device: the device; the current one if None.
        priority: accepted for compatibility.
        pinned: the TorchTPU API's hint of a core, "unpinned", "tensorcore" or "sparsecore"; there is one queue, so it
            changes nothing.
    """

    def __new__(  # noqa: D102
        cls, device: _DeviceLike = None, priority: int = 0, *, pinned: str | None = None, **kwargs: Any
    ) -> "Stream":
        if pinned not in (None, "unpinned", "tensorcore", "sparsecore"):
            raise ValueError(f"pinned must be 'unpinned', 'tensorcore' or 'sparsecore', got {pinned!r}")
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("tpu", index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns (least, greatest) priority: a TPU has one."""
        return 0, 0


class _EventType(type):
    """Makes ``isinstance(event, torch.tpu.Event)`` true for every event of a TPU."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(torch.Event, metaclass=_EventType):
    """A point in a device's queue, as ``torch.cuda.Event``.

    Calling the class makes a plain ``torch.Event``, since its ``elapsed_time`` takes no subclass.

    Args:
        enable_timing: whether ``elapsed_time`` may be asked.
        blocking: accepted for compatibility.
        interprocess: not supported.
        external: accepted for compatibility: it matters to CUDA graphs only.
        device: accepted for compatibility: an event takes the device of the stream that records it.
    """

    def __new__(  # type: ignore[misc]  # noqa: D102
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: _DeviceLike = None,
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("interprocess events are not supported on TPU")
        index_of(device)  # raises for a device of another type
        return torch.Event(device="tpu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: _DeviceLike = None) -> torch.Stream:
    """Returns this thread's current stream of a device."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: _DeviceLike = None) -> torch.Stream:
    """Returns the default stream of a device."""
    index = index_of(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=torch._C._autograd.DeviceType.PrivateUse1.value)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` this thread's current stream; None does nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that selects a stream (and its device); see ``stream``."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[torch.Stream] = []

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._previous.append(current_stream(self.stream.device))
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            set_stream(self._previous.pop())


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that selects ``stream``; None does nothing."""
    return StreamContext(stream)
