"""Sides that are compared, each in processes of its own: what bench/peer.py and bench/compile.py share.

TorchTPU lives in a venv of its own, which the first run makes (~/.cache/torch-tpu-peer, some 400 MB of downloads). It finds
no TPU, so its question for the number of TPUs is answered for it and an XLA CPU plugin is given as its library. Processes of a
case are alive together and take turns, one round each, or are started in turns where a first time is measured. Results are
medians, and medians of the rounds' ratios.
"""

import argparse
import dataclasses
import importlib
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
from collections.abc import Callable, Sequence
from typing import IO, Any

HERE = pathlib.Path(__file__).resolve().parent
PEER = pathlib.Path("~/.cache/torch-tpu-peer").expanduser()
PEER_PACKAGES = ("torch-tpu==0.2.0", "libtpu", "fastatomstruct-xla-cpu", "xla-cpu-pjrt")
PLUGIN = "fastatomstruct_xla_cpu/libpjrt_cpu.so"
INCLUDE = "xla_plugins/xla_cpu_pjrt/include"


@dataclasses.dataclass(frozen=True)
class Case:
    """A row: which workload, on which sides, and which ratio the goal speaks of.

    Sides are "ours", "theirs", "second" (ours with filled caches on disk), "cpu" and "inductor" (CPU torch) and "jax". Words
    behind them: "defer" for that eager mode, "medium" for that precision.
    """

    title: str
    workload: str
    sides: tuple[str, ...]
    of: tuple[str, ...]  # the ratio's upper side; the best of several
    to: tuple[str, ...]
    goal: float
    once: bool = False


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


def start(words: list[str]) -> Any:
    """The workloads' side of this process."""
    if words[0] == "jax":
        return importlib.import_module("jax_workloads"), None
    import torch

    starts = {"theirs": start_theirs, "cpu": lambda _: ("cpu", lambda: 0), "inductor": lambda _: ("cpu", lambda: 0)}
    device, programs = starts.get(words[0], start_ours)(words)
    import workloads

    torch.set_num_threads(2)
    backend = {"cpu": None, "inductor": "inductor"}.get(words[0], "tpu")
    return workloads, workloads.Side(device, programs, backend)


def work(side_name: str, workload: str, once: bool) -> None:
    """A worker: one measurement, or one for each line that it is sent."""
    module, side = start(side_name.split())
    measure = getattr(module, workload)
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


def make_shim(peer: pathlib.Path) -> pathlib.Path:
    """The plugin that answers what TorchTPU's torch.compile asks and XLA's CPU plugins do not (peer_shim.c)."""
    shim = peer / "peer_shim.so"
    source = HERE / "peer_shim.c"
    if not shim.exists() or shim.stat().st_mtime < source.stat().st_mtime:
        (include,) = peer.glob(f"lib/python3*/site-packages/{INCLUDE}")
        subprocess.check_call(["cc", "-shared", "-fPIC", "-O1", "-I", str(include), str(source), "-o", str(shim)])
    return shim


def command(peer: pathlib.Path, side: str, cache: str = "off") -> tuple[list[str], dict[str, str]]:
    """Interpreter and environment of a side's process. Threads wait without spinning: several processes share the cores."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore"}
    env["TORCH_TPU_CACHE_DIR"] = cache
    env["TORCHINDUCTOR_CACHE_DIR"] = str(pathlib.Path(tempfile.mkdtemp()) if cache == "off" else pathlib.Path(cache) / "torch")
    if side.startswith("theirs"):
        (plugin,) = peer.glob(f"lib/python3*/site-packages/{PLUGIN}")
        env.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", TF_CPP_MIN_LOG_LEVEL="3")
        env.update(TPU_LIBRARY_PATH=str(make_shim(peer)), PEER_SHIM_PLUGIN=str(plugin))
        return [str(peer / "bin" / "python")], env
    if side in ("cpu", "inductor", "jax"):
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if side == "jax":
        env["JAX_PLATFORMS"] = "cpu"
    return [sys.executable], env


def worker(peer: pathlib.Path, side: str, case: Case, cache: str = "off") -> subprocess.Popen[str]:
    """Starts a side's process."""
    python, env = command(peer, side, cache)
    arguments = [__file__, side, case.workload, *(["once"] if case.once else [])]
    log = open(pathlib.Path(tempfile.gettempdir()) / f"bench-{side.split()[0]}.log", "w")  # noqa: SIM115  (the worker's)
    pipe = subprocess.PIPE
    return subprocess.Popen([*python, *arguments], env=env, stdin=pipe, stdout=pipe, stderr=log, text=True)


