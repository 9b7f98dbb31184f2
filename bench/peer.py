"""torch_tpu beside TorchTPU 0.2.0 (PyPI: torch-tpu==0.2.0) and CPU torch, on one XLA CPU plugin.

    python bench/peer.py [--rounds 9] [--peer DIR] [--write] [CASE ...]

TorchTPU lives in a venv of its own, which the first run makes (~/.cache/torch-tpu-peer, some 400 MB of downloads). It finds no
TPU, so its question for the number of TPUs is answered for it and the plugin is given as its library. Every side runs in
processes of its own; those of a case are alive together and take turns, one round each, or are started in turns where a first
time is measured. Printed: medians, and medians of the rounds' ratios. `--write` puts the table into bench/README.md.

This compares host code, lowering and compile behaviour; neither side is on a TPU. Precision is "highest" on our side, the
arithmetic of CPU torch and of TorchTPU on this plugin; "medium", our default, stands beside it where it makes a difference.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from typing import IO, Any

HERE = pathlib.Path(__file__).resolve().parent
PEER = pathlib.Path("~/.cache/torch-tpu-peer").expanduser()
PEER_PACKAGES = ("torch-tpu==0.2.0", "libtpu", "fastatomstruct-xla-cpu")
PLUGIN = "fastatomstruct_xla_cpu/libpjrt_cpu.so"


@dataclasses.dataclass(frozen=True)
class Case:
    """A row: which workload, on which sides, and which ratio the goal speaks of.

    Sides are "ours", "ours medium", "theirs" (with " defer" behind them in that mode), "second" (ours with a filled cache on
    disk) and "cpu".
    """

    title: str
    workload: str
    sides: tuple[str, ...]
    of: tuple[str, ...]  # the ratio's upper side; the best of several
    to: tuple[str, ...]
    goal: float
    once: bool = False


TWO, STRICT, DEFER = ("ours", "theirs"), ("ours", "theirs", "cpu"), ("ours defer", "theirs defer", "cpu")
BEST = ("ours", "ours defer", "ours defer medium", "theirs", "theirs defer", "cpu")
CASES = {
    "add": Case("add on 16 elements, Strict, a call", "add16", STRICT, ("ours",), ("theirs",), 0.30),
    "add-defer": Case("add on 16 elements, DeferAndFuse, a call", "add16", DEFER, ("ours defer",), ("theirs defer",), 0.25),
    "transposed": Case("transposed read then add", "transposed_add", STRICT, ("ours",), ("theirs",), 0.20),
    "slice": Case("slice then add", "slice_add", STRICT, ("ours",), ("theirs",), 0.20),
    "item": Case("op then `.item()`", "item", STRICT, ("ours",), ("theirs",), 0.10),
    "offsets": Case("32 new slice offsets", "slices", TWO, ("ours",), ("theirs",), 0.05, once=True),
    "first": Case("small GPT, first step, cold, Strict", "gpt_first", TWO, ("ours",), ("theirs",), 0.5, once=True),
    "second": Case(
        "small GPT, first step, second process", "gpt_first", ("second", "theirs"), ("second",), ("theirs",), 0.06, once=True
    ),
    "gpt": Case("small GPT step, best eager mode", "gpt", BEST, ("ours", "ours defer"), ("cpu",), 0.80),
    "resnet": Case("ResNet-18 step, best eager mode", "resnet", BEST, ("ours", "ours defer"), ("cpu",), 1.2),
    "lengths": Case("GPT forward at 16 lengths, first pass, Strict", "lengths", TWO, ("ours",), ("theirs",), 0.4, once=True),
    "add64m": Case("add of two 64 MiB tensors, fresh output", "add64m", STRICT, ("ours",), ("cpu",), 0.30),
    "chain64m": Case("64 MiB elementwise chain of 5, DeferAndFuse", "chain64m", DEFER, ("ours defer",), ("cpu",), 0.10),
    "mm-bf16": Case("bfloat16 1024-cubed matmul", "mm_bf16", STRICT, ("ours",), ("cpu",), 1.1),
}


# --- in a worker process ------------------------------------------------------------------------------------------------------


def start_ours(words: list[str]) -> Any:
    """Our device in the mode and precision that the side's name says."""
    import torch

    from torch_tpu import tpu

    torch.set_float32_matmul_precision("medium" if "medium" in words else "highest")
    if "defer" in words:
        tpu.set_eager_mode(tpu.EagerMode.DEFER_AND_FUSE)
    return "tpu", lambda: tpu.counters()["compiles"]


