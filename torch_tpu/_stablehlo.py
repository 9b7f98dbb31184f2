"""MLIR bytecode and portable artifacts of StableHLO text, by jaxlib's MLIR: an optional package, loaded when asked for.

PJRT plugins read both but write neither, so a library with MLIR is needed once, where the program is exported.
"""

import io
from typing import Any


def _mlir() -> tuple[Any, Any, Any]:
    """A context that knows the programs' dialects, and jaxlib's modules mlir and stablehlo."""
    try:
        from jaxlib import mlir
        from jaxlib.mlir import ir, passmanager  # noqa: F401  (attributes of mlir from here on)
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, stablehlo
    except ImportError as error:
        raise ImportError(
            "torch.tpu.export: the formats 'bytecode' and 'portable' need jaxlib: pip install 'torch_tpu[export]'"
        ) from error
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context, mlir, stablehlo


def bytecode(text: bytes) -> tuple[bytes, str]:
    """MLIR bytecode, and the version of StableHLO whose dialect wrote it."""
    context, mlir, stablehlo = _mlir()
    with context:
        stream = io.BytesIO()
        mlir.ir.Module.parse(text.decode()).operation.write_bytecode(stream)
        return stream.getvalue(), stablehlo.get_current_version()


def portable(text: bytes, version: str | None) -> tuple[bytes, str]:
    """A portable artifact and its version of StableHLO, the current one for None. Ops of CHLO are written in StableHLO's.

    Raises:
        ValueError: the version cannot hold the program, or is none.
    """
    context, mlir, stablehlo = _mlir()
    target = version or stablehlo.get_current_version()
    stablehlo.register_stablehlo_passes()
    with context:
        module = mlir.ir.Module.parse(text.decode())
        mlir.passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        try:
            return stablehlo.serialize_portable_artifact(module, target), target
        except Exception as error:
            raise ValueError(f"no portable artifact of StableHLO {target}: {error}") from error