def answer(process: subprocess.Popen[str]) -> Any:
    """The next line of JSON that a worker prints."""
    output: IO[str] | None = process.stdout
    for line in output or ():
        if line[:1] in '{"0123456789':
            return json.loads(line)
    raise SystemExit(f"a worker ended with status {process.wait()}, see {tempfile.gettempdir()}/bench-*.log: {process.args!r}")


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


def row(case: Case, results: Results, columns: Sequence[tuple[str, ...]]) -> str:
    """A line of the table: what each column's sides took, the ratio and its goal."""

    def cell(side: str) -> str:
        found = statistics.median(f["seconds"] for f in results[side])
        programs = results[side][0].get("programs")
        name = " ".join(word for word in side.split() if word not in ("ours", "theirs", "cpu", "jax"))
        return (f"{name} " if name else "") + text(found) + (f", {programs:.0f} programs" if programs else "")

    def cells(start: tuple[str, ...]) -> str:
        return "; ".join(cell(side) for side in case.sides if side.split()[0] in start) or "-"

    ratio = ratios(results, case.of, case.to)
    met = "yes" if ratio <= case.goal else "**no**"
    of_whom = {"cpu": "CPU torch", "inductor": "Inductor", "jax": "JAX", "ours": "cold"}.get(case.to[0].split()[0], "theirs")
    columns_text = " | ".join(cells(sides) for sides in columns)
    return f"| {case.title} | {columns_text} | {ratio:.2f} of {of_whom} | {case.goal:.2f} | {met} |"


# --- the command line ---------------------------------------------------------------------------------------------------------

Rows = Callable[[pathlib.Path, int], list[str]]


def parse(description: str | None, names: Sequence[str]) -> argparse.Namespace:
    """The options that a comparison has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer", type=pathlib.Path, default=PEER, help="TorchTPU's venv")
    parser.add_argument("--write", action="store_true", help="the table goes into bench/README.md")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(names))
    options = parser.parse_args()
    if unknown := set(options.cases) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return options


def compare(
    description: str | None, mark: str, cases: dict[str, Case], others: dict[str, Rows], columns: Sequence[str]
) -> None:
    """Measures the cases that the command line names, and `others`, which make their own rows, and prints the table."""
    options = parse(description, [*cases, *others])
    make_peer(options.peer)
    lines = [f"| work | {' | '.join(title for title, _ in map(split_title, columns))} | ratio | goal | met |"]
    lines.append("|---" * (len(columns) + 4) + "|")
    print("\n".join(lines), flush=True)
    for name in options.cases or [*cases, *others]:
        if name in others:
            new = others[name](options.peer, min(options.rounds, 5))
        else:
            case = cases[name]
            measure = measure_once if case.once else measure_rounds
            found = measure(options.peer, case, min(options.rounds, 3) if case.once else options.rounds)
            new = [row(case, found, [sides for _, sides in map(split_title, columns)])]
        print("\n".join(new), flush=True)
        lines += new
    if options.write:
        write(mark, lines)


def split_title(column: str) -> tuple[str, tuple[str, ...]]:
    """ "TorchTPU 0.2.0: theirs" as a title and the first words of sides."""
    title, _, sides = column.partition(": ")
    return title, tuple(sides.split())


def write(mark: str, lines: list[str]) -> None:
    """Puts a table between its marks in bench/README.md."""
    page = HERE / "README.md"
    head, _, rest = page.read_text().partition(f"<!-- {mark} -->\n")
    _, _, tail = rest.partition(f"<!-- /{mark} -->\n")
    page.write_text(f"{head}<!-- {mark} -->\n" + "\n".join(lines) + f"\n<!-- /{mark} -->\n{tail}")


if __name__ == "__main__":
    side_name, workload_name, *is_once = sys.argv[1:]
    work(side_name, workload_name, bool(is_once))
