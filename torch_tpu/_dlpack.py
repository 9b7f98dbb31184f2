"""DLPack of TPU tensors.

torch exports tensors of a renamed backend (kDLExtDev) and takes them back, but ``Tensor.__dlpack_device__`` compares the
device's type with "privateuse1", the name before the rename, so it knows none of them, and ``torch.from_dlpack(tensor)``
asks it first. No registration can change that, so the package replaces this function of torch.
"""

import enum

import torch
from torch.utils.dlpack import DLDeviceType

_dlpack_device_of_torch = torch.Tensor.__dlpack_device__


def _dlpack_device(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
    if self.device.type != "tpu" or torch.overrides.has_torch_function_unary(self):
        return _dlpack_device_of_torch(self)
    return DLDeviceType.kDLExtDev, self.device.index


def install() -> None:
    """Teaches ``Tensor.__dlpack_device__`` the device "tpu"."""
    _dlpack_device.__name__ = _dlpack_device.__qualname__ = "__dlpack_device__"
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]
