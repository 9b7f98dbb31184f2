"""What runs between the programs of a graph of torch.compile, and why: told to torch.tpu.explain.

Apart from torch_tpu.compiler, which loads Dynamo: whoever listens does so before that is needed.
"""

from collections.abc import Callable
from typing import NamedTuple


class HostPart(NamedTuple):
    """An op of a compiled graph that ran by itself between programs."""

    op: str  #: "aten.linalg_eigvals.default"
    site: str | None  #: "file.py:12", where the captured function calls it
    reason: str  #: why no program holds it


#: Each is called with every op that runs so. Empty but for the time of an explained call.
listeners: list[Callable[[HostPart], None]] = []


def tell(parts: list[HostPart]) -> None:
    """Tells those who listen that these ran."""
    for listener in listeners:
        for part in parts:
            listener(part)
