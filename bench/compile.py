"""torch.compile on "tpu" beside jax.jit, Inductor, CPU torch and TorchTPU 0.2.0, on XLA CPU plugins.

    python bench/compile.py [--rounds 9] [--peer DIR] [--write] [CASE ...]

How the sides are started and take turns: harness.py. JAX (`pip install jax`) is needed here only. `--write` puts the table into
bench/README.md.

This compares host code, lowering and compile behaviour; no side is on a TPU. Precision is "highest" on our side, the arithmetic
of all others; "medium", our default, stands beside it.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import harness
from harness import Case

TRAIN = ("ours", "ours medium", "jax", "inductor", "cpu")
TWO = ("ours", "theirs")
OURS, THEIRS = ("ours",), ("theirs",)
CASES = {
    "gpt-jax": Case("small GPT step, compiled whole", "gpt_whole", TRAIN, OURS, ("jax",), 1.05),
    "gpt-cpu": Case("the same", "gpt_whole", ("ours", "cpu"), OURS, ("cpu",), 0.80),
    "gpt-inductor": Case("the same", "gpt_whole", ("ours", "inductor"), OURS, ("inductor",), 0.85),
    "gpt-first": Case("small GPT, first step, compiled model, cold", "gpt_compiled_first", TWO, OURS, THEIRS, 0.5, once=True),
    "gpt-second": Case(
        "small GPT, first step, compiled whole, second process",
        "gpt_whole_first",
        ("second", "ours"),
        ("second",),
        OURS,
        0.3,
        once=True,
    ),
    "mlp-first": Case("MLP 512-1024-10, first step, cold", "mlp_compiled_first", TWO, OURS, THEIRS, 0.6, once=True),
    "lengths": Case("GPT forward at 16 lengths, first pass", "compiled_lengths", TWO, OURS, THEIRS, 0.1, once=True),
    "resnet": Case("ResNet-18 step, compiled whole", "resnet_whole", ("ours", "ours medium", "cpu"), OURS, ("cpu",), 0.9),
}

OVERHEAD = """
import json, sys, time, torch
import torch._dynamo.backends.common as common
a, b = torch.ones(16, device="tpu"), torch.ones(16, device="tpu")
result = torch.ones(16, device="tpu")
def nothing(graph, inputs):
    return lambda *arguments: (result,)
def timed(call, count=5000):
    for _ in range(500): call(a, b)
    best = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(count): call(a, b)
        best.append((time.perf_counter() - begin) / count * 1e6)
    return sorted(best)[4]
with torch.no_grad():
    print(json.dumps([timed(torch.compile(lambda a, b: a + b, backend=backend)) for backend in (nothing, "tpu")]))
"""


def overhead_rows(_: pathlib.Path, rounds: int) -> list[str]:
    """A call of a tiny graph, and of one whose backend does nothing: Dynamo's guards."""
    calls, guards = [], []
    for _round in range(rounds):
        answer = subprocess.check_output([sys.executable, "-c", OVERHEAD], text=True, cwd=tempfile.gettempdir())
        nothing, ours = json.loads(answer.splitlines()[-1])
        guards.append(nothing)
        calls.append(ours)
    beyond = statistics.median(ours - nothing for ours, nothing in zip(calls, guards, strict=True))
    met = "yes" if beyond <= 15 else "**no**"
    call, guard = statistics.median(calls), statistics.median(guards)
    return [
        f"| sum of 16 elements, a call | - | - | - | {call:.1f} µs, guards {guard:.1f} µs | +{beyond:.1f} µs | +15 µs | {met} |"
    ]


if __name__ == "__main__":
    columns = ("TorchTPU 0.2.0: theirs", "JAX: jax", "CPU torch: cpu inductor", "torch_tpu: ours second")
    harness.compare(__doc__, "compile", CASES, {"overhead": overhead_rows}, columns)
