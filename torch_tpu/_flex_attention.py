"""FlexAttention: torch refuses devices that its list does not name, and has autocast for CPU and CUDA alone."""

from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention
from torch.amp.autocast_mode import _cast

from torch_tpu._higher_order import AUTOCAST


def _autocast(query: Tensor, key: Tensor, value: Tensor, *others: Any, **keywords: Any) -> Any:
    """As torch's: the operands in autocast's dtype, below autocast."""
    dtype = torch.get_autocast_dtype("tpu")
    operands = _cast((query, key, value), "tpu", dtype)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
        return flex_attention(*operands, *others, **keywords)


def install() -> None:
    """Patches the check of the device, which has no registration and is traced by Dynamo as torch's was; registers autocast."""
    usual = flex._validate_device

    def validate(query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.device.type != "tpu":
            usual(query, key, value)

    flex._validate_device = validate
    flex_attention.py_impl(AUTOCAST)(_autocast)
