"""Byte swapping of storages on the TPU.

``UntypedStorage.byteswap`` goes to C++ code of torch that swaps at the storage's address, whatever its device. There is nothing
to touch at a TPU storage's address: the process would die. The bytes are swapped on the host instead. No registration can lead
there, so the package replaces torch's method.
"""

import torch

_byteswap_of_torch = torch.UntypedStorage._byteswap


def _byteswap(self: torch.UntypedStorage, element_size: int) -> None:
    if self.device.type != "tpu":
        return _byteswap_of_torch(self, element_size)
    host = self.cpu()
    _byteswap_of_torch(host, element_size)
    self.copy_(host)


def install() -> None:
    """Teaches ``UntypedStorage.byteswap`` the device "tpu"."""
    torch.UntypedStorage._byteswap = _byteswap  # type: ignore[assignment, method-assign]
