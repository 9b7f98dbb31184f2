"""Devices: how many, which is current, what they are."""

import dataclasses
from typing import Any

import torch

from torch_tpu import _C

# What torch.device and an index accept.
_DeviceLike = torch.device | str | int | None


def index_of(device: _DeviceLike, optional: bool = True) -> int:
    """Returns the index that ``device`` names; ``None`` and a bare "tpu" mean the current device.

    Raises ValueError for a device of another type.
    """
    if device is None:
        if not optional:
            raise ValueError("expected a device, got None")
        return current_device()
    if isinstance(device, int):
        return current_device() if device < 0 else device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return current_device() if device.index is None else device.index


def is_available() -> bool:
    """Whether there is a device: a TPU, or a plugin for a virtual one. Starts nothing."""
    return device_count() > 0


def device_count() -> int:
    """Number of devices; ``TORCH_TPU_VIRTUAL_DEVICES`` (default 1) on a virtual TPU. Starts nothing."""
    return _C._device_count()


def is_initialized() -> bool:
    """Whether a plugin is loaded and usable in this process."""
    return _C._started() and not _C._in_bad_fork()


def init() -> None:
    """Finds and loads the plugin now instead of at the first tensor. Does nothing the second time."""
    _C._start()


def _lazy_init() -> None:
    _C._start()


def _is_in_bad_fork() -> bool:
    return _C._in_bad_fork()


def current_device() -> int:
    """Index of this thread's current device."""
    return _C._current_device()


def set_device(device: _DeviceLike) -> None:
    """Makes ``device`` this thread's current device; a negative index does nothing."""
    if isinstance(device, int) and device < 0:
        return
    _C._set_device(index_of(device, optional=False))


def synchronize(device: _DeviceLike = None) -> None:
    """Waits for all work of a device; raises the failure of a program that ran since the last wait."""
    _C._synchronize(index_of(device))


class device:  # noqa: N801  (torch.cuda.device's name)
    """Context manager that changes the current device.

    Args:
        device: device or index to select; ``None`` or a negative index does nothing.
    """

    def __init__(self, device: _DeviceLike) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> "device":
        if self.idx >= 0:
            self.prev_idx = current_device()
            _C._set_device(self.idx)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.idx >= 0:
            _C._set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager that changes the current device to that of a tensor or storage; nothing for others."""

    def __init__(self, obj: Any) -> None:
        on_tpu = getattr(getattr(obj, "device", None), "type", None) == "tpu"
        super().__init__(obj.device if on_tpu else None)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device.

    Attributes:
        name: "TPU v5e" and so on, "virtual TPU (XLA CPU)" for a virtual one.
        platform: PJRT's platform name, "tpu" or "cpu".
        total_memory: bytes.
        multi_processor_count: cores that one device has, 1.
        generation: TPU generation, 0 for a virtual TPU.
    """

    name: str
    platform: str
    total_memory: int
    multi_processor_count: int
    generation: int


def get_device_properties(device: _DeviceLike = None) -> DeviceProperties:
    """Returns the properties of a device; starts the runtime."""
    return DeviceProperties(**_C._device_properties(index_of(device)))


def get_device_name(device: _DeviceLike = None) -> str:
    """Returns the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: _DeviceLike = None) -> tuple[int, int]:
    """Returns (TPU generation, 0); (0, 0) for a virtual TPU."""
    return get_device_properties(device).generation, 0


def can_device_access_peer(device: _DeviceLike, peer_device: _DeviceLike) -> bool:
    """Whether tensors can be copied between two devices without the host: always, between different ones."""
    return index_of(device) != index_of(peer_device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 is the TPU's native matmul type."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("tpu", dtype=...)`` takes."""
    return [torch.bfloat16, torch.float16]
