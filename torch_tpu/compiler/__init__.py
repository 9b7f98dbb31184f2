"""The backend "tpu" of torch.compile: a graph becomes one program.

torch finds it by its entry point, the first time that somebody asks for a backend: importing torch_tpu does not load Dynamo.
"""

import torch._dynamo.config
import torch._dynamo.trace_rules

from torch_tpu.compiler import control_flow, flex_attention, optimizers
from torch_tpu.compiler.backend import tpu

# ``loss.backward()`` inside a compiled function is a part of its graph.
torch._dynamo.config.trace_autograd_ops = True
optimizers.register()
control_flow.register()
flex_attention.register()
# What torch.tpu's functions do is no part of graphs: where one is called, a graph ends.
torch._dynamo.trace_rules.add("torch_tpu.tpu")

__all__ = ["tpu"]
