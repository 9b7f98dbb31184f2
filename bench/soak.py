"""Many training steps of a small model: do memory, live buffers, threads and open files stay as they are?

    python bench/soak.py [--steps 10000] [--mode strict|deferred|both]

A step uploads a batch, runs forward, backward and AdamW, and reads the loss now and then; every 50th also has an error and a
checkpoint. The first fifth of the steps warms up: programs are compiled and tables grow. After it threads and open files must
be the same at every look. Bytes and buffers on the device, where those of numbers come and go, and the memory of the process
may not grow by more than the noise of LIMITS between the first and the last third of the looks, each as its median. Prints a
table, and exits with 1 if something grew.
"""

import argparse
import contextlib
import gc
import io
import os
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch import nn

LOOKS = 30
PERIOD = 50  # steps; a look comes at the end of one, so that all have the same work and the same graphs behind them
LIMITS = {"rss_mib": 4.0, "device_bytes": 64, "buffers": 8}


class Figures(NamedTuple):
    """What a look finds: MiB, bytes and counts."""

    rss_mib: float
    device_bytes: int
    buffers: int
    threads: int
    files: int


def look() -> Figures:
    """Reads the figures when nothing runs."""
    torch.tpu.synchronize()
    gc.collect()
    text = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    status = dict(line.split(":", 1) for line in text.splitlines())
    return Figures(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        device_bytes=torch.tpu.memory_allocated(),
        buffers=torch.tpu.memory_stats()["allocation.all.current"],
        threads=int(status["Threads"]),
        files=len(os.listdir("/proc/self/fd")),
    )


class Training:
    """A model that uses what models use: embedding, normalisation, dropout, a residual, an optimizer with state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embedding = nn.Embedding(17, 8)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.embedding.to("tpu")
        self.model.to("tpu")
        parameters = [*self.embedding.parameters(), *self.model.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        self.rows = torch.arange(40).reshape(8, 5) % 17

    def step(self, number: int) -> None:
        tokens = ((self.rows + number) % 17).to("tpu")
        labels = tokens[:, 0] % 3
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.embedding(tokens).mean(1)), labels)
        loss.backward()
        self.optimizer.step()
        if number % 10 == 0:
            assert loss.item() < 5
        if number % PERIOD == 0:
            self.fail_and_save()

    def fail_and_save(self) -> None:
        """An error that the device finds, one that torch finds, and a checkpoint."""
        try:
            self.embedding(torch.tensor([99], device="tpu")).sum().item()
        except IndexError:
            pass
        else:
            raise AssertionError("an index out of range was not found")
        with contextlib.suppress(RuntimeError):
            self.rows.to("tpu") @ torch.ones(3, 3, device="tpu")
        file = io.BytesIO()
        torch.save({**self.model.state_dict(), **self.embedding.state_dict()}, file)
        file.seek(0)
        torch.load(file, map_location="tpu")


def is_flat(found: list[Figures]) -> bool:
    """Prints what grew, and whether that is too much."""
    flat = True
    third = max(len(found) // 3, 1)
    for name, limit in LIMITS.items():
        first, last = (statistics.median(getattr(f, name) for f in part) for part in (found[:third], found[-third:]))
        flat &= last - first <= limit
        print(f"  {name} grew by {last - first:.2f}" + (f": MORE THAN {limit}" if last - first > limit else ""))
    for name in ("threads", "files"):
        values = sorted({getattr(f, name) for f in found})
        flat &= len(values) == 1
        print(f"  {name}: {values}" + (": NOT ONE NUMBER" if len(values) > 1 else ""))
    return flat


def soak(mode: str, steps: int) -> bool:
    """Trains in a mode; whether the figures were flat."""
    eager_mode = torch.tpu.EagerMode.DEFER_NEVER if mode == "strict" else torch.tpu.EagerMode.DEFER_AND_FUSE
    found = []
    with torch.tpu.set_eager_mode(eager_mode):
        training = Training()
        warm_up = steps // 5
        between = max(steps // LOOKS // PERIOD, 1) * PERIOD
        begin = time.perf_counter()
        print(f"{mode}\n{'step':>8} {'RSS MiB':>9} {'device B':>9} {'buffers':>8} {'threads':>8} {'files':>6}")
        for number in range(1, steps + 1):
            training.step(number)
            if number % between == 0:
                f = look()
                print(f"{number:8} {f.rss_mib:9.2f} {f.device_bytes:9} {f.buffers:8} {f.threads:8} {f.files:6}")
                if number >= warm_up:
                    found.append(f)
        print(f"  {(time.perf_counter() - begin) / steps * 1e3:.2f} ms per step")
    return is_flat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--mode", choices=["strict", "deferred", "both"], default="both")
    arguments = parser.parse_args()
    modes = ["strict", "deferred"] if arguments.mode == "both" else [arguments.mode]
    sys.exit(0 if all([soak(mode, arguments.steps) for mode in modes]) else 1)


if __name__ == "__main__":
    main()
