"""The TPU compiler as judge of the lowerings, on a machine without a TPU: ``python -m torch_tpu tpu-compile``.

``calls`` lists calls that reach the rows of the table of lowered operators, ``sweep`` runs them on the virtual TPU and collects
the programs that they would be on a TPU, ``compiler`` lets libtpu compile those for topologies, and ``command`` puts the three
together and writes the verdicts down. docs/tpu-compiler.md explains it for users.
"""

import contextlib
from collections.abc import Iterator

from torch_tpu import _C


@contextlib.contextmanager
def collect(folder: str) -> Iterator[None]:
    """While inside, each call with a new signature leaves the program that it would be on a TPU in ``folder``.

    A call whose signature the process has seen before is not lowered again, so collect in a fresh process. ``core/aot/aot.h``
    describes the files.

    Raises:
        ValueError: at the end, if a program could not be written.
    """
    _C._aot_collect(folder)
    try:
        yield
    finally:
        _C._aot_collect(None)
