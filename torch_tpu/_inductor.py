"""Plain ``torch.compile(model)``: graphs with TPU tensors go to the backend "tpu".

torch's default backend, Inductor, has no registration for a compiler that is not made of its own parts, so the class that
torch.compile puts around it is patched.
"""

from typing import Any

import torch


def install() -> None:
    """Patches the default backend; nothing of Dynamo or Inductor is loaded."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    inductor = wrapper.__call__

    def call(self: Any, graph: Any, inputs: Any) -> Any:
        if not any(isinstance(each, torch.Tensor) and each.device.type == "tpu" for each in inputs):
            return inductor(self, graph, inputs)
        from torch_tpu.compiler import tpu

        return tpu(graph, inputs)  # its own options are Inductor's

    wrapper.__call__ = call
