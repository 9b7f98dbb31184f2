"""torch_tpu: the device "tpu" for PyTorch.

Importing this package (``import torch`` does it by itself) registers the device; nothing is started and nothing is printed.
The first tensor on "tpu" finds a PJRT plugin: libtpu where a TPU is attached, else an XLA CPU plugin that acts as a virtual
TPU. Everything a user calls is in ``torch.tpu`` and ``torch.accelerator``.
"""

import atexit
import os
import sysconfig

import torch

if not torch.__version__.startswith("2.13."):
    raise ImportError(
        f"torch_tpu {'0.1.0'} is built for torch 2.13 (its C++ interfaces change between minor versions), "
        f"but torch {torch.__version__} is installed. Install torch==2.13.0."
    )

from torch_tpu import _C

__version__ = "0.1.0"


def _search_dirs() -> list[str]:
    """Folders in which pip may have put PJRT plugins, most likely first."""
    candidates = [
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))),
    ]
    return list(dict.fromkeys(candidates))


def _register() -> None:
    """Registers the device, its module ``torch.tpu`` and the methods ``Tensor.tpu()``, ``Module.tpu()`` and so on."""
    _C._set_search_dirs(_search_dirs())
    torch.utils.rename_privateuse1_backend("tpu")
    from torch_tpu import _decompositions, _dlpack, _flex_attention, _higher_order, _inductor, _storage, tpu
    from torch_tpu.tpu import progress

    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # The TPU's own half precision is bfloat16; torch's default for new backends is float16.
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    _C._set_decomposition_hook(_decompositions.find)
    _C._set_recompilation_warning(tpu.RecompilationWarning)
    _C._set_progress_callback(progress.report, 2000)
    _dlpack.install()
    _storage.install()
    _inductor.install()
    _higher_order.install()
    _flex_attention.install()
    if os.environ.get("TORCH_TPU_REMOTE_CACHE"):
        from torch_tpu import _remote_cache

        _remote_cache.install(os.environ["TORCH_TPU_REMOTE_CACHE"], os.environ.get("TORCH_TPU_REMOTE_TIMEOUT", ""))
    # XLA's CPU plugins crash when a program still runs while the process exits.
    atexit.register(_C._settle)


_register()
