"""torch_tpu beside TorchTPU 0.2.0 (PyPI: torch-tpu==0.2.0) and CPU torch in eager mode, on one XLA CPU plugin.

    python bench/peer.py [--rounds 9] [--peer DIR] [--write] [CASE ...]

How the sides are started and take turns: harness.py. `--write` puts the table into bench/README.md.

This compares host code, lowering and compile behaviour; neither side is on a TPU. Precision is "highest" on our side, the
arithmetic of CPU torch and of TorchTPU on this plugin; "medium", our default, stands beside it where it makes a difference.
"""

import pathlib
import statistics
import tempfile
import time

import harness
from harness import Case

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


def import_rows(peer: pathlib.Path, rounds: int) -> list[str]:
    """Import and a first op, whole processes, above those of bare torch."""
    case = Case("", "first_op", (), (), (), 0, once=True)
    walls: dict[str, list[float]] = {side: [] for side in ("ours", "theirs", "cpu")}
    sizes: dict[str, list[float]] = {side: [] for side in walls}
    with tempfile.TemporaryDirectory() as folder:
        harness.worker(peer, "ours", case, folder).communicate()  # as a user's second process
        for _ in range(rounds):
            for side in walls:
                begin = time.perf_counter()
                process = harness.worker(peer, side, case, folder)
                sizes[side].append(harness.answer(process)["megabytes"])
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


if __name__ == "__main__":
    columns = ("TorchTPU 0.2.0: theirs", "CPU torch: cpu", "torch_tpu: ours second")
    harness.compare(__doc__, "peer", CASES, {"import": import_rows}, columns)
