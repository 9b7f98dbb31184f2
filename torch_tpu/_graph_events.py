"""What torch.tpu.explain is told of graphs of torch.compile: what runs between their programs, which have one for each size.

Apart from torch_tpu.compiler, which loads Dynamo: whoever listens does so before that is needed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class HostPart(NamedTuple):
    """An op of a compiled graph that ran by itself between programs."""

    op: str  #: "aten.linalg_eigvals.default"
    site: str | None  #: "file.py:12", where the captured function calls it
    reason: str  #: why no program holds it


class ExactSizes(NamedTuple):
    """A compiled graph whose sizes change, and which has a program for each size."""

    graph: str  #: "compiled graph 3"
    reason: str  #: why there is none for upper bounds, with the op and its line


#: Each is called with what happens. Empty but for the time of an explained call.
listeners: list[Callable[[HostPart | ExactSizes], None]] = []


def tell(found: Sequence[HostPart | ExactSizes]) -> None:
    """Tells those who listen that these ran."""
    for listener in listeners:
        for each in found:
            listener(each)
