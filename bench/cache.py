"""The first step of the examples' models in a fresh process: without the cache on disk, filling it, and from it.

    python bench/cache.py [--rounds 5] [MODEL ...]

``gpt-compiled`` is the small GPT of workloads.py under torch.compile with loss and optimizer outside, ``gpt-step`` the whole
step as one graph; their graphs are cached too (docs/compile.md), and the imports of torch.compile come before the clock starts.

Each measurement is a process of its own; the three kinds alternate within a round, and a round's folder is new. Printed:
medians of the time from the first tensor to the end of the first step (start, model and step; Python's imports are not in
it), of the step alone, what was compiled and loaded, and the ratio of the first steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

KINDS = ("off", "filling", "from disk")


def compiled(name: str) -> Any:
    """A training step under torch.compile."""
    import torch
    from torch.nn import functional as F
    from workloads import GPT

    model = GPT().to("tpu")
    tokens, labels = (torch.randint(0, 1024, (4, 128)).to("tpu") for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = torch.compile(model, backend="tpu") if name == "gpt-compiled" else model

    def step() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step if name == "gpt-compiled" else torch.compile(step, backend="tpu")


COMPILED = ("gpt-compiled", "gpt-step")


def run_one(name: str) -> None:
    """In a process of its own: prints one measurement."""
    import torch
    from models import MODELS

    if name in COMPILED:
        torch._dynamo.lookup_backend("tpu")

    torch.set_num_threads(2)
    torch.manual_seed(0)
    begin = time.perf_counter()
    torch.ones(1, device="tpu").item()
    step = compiled(name) if name in COMPILED else MODELS[name][0]("tpu")
    made = time.perf_counter()
    step().item()
    end = time.perf_counter()
    counters = torch.tpu.counters()
    loaded = counters["disk_hits"]
    print(json.dumps({"all": end - begin, "step": end - made, "compiles": counters["compiles"], "loaded": loaded}))


def process(name: str, folder: str) -> dict[str, Any]:
    """Runs ``run_one`` with this cache folder."""
    graphs = {"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"} if folder == "off" else {"TORCHINDUCTOR_CACHE_DIR": folder + "/graphs"}
    environment = {**os.environ, "TORCH_TPU_CACHE_DIR": folder, **graphs}
    command = [sys.executable, __file__, "--one", name]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def measure(name: str, rounds: int) -> None:
    """Prints one model's rows."""
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                results[kind].append(process(name, "off" if kind == "off" else folder))
    steps = {kind: statistics.median(result["step"] for result in results[kind]) for kind in KINDS}
    for kind in KINDS:
        everything = statistics.median(result["all"] for result in results[kind])
        last = results[kind][-1]
        ratio = statistics.median(a["step"] / b["step"] for a, b in zip(results["off"], results[kind], strict=True))
        print(
            f"{name:<12} {kind:<10}{everything:>9.3f} s{steps[kind]:>9.3f} s{ratio:>8.1f}x"
            f"{last['compiles']:>10}{last['loaded']:>8}"
        )


def main() -> None:
    """Measures all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", default=["mlp", "digits", "transformer"])
    options = parser.parse_args()
    if options.one:
        run_one(options.one)
        return
    print(f"{'model':<12} {'cache':<10}{'to 1st step':>11}{'1st step':>11}{'faster':>9}{'compiles':>10}{'loaded':>8}")
    for name in options.models:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