def start_theirs(words: list[str]) -> Any:
    """TorchTPU's, whose search for a TPU is answered: there is one."""
    import torch_tpu  # noqa: F401, I001  (theirs)
    from torch_tpu import _loader  # type: ignore[attr-defined]
    from torch_tpu._internal.device import _device_ops_backend
    from torch_tpu._internal.execution_mode import execution_mode_impl
    from torch_tpu._internal.utils import hardware

    hardware.get_tpu_device_count = lambda *_, **__: 1
    _loader._init_device("tpu")
    modes = execution_mode_impl._EagerMode
    execution_mode_impl._set_eager_mode(modes.DEFER_AND_FUSE if "defer" in words else modes.DEFER_NEVER)
    return "tpu", lambda: int(_device_ops_backend._get_cache_stats().num_compilations)


def work(side_name: str, workload: str, once: bool) -> None:
    """A worker: one measurement, or one for each line that it is sent."""
    words = side_name.split()
    start = {"theirs": start_theirs, "cpu": lambda _: ("cpu", lambda: 0)}.get(words[0], start_ours)
    device, programs = start(words)
    import torch
    import workloads

    torch.set_num_threads(2)
    side = workloads.Side(device, programs)
    measure = getattr(workloads, workload)
    if once:
        found = measure(side)
        found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found), flush=True)
        return
    body, calls = measure(side)
    for _ in range(3):
        body()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        body()
        print(json.dumps((time.perf_counter() - begin) / calls), flush=True)


# --- the sides ---------------------------------------------------------------------------------------------------------------


def make_peer(peer: pathlib.Path) -> None:
    """TorchTPU's venv, unless it is there."""
    python = peer / "bin" / "python"
    if python.exists():
        return
    print(f"installing TorchTPU 0.2.0 into {peer}", file=sys.stderr)
    venv.create(peer, with_pip=True)
    for packages in (("torch==2.13.0",), PEER_PACKAGES):
        subprocess.check_call([python, "-m", "pip", "--quiet", "install", *packages])


def command(peer: pathlib.Path, side: str, cache: str = "off") -> tuple[list[str], dict[str, str]]:
    """Interpreter and environment of a side's process. Threads wait without spinning: several processes share the cores."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore"}
    env["TORCH_TPU_CACHE_DIR"] = cache
    if side.startswith("theirs"):
        (plugin,) = peer.glob(f"lib/python3*/site-packages/{PLUGIN}")
        env.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", TPU_LIBRARY_PATH=str(plugin), TF_CPP_MIN_LOG_LEVEL="3")
        return [str(peer / "bin" / "python")], env
    if side == "cpu":
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return [sys.executable], env


def worker(peer: pathlib.Path, side: str, case: Case, cache: str = "off") -> subprocess.Popen[str]:
    """Starts a side's process."""
    python, env = command(peer, side, cache)
    arguments = [__file__, "--worker", side, case.workload, *(["once"] if case.once else [])]
    log = open(pathlib.Path(tempfile.gettempdir()) / f"peer-{side.split()[0]}.log", "w")  # noqa: SIM115  (the worker's)
    pipe = subprocess.PIPE
    return subprocess.Popen([*python, *arguments], env=env, stdin=pipe, stdout=pipe, stderr=log, text=True)


def answer(process: subprocess.Popen[str]) -> Any:
    """The next line of JSON that a worker prints."""
    output: IO[str] | None = process.stdout
    for line in output or ():
        if line[:1] in '{"0123456789':
            return json.loads(line)
    raise SystemExit(f"a worker ended with status {process.wait()}, see {tempfile.gettempdir()}/peer-*.log: {process.args!r}")


# --- measuring ----------------------------------------------------------------------------------------------------------------

Results = dict[str, list[dict[str, float]]]


def measure_rounds(peer: pathlib.Path, case: Case, rounds: int) -> Results:
    """Workers that take turns."""
    workers = {side: worker(peer, side, case) for side in case.sides}
    results: Results = {side: [] for side in case.sides}
    for process in workers.values():
        answer(process)
    for _ in range(rounds):
        for side, process in workers.items():
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            results[side].append({"seconds": answer(process)})
    for process in workers.values():
        process.communicate()
    return results


