"""Step time of the three examples' models on "tpu" beside CPU torch, and the cost of the first step.

    python bench/models.py [--rounds 7] [--precision highest]

Both devices train the same model on the same data in alternating rounds of one run. Printed: medians, the ratio of the medians
(goal: 1.2x at precision "highest"), seconds and compiles of the first step.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TORCH_TPU_CACHE_DIR", "off")  # the first step compiles; bench/cache.py measures what the cache saves

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import digits
import transformer

Step = Callable[[], torch.Tensor]


def classifier_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> Step:
    """One training step of a classifier."""

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_mlp(device: str) -> Step:
    """examples/mlp.py: 512-1024-10, batch 64, SGD with momentum."""
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return classifier_step(model, optimizer, torch.randn(64, 512).to(device), torch.randint(0, 10, (64,)).to(device))


def make_digits(device: str) -> Step:
    """examples/digits.py: batch 64, AdamW."""
    model = digits.DigitsNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return classifier_step(model, optimizer, torch.randn(64, 1, 8, 8).to(device), torch.randint(0, 10, (64,)).to(device))


def make_transformer(device: str) -> Step:
    """examples/transformer.py: batch 4, sequence 128, AdamW."""
    model = transformer.Transformer(96).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 96, (4, 129))
    return classifier_step(model, optimizer, tokens[:, :-1].to(device), tokens[:, 1:].contiguous().to(device))


MODELS = {"mlp": (make_mlp, 20), "digits": (make_digits, 10), "transformer": (make_transformer, 4)}


def measure(name: str, rounds: int) -> None:
    """Prints one row."""
    make, steps = MODELS[name]
    loops, times = {}, {"tpu": [], "cpu": []}
    first = compiles = 0.0
    for device in ("tpu", "cpu"):
        torch.manual_seed(0)
        loops[device] = make(device)
        before, begin = torch.tpu.counters()["compiles"], time.perf_counter()
        loops[device]().item()
        if device == "tpu":
            first, compiles = time.perf_counter() - begin, torch.tpu.counters()["compiles"] - before
        for _ in range(2):
            loops[device]().item()
    for _ in range(rounds):
        for device, step in loops.items():
            begin = time.perf_counter()
            for _ in range(steps):
                loss = step()
            loss.item()
            times[device].append((time.perf_counter() - begin) / steps)
    tpu, cpu = (statistics.median(times[device]) * 1e3 for device in ("tpu", "cpu"))
    ratio = statistics.median(a / b for a, b in zip(times["tpu"], times["cpu"], strict=True))
    print(f"{name:<12}{tpu:>9.2f} ms{cpu:>9.2f} ms{ratio:>8.2f}x{first:>10.2f} s{compiles:>9.0f}")


def main() -> None:
    """Measures all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=["medium", "high", "highest"], default="highest")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision(options.precision)
    print(f"{'model':<12}{'tpu step':>12}{'CPU torch':>12}{'ratio':>9}{'first step':>12}{'compiles':>9}")
    for name in options.models:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
