"""Step time and memory of the examples' models on "tpu" in each eager mode, beside CPU torch, and the cost of the first step.

    python bench/models.py [--rounds 7] [--precision highest] [MODEL ...]

Every column is a process of its own that trains the same model on the same data; they take turns, one round each. Printed:
medians per step and their ratio to CPU torch's, round by round (goal: 1.2x at precision "highest"); seconds and compiles of the
first step; and the peak of a later step in MiB, of tensors (max_memory_allocated) and with the programs' own memory
(max_memory_reserved).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TORCH_TPU_CACHE_DIR", "off")  # the first step compiles; bench/cache.py measures what the cache saves

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import digits
import transformer

Step = Callable[[], torch.Tensor]
SIDES = {"Strict": "DEFER_NEVER", "DeferAndFuse": "DEFER_AND_FUSE", "CPU torch": ""}


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


def work(name: str, side: str, precision: str) -> None:
    """A column's process: prints what the first step took, then the seconds per step of one round for each line it is sent."""
    make, steps = MODELS[name]
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(0)
    on_tpu = bool(SIDES[side])
    if on_tpu:
        torch.tpu.set_eager_mode(torch.tpu.EagerMode[SIDES[side]])
        torch.ones(1, device="tpu").item()
        torch.tpu.reset_counters()
    step = make("tpu" if on_tpu else "cpu")
    begin = time.perf_counter()
    step().item()
    found = {"first": time.perf_counter() - begin, "compiles": torch.tpu.counters()["compiles"] if on_tpu else 0}
    for _ in range(2 * steps):
        step()
    step().item()
    if on_tpu:
        torch.tpu.reset_peak_memory_stats()
        for _ in range(steps):
            step()
        torch.tpu.synchronize()
        found["allocated"] = torch.tpu.max_memory_allocated() / 2**20
        found["reserved"] = torch.tpu.max_memory_reserved() / 2**20
    print(json.dumps(found), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        loss.item()
        print(json.dumps((time.perf_counter() - begin) / steps), flush=True)


def start(name: str, side: str, precision: str) -> subprocess.Popen[str]:
    """Starts a column's process. Threads wait without spinning: the processes share the cores."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    if not SIDES[side]:
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # CPU torch as it is alone
    command = [sys.executable, __file__, "--precision", precision, "--side", side, name]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], question: str = "") -> Any:
    """Sends a line, if there is one to send, and reads the answer."""
    assert process.stdin and process.stdout
    process.stdin.write(question)
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def measure(name: str, rounds: int, precision: str) -> None:
    """Prints a model's rows."""
    processes = {side: start(name, side, precision) for side in SIDES}
    found = {side: ask(process) for side, process in processes.items()}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, process in processes.items():
            times[side].append(ask(process, "\n"))
    for process in processes.values():
        process.communicate()
    for side in SIDES:
        ratio = statistics.median(a / b for a, b in zip(times[side], times["CPU torch"], strict=True))
        row = f"{name:<12}{side:<13}{statistics.median(times[side]) * 1e3:>8.2f} ms{ratio:>8.2f}x{found[side]['first']:>8.2f} s"
        if SIDES[side]:
            row += "".join(
                f"{found[side][key]:>10.{digits}f}" for key, digits in (("compiles", 0), ("allocated", 1), ("reserved", 1))
            )
        print(row, flush=True)


def main() -> None:
    """Measures all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=["medium", "high", "highest"], default="highest")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    options = parser.parse_args()
    if options.side:
        return work(options.models[0], options.side, options.precision)
    print(f"{'model':<12}{'mode':<13}{'step':>11}{'ratio':>9}{'first':>10}{'compiles':>10}{'tensors':>10}{'+ programs':>10}")
    for name in options.models:
        measure(name, options.rounds, options.precision)


if __name__ == "__main__":
    main()
