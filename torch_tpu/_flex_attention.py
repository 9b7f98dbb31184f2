"""FlexAttention: torch refuses devices that its list does not name; the patch lets "tpu" through."""

import torch.nn.attention.flex_attention as flex
from torch import Tensor


def install() -> None:
    """Patches the check of the device, which has no registration. Dynamo traces the new one as it did torch's."""
    usual = flex._validate_device

    def validate(query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.device.type != "tpu":
            usual(query, key, value)

    flex._validate_device = validate