def measure_once(peer: pathlib.Path, case: Case, rounds: int) -> Results:
    """Processes in turns, each with nothing cached but for the second of two with one folder."""
    results: Results = {side: [] for side in case.sides}
    for _ in range(rounds):
        for side in case.sides:
            with tempfile.TemporaryDirectory() as folder:
                cache = folder if side == "second" else "off"
                if side == "second":
                    worker(peer, side, case, cache).communicate()
                process = worker(peer, side, case, cache)
                results[side].append(answer(process))
                process.communicate()
    return results


def ratios(results: Results, of: tuple[str, ...], to: tuple[str, ...]) -> float:
    """Median over the rounds of the better sides' ratio: which side is the better is decided by the medians."""

    def best(sides: tuple[str, ...]) -> str:
        return min(sides, key=lambda side: statistics.median(found["seconds"] for found in results[side]))

    pairs = zip(results[best(of)], results[best(to)], strict=True)
    return statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)


def text(seconds: float) -> str:
    """A time in its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def row(case: Case, results: Results) -> str:
    """A line of the table."""

    def cell(side: str) -> str:
        found = statistics.median(f["seconds"] for f in results[side])
        programs = results[side][0].get("programs")
        name = " ".join(side.split()[1:])
        return (f"{name} " if name else "") + text(found) + (f", {programs:.0f} programs" if programs is not None else "")

    def cells(start: tuple[str, ...]) -> str:
        return "; ".join(cell(side) for side in case.sides if side.startswith(start)) or "-"

    ratio = ratios(results, case.of, case.to)
    met = "yes" if ratio <= case.goal else "**no**"
    of_whom = "CPU torch" if case.to == ("cpu",) else "theirs"
    columns = (
        cells(("theirs",)),
        cells(("cpu",)),
        cells(("ours", "second")),
        f"{ratio:.2f} of {of_whom}",
        f"{case.goal:.2f}",
        met,
    )
    return f"| {case.title} | {' | '.join(columns)} |"


def import_rows(peer: pathlib.Path, rounds: int) -> list[str]:
    """Import and a first op, whole processes, above those of bare torch."""
    case = Case("", "first_op", (), (), (), 0, once=True)
    walls: dict[str, list[float]] = {side: [] for side in ("ours", "theirs", "cpu")}
    sizes: dict[str, list[float]] = {side: [] for side in walls}
    with tempfile.TemporaryDirectory() as folder:
        worker(peer, "ours", case, folder).communicate()  # as a user's second process
        for _ in range(rounds):
            for side in walls:
                begin = time.perf_counter()
                process = worker(peer, side, case, folder)
                sizes[side].append(answer(process)["megabytes"])
                process.communicate()
                walls[side].append(time.perf_counter() - begin)
    rows = []
    for name, values, unit, goal in (("time", walls, "s", 0.5), ("memory", sizes, "MB", 100.0)):
        median = {side: statistics.median(values[side]) for side in values}
        above = {side: median[side] - median["cpu"] for side in values}
        met = "yes" if above["ours"] <= goal else "**no**"
        rows.append(
            f"| import and first op, whole process: {name} | {above['theirs']:+.2f} {unit} | {median['cpu']:.2f} {unit} "
            f"| {above['ours']:+.2f} {unit} | | {goal:+.1f} {unit} | {met} |"
        )
    return rows


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer", type=pathlib.Path, default=PEER, help="TorchTPU's venv")
    parser.add_argument("--write", action="store_true", help="the table goes into bench/README.md")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*CASES, "import"]))
    options = parser.parse_args()
    if options.worker:
        side, workload, *once = options.worker
        return work(side, workload, bool(once))
    make_peer(options.peer)
    names = options.cases or [*CASES, "import"]
    if unknown := set(names) - {*CASES, "import"}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    lines = ["| work | TorchTPU 0.2.0 | CPU torch | torch_tpu | ratio | goal | met |", "|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for name in names:
        if name == "import":
            new = import_rows(options.peer, min(options.rounds, 5))
        else:
            case = CASES[name]
            measure = measure_once if case.once else measure_rounds
            new = [row(case, measure(options.peer, case, min(options.rounds, 3) if case.once else options.rounds))]
        print("\n".join(new), flush=True)
        lines += new
    if options.write:
        page = HERE / "README.md"
        head, _, rest = page.read_text().partition("<!-- peer -->\n")
        _, _, tail = rest.partition("<!-- /peer -->\n")
        page.write_text(f"{head}<!-- peer -->\n" + "\n".join(lines) + f"\n<!-- /peer -->\n{tail}")


if __name__ == "__main__":
    main()
