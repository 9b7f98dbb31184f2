"""Entry point of the ``torch.backends`` group: ``import torch`` alone brings the device "tpu".

This module stands apart from ``torch_tpu`` so that asking for the package by name always loads it, while autoload may decline:
where another accelerator is present and no TPU is, ``torch.accelerator`` stays with it until ``import torch_tpu`` or
``TORCH_TPU_AUTOLOAD=1`` asks for the virtual TPU. ``TORCH_TPU_AUTOLOAD=0`` switches autoload off.
"""

import os
import sys


def _other_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()


def _tpu_attached() -> bool:
    """A Google PCI device of the kind that libtpu drives; the same test as the plugin loader's."""
    return any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0")) or "TPU_LIBRARY_PATH" in os.environ


def load() -> None:
    """Called by torch at the end of its own import."""
    wish = os.environ.get("TORCH_TPU_AUTOLOAD", "")
    if wish == "0" or "torch_tpu" in sys.modules:  # the latter: `import torch_tpu` came first and is under way
        return
    if wish != "1" and _other_accelerator() and not _tpu_attached():
        return
    import torch_tpu  # noqa: F401
