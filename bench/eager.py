"""Time of single eager calls on "tpu", beside CPU torch and the bare execution of the same program.

    python bench/eager.py [--rounds 15] [--calls 1000]

All three are measured in one run, in alternating rounds; the columns are medians in microseconds per call (milliseconds for
transfers) and ratios within the run. The goal for `add` is 2x of bare execute plus torch's own CPU dispatch. Precision is
"highest", the arithmetic of CPU torch.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent


def bare_times(calls: int, rounds: int) -> dict[str, float]:
    """Builds and runs bench/bare.c against the plugin in use; microseconds by program."""
    from torch_tpu import _C

    plugin = json.loads(_C._info())["plugin"]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/bare"
        build = ["gcc", "-std=c17", "-O2", "-D_GNU_SOURCE", f"-I{ROOT}/core", f"{ROOT}/bench/bare.c"]
        subprocess.check_call([*build, f"{ROOT}/build/core/libtt.a", "-lpthread", "-ldl", "-lm", "-o", program])
        lines = subprocess.check_output([program, plugin, str(calls), str(rounds)], text=True).splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}


class Case:
    """One call, repeated; `make(device)` returns the loop body."""

    def __init__(self, name: str, bare: str | None, make: Callable[[str], Callable[[int], object]], scale: float = 1.0) -> None:
        self.name, self.bare, self.scale = name, bare, scale
        self.bodies = {device: make(device) for device in ("tpu", "cpu")}
        self.times: dict[str, list[float]] = {"tpu": [], "cpu": []}

    def round(self, device: str, calls: int) -> None:
        """Measures `calls` calls and appends the time of one."""
        body = self.bodies[device]
        begin = time.perf_counter()
        for i in range(calls):
            body(i)
        if device == "tpu":
            torch.tpu.synchronize()
        self.times[device].append((time.perf_counter() - begin) / calls)

    def median(self, device: str) -> float:
        """Median seconds per call."""
        return statistics.median(self.times[device])


def cases() -> list[Case]:
    """The calls measured."""

    def tensors(device: str, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(size, generator=generator).to(device) for size in sizes]

    def binary(
        size: tuple[int, ...], function: Callable[[torch.Tensor, torch.Tensor], object]
    ) -> Callable[[str], Callable[[int], object]]:
        def make(device: str) -> Callable[[int], object]:
            x, y = tensors(device, size, size)
            return lambda i: function(x, y)

        return make

    def new_scalar(device: str) -> Callable[[int], object]:
        (x,) = tensors(device, (16,))
        return lambda i: x * (1.0 + i * 1e-3)

    def new_slice(device: str) -> Callable[[int], object]:
        (x,) = tensors(device, (64, 64))
        return lambda i: x[i % 48] + 1.0

    return [
        Case("add, 16 elements", "add16", binary((16,), torch.add)),
        Case("add_, 16 elements", "add16", binary((16,), lambda x, y: x.add_(y))),
        Case("transposed read then add, 64x64", "transpose_add64", binary((64, 64), lambda x, y: x.t() + y)),
        Case("slice then add, 64x64", "slice_add64", binary((64, 64), lambda x, y: x[1:33] + 1.0)),
        Case("mul by a Python scalar, 16", "add16", binary((16,), lambda x, y: x * 0.999)),
        Case("sum, 16 elements", "sum16", binary((16,), lambda x, y: x.sum())),
        Case("mm, 64x64", "mm64", binary((64, 64), torch.mm)),
        Case("op then .item()", "add16", binary((1,), lambda x, y: (x + 1.0).item())),
        Case("a new scalar each call", "add16", new_scalar),
        Case("a new slice offset each call", "slice_add64", new_slice),
    ]


def transfers(rounds: int) -> None:
    """64 MiB to and from the device beside a copy on the CPU."""
    host = torch.randn(16 * 2**20)
    device = host.to("tpu")
    jobs = {
        "64 MiB to the device": (lambda: (host.to("tpu"), torch.tpu.synchronize()), lambda: host.clone()),
        "64 MiB from the device": (lambda: device.cpu(), lambda: host.clone()),
    }
    for name, (ours, cpus) in jobs.items():
        times: dict[str, list[float]] = {"tpu": [], "cpu": []}
        for _ in range(rounds + 1):
            for label, job in (("tpu", ours), ("cpu", cpus)):
                begin = time.perf_counter()
                job()
                times[label].append(time.perf_counter() - begin)
        tpu, cpu = (statistics.median(times[label][1:]) * 1e3 for label in ("tpu", "cpu"))
        print(f"{name:<34}{tpu:>9.1f} ms{cpu:>9.1f} ms{'':>9}{tpu / cpu:>9.2f}x")


def recording(rounds: int) -> None:
    """What deferring costs the calling thread: a call recorded, and a graph closed, found by its key and started.

    The calls follow no pattern, so that one graph holds them all. Processor time of the thread, per call.
    """
    functions = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2]
    generator = random.Random(0)
    sequence = [generator.choice(functions) for _ in range(900)]  # a graph takes 1,000
    recorded: dict[str, list[float]] = {"tpu": [], "cpu": []}
    started: list[float] = []
    for device, times in recorded.items():
        x = y = torch.ones(16, device=device)
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
            for _ in range(rounds + 3):
                torch.tpu.synchronize()
                begin, z = time.thread_time(), x
                for function in sequence:
                    z = function(z, y)
                called = time.thread_time()
                torch.tpu.synchronize()
                times.append((called - begin) / len(sequence) * 1e6)
                if device == "tpu":
                    started.append((time.thread_time() - called) / len(sequence) * 1e9)
    call, dispatch = (statistics.median(recorded[device][3:]) for device in ("tpu", "cpu"))
    print(
        f"recording a call (DeferAndFuse): {call:.2f} us with torch's dispatch; the whole call on CPU torch: {dispatch:.2f} us"
    )
    print(f"finding and starting a graph of {len(sequence)} calls: {statistics.median(started[3:]):.0f} ns a call")


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("highest")
    measured = cases()
    for case in measured:
        for device in ("tpu", "cpu"):
            case.round(device, options.calls)  # compiles and warms up
            case.times[device].clear()
    before = torch.tpu.counters()["compiles"]
    for _ in range(options.rounds):
        for case in measured:
            for device in ("tpu", "cpu"):
                case.round(device, options.calls)
    bare = bare_times(options.calls, options.rounds)
    print(f"{'call':<34}{'tpu':>9}   {'CPU torch':>9}   {'bare':>6} {'to CPU':>9} {'to bare+CPU':>12}")
    for case in measured:
        tpu, cpu = case.median("tpu") * 1e6, case.median("cpu") * 1e6
        floor = bare[case.bare] if case.bare else float("nan")
        print(f"{case.name:<34}{tpu:>9.2f} us{cpu:>9.2f} us{floor:>9.2f}{tpu / cpu:>9.2f}x{tpu / (floor + cpu):>11.2f}x")
    transfers(options.rounds)
    recording(options.rounds)
    print(f"programs compiled while measuring: {torch.tpu.counters()['compiles'] - before}")


if __name__ == "__main__":
    main()
