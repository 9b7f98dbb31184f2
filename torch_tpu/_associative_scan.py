"""associative_scan: torch refuses ``combine_mode="pointwise"``, a kernel of Triton's, off CUDA; on "tpu" it is the generic mode.

The generic mode maps the function over slices, whatever it is made of, so the results are those of the pointwise one.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def install() -> None:
    """Patches the function, which has no registration for modes. Dynamo traces the new one as it did torch's."""
    usual = torch._higher_order_ops.associative_scan

    @functools.wraps(usual)
    def associative_scan(
        combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
    ) -> Any:
        on_tpu = any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in pytree.tree_leaves(xs))
        if on_tpu and combine_mode == "pointwise":
            combine_mode = "generic"
        return usual(combine_fn, xs, dim, reverse, combine_mode)

    torch._higher_order_ops.associative_scan = associative_scan
    module: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    module.associative_scan = associative_scan
