"""Graphs of changing sizes as programs for upper bounds of the sizes; see docs/compile.md."""

from torch_tpu.compiler.bounded.program import Results, program

__all__ = ["Results", "program"]
