"""Decompositions of ops that have no lowering, taken from torch itself.

The bridge asks once per signature; the decomposition's own ops are recorded and become one program.
"""

from collections.abc import Callable
from typing import Any

# Ops whose decomposition in torch reads values on the host or costs more than the CPU: they go to the fallback.
_EXCLUDED = frozenset({"aten::nonzero"})


def find(name: str) -> Callable[..., Any] | None:
    """Returns torch's decomposition of an overload such as ``"aten::logit_backward"`` or ``"aten::foo.out"``, or None."""
    base, _, overload = name.partition(".")
    if base in _EXCLUDED:
        return None
    import torch
    from torch._decomp import decomposition_table

    namespace, _, op_name = base.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op_name)
    return decomposition_table.get(getattr(packet, overload or "default"))
