"""torch's higher-order operators (``cond``, ``scan`` and others): what they must know of "tpu" before anything is compiled."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


def _pass_autocast() -> None:
    """Autocast passes through to what their functions hold, as that of CPU and CUDA does; they have no kernels for it."""
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(AUTOCAST)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(AUTOCAST)


def _patch_associative_scan() -> None:
    """Takes ``combine_mode="pointwise"``, its default, which torch refuses off CUDA, as the generic mode.

    That maps the function over slices, whatever it is made of, so the results are the same. There is no registration for modes.
    Dynamo traces the new function as it did torch's.
    """
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


def install() -> None:
    """Does both, before operators get kernels of their own for autocast."""
    _pass_autocast()
    _patch_associative_scan()
