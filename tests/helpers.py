"""What the tests of operators share: moving arguments to the device, weights for gradients, and layouts that views give."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Views of a tensor of three dimensions (each at least 2 long).
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1),
    "sliced": lambda x: x[1:, :, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1),
    "empty": lambda x: x[:, :0],
}


def picture_layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """Views of a batch of pictures [N, C, H, W]."""
    return [x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, 1:, ::2], x[:1].expand(x.shape)]


def to_tpu(x: Any) -> Any:
    """Moves the tensors in a nest of lists and tuples; each is a leaf that requires a gradient if it did."""
    if isinstance(x, (list, tuple)):
        return type(x)(to_tpu(item) for item in x)
    return x.detach().to("tpu").requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def flat(results: Any) -> list[torch.Tensor]:
    """One tensor or several as a list, without the absent ones."""
    return [results] if isinstance(results, torch.Tensor) else [x for x in results if x is not None]


def weights_like(y: torch.Tensor) -> torch.Tensor:
    """From -1 to 2, so that no two elements of a result weigh the same in a gradient."""
    return torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y)


def training_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A whole training step, of an input and a target: it gives the loss."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def run_python(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    """Runs Python in a process of its own, in the repository; an environment variable set to "" is removed."""
    environment = {key: value for key, value in {**os.environ, **env}.items() if value}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def output_of(code: str, **env: str) -> str:
    """What a program prints that ends well, without the last newline."""
    result = run_python("-c", code, **env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()
