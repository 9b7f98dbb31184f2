"""Time of the ops that models use most, at three sizes, on "tpu" beside CPU torch.

    python bench/ops.py [--rounds 7] [--only REGEX] [--write docs/speed.md]

Both devices run the same calls in alternating rounds of one run, at matmul precision "highest" (the same arithmetic). A round
is a number of calls and one wait at its end. Printed: the time of a call in each device's fastest round, and their ratio (the
median says little on a loaded machine, where the threads of CPU torch wait for each other); for the large size also the least
processor time of a call, CPU torch with one thread, which other programs change less; at the end the ten worst ratios at
the large size, and the rows above 3 in either time with their reasons.
"""

import argparse
import os
import pathlib
import re
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

SIZES = {"small": 32, "medium": 256, "large": 1024}
Call = Callable[[], object]


def rows(n: int, device: str, *, grad: bool = False) -> torch.Tensor:
    """An n x n matrix."""
    return torch.rand(n, n).add_(0.5).to(device).requires_grad_(grad)


def images(n: int, device: str, channels: int = 16, *, grad: bool = False) -> torch.Tensor:
    """Pictures with about n * n elements in all: [2, channels, side, side]."""
    side = max(4, int((n * n / (2 * channels)) ** 0.5))
    return torch.randn(2, channels, side, side).to(device).requires_grad_(grad)


def unary(function: Callable[[torch.Tensor], object]) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x = rows(n, device)
        return lambda: function(x)

    return make


def binary(function: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x, y = rows(n, device), rows(n, device)
        return lambda: function(x, y)

    return make


def indexed(function: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x, index = rows(n, device), torch.randint(0, n, (n,)).to(device)
        return lambda: function(x, index)

    return make


def picture(function: Callable[[torch.Tensor], object]) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x = images(n, device)
        return lambda: function(x)

    return make


def convolution(kernel: int, backward: bool, groups: int = 1) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x, weight = (
            images(n, device, grad=backward),
            torch.randn(16, 16 // groups, kernel, kernel).to(device).requires_grad_(backward),
        )

        def call() -> object:
            y = F.conv2d(x, weight, padding=kernel // 2, groups=groups)
            return torch.autograd.grad(y.sum(), (x, weight)) if backward else y

        return call

    return make


def backward(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int, str], Call]:
    def make(n: int, device: str) -> Call:
        x = rows(n, device, grad=True)
        return lambda: torch.autograd.grad(function(x).sum(), x)

    return make


def attention(n: int, device: str) -> Call:
    q = torch.randn(1, 4, n, 32).to(device)
    return lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)


def attention_backward(n: int, device: str) -> Call:
    q = torch.randn(1, 4, n, 32).to(device).requires_grad_()
    return lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, q, q, is_causal=True).sum(), q)


def cross_entropy(n: int, device: str) -> Call:
    x, y = rows(n, device, grad=True), torch.randint(0, n, (n,)).to(device)
    return lambda: torch.autograd.grad(F.cross_entropy(x, y), x)


def adamw(n: int, device: str) -> Call:
    parameters = [torch.nn.Parameter(rows(n, device)) for _ in range(4)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    return torch.optim.AdamW(parameters, foreach=True).step


def embedding_backward(n: int, device: str) -> Call:
    table, index = rows(n, device, grad=True), torch.randint(0, n, (4, n // 4)).to(device)
    return lambda: torch.autograd.grad(F.embedding(index, table).sum(), table)


CASES: dict[str, Callable[[int, str], Call]] = {
    "add": binary(torch.add),
    "sub": binary(torch.sub),
    "mul": binary(torch.mul),
    "div": binary(torch.div),
    "add_": binary(lambda x, y: x.add_(y, alpha=1e-9)),
    "pow 2": unary(lambda x: x**2),
    "pow 2.5": unary(lambda x: x**2.5),
    "neg": unary(torch.neg),
    "exp": unary(torch.exp),
    "log": unary(torch.log),
    "sqrt": unary(torch.sqrt),
    "rsqrt": unary(torch.rsqrt),
    "tanh": unary(torch.tanh),
    "sigmoid": unary(torch.sigmoid),
    "relu": unary(torch.relu),
    "gelu": unary(F.gelu),
    "silu": unary(F.silu),
    "gelu backward": backward(F.gelu),
    "clamp": unary(lambda x: x.clamp(0.6, 1.2)),
    "maximum": binary(torch.maximum),
    "eq": binary(torch.eq),
    "where": binary(lambda x, y: torch.where(x > 1, x, y)),
    "masked_fill": unary(lambda x: x.masked_fill(x > 1, 0)),
    "to bfloat16": unary(lambda x: x.bfloat16()),
    "dropout": unary(lambda x: F.dropout(x, 0.1)),
    "randn": unary(torch.randn_like),
    "sum": unary(torch.sum),
    "sum rows": unary(lambda x: x.sum(1)),
    "sum columns": unary(lambda x: x.sum(0)),
    "mean": unary(lambda x: x.mean(-1)),
    "var": unary(lambda x: x.var(-1)),
    "max": unary(lambda x: x.max(1)),
    "argmax": unary(lambda x: x.argmax(1)),
    "norm": unary(lambda x: x.norm()),
    "cumsum": unary(lambda x: x.cumsum(0)),
    "cumsum last": unary(lambda x: x.cumsum(1)),
    "softmax": unary(lambda x: x.softmax(-1)),
    "softmax columns": unary(lambda x: x.softmax(0)),
    "log_softmax backward": backward(lambda x: x.log_softmax(-1)),
    "layer_norm": unary(lambda x: F.layer_norm(x, (x.shape[1],))),
    "layer_norm backward": backward(lambda x: F.layer_norm(x, (x.shape[1],))),
    "rms_norm": unary(lambda x: F.rms_norm(x, (x.shape[1],))),
    "batch_norm": picture(lambda x: F.batch_norm(x, None, None, training=True)),
    "cat": binary(lambda x, y: torch.cat([x, y], 1)),
    "stack": binary(lambda x, y: torch.stack([x, y])),
    "transpose": unary(lambda x: x.t().contiguous()),
    "flip": unary(lambda x: x.flip(0)),
    "roll": unary(lambda x: x.roll(1, 1)),
    "tril": unary(torch.tril),
    "pad": unary(lambda x: F.pad(x, (1, 1, 1, 1))),
    "index_select": indexed(lambda x, i: x.index_select(0, i)),
    "gather": indexed(lambda x, i: x.gather(1, i.unsqueeze(0).expand_as(x))),
    "index_add": indexed(lambda x, i: x.index_add(0, i, x)),
    "scatter_add": indexed(lambda x, i: x.scatter_add(1, i.unsqueeze(0).expand_as(x), x)),
    "embedding backward": embedding_backward,
    "x[mask]": unary(lambda x: x[x > 1]),
    "sort": unary(lambda x: x.sort(1)),
    "topk": unary(lambda x: x.topk(8, 1)),
    "mm": binary(torch.mm),
    "mm of transposed": binary(lambda x, y: x.t() @ y),
    "bmm": binary(lambda x, y: torch.bmm(x.view(4, -1, x.shape[1]), y.expand(4, -1, -1))),
    "linear": binary(lambda x, y: F.linear(x, y, y[0])),
    "conv2d 3x3": convolution(3, False),
    "conv2d 1x1": convolution(1, False),
    "conv2d depthwise": convolution(3, False, 16),
    "conv2d 3x3 backward": convolution(3, True),
    "max_pool2d": picture(lambda x: F.max_pool2d(x, 2)),
    "avg_pool2d": picture(lambda x: F.avg_pool2d(x, 2)),
    "interpolate": picture(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "attention": attention,
    "attention backward": attention_backward,
    "cross_entropy backward": cross_entropy,
    "mse_loss": binary(F.mse_loss),
    "AdamW foreach": adamw,
}


ONE_CORE = (
    "XLA's CPU client runs it on one core, CPU torch on two: the processor time beside it is what its threads need together"
)
HAND_OVER = (
    "waking a thread of XLA's pool and waiting for it takes about 30 us; the processor time is what the work itself needs"
)
REASONS: dict[str, str] = {  # why a row is above 3 at the large size; bare programs: the StableHLO alone through PJRT
    **dict.fromkeys(["cat", "stack", "pad", "roll"], ONE_CORE),
    **dict.fromkeys(["add", "sub", "mul", "neg", "add_", "flip", "to bfloat16"], HAND_OVER),
    "scatter_add": "elements are added one after the other, 1.2 to 1.8 ms of processor time as a bare program, and the index "
    "is checked",
    "cumsum last": "a product with a triangle of ones and two passes over the result, 1.1 ms of processor time as a bare "
    "program (3.4 ms in windows)",
    "softmax": "four passes over the matrix, 0.1 to 0.3 ms of processor time each; CPU torch keeps a row in its caches",
    "attention": "the scores go through memory several times; CPU torch keeps tiles of them in its caches",
    "attention backward": "five products and several passes over the scores, 25 to 27 ms of processor time as a bare program; "
    "CPU torch keeps tiles of them in its caches",
    "conv2d 3x3 backward": "the filter's gradient is a convolution with a window as large as the picture, 14.7 ms of processor "
    "time as a bare program; nine products of shifted pictures took 16 ms",
}
LIMIT = 3.0


def measure(make: Callable[[int, str], Call], n: int, rounds: int) -> tuple[float, float]:
    """Seconds of a call on the TPU and the CPU, each in its fastest round."""
    calls = {device: make(n, device) for device in ("tpu", "cpu")}
    counts, times = {}, {"tpu": [], "cpu": []}
    for device, call in calls.items():
        for _ in range(3):
            call()
        torch.tpu.synchronize()
        begin = time.perf_counter()
        call()
        torch.tpu.synchronize()
        counts[device] = max(1, min(100, int(0.01 / (time.perf_counter() - begin + 1e-9))))
    for _ in range(rounds):
        for device, call in calls.items():
            begin = time.perf_counter()
            for _ in range(counts[device]):
                call()
            torch.tpu.synchronize()
            times[device].append((time.perf_counter() - begin) / counts[device])
    return min(times["tpu"]), min(times["cpu"])


def processor_time(make: Callable[[int, str], Call], n: int, rounds: int) -> tuple[float, float]:
    """Least seconds of processor time of a call on the TPU and the CPU, all threads of the process together."""
    torch.set_num_threads(1)
    calls = {device: make(n, device) for device in ("tpu", "cpu")}
    least = dict.fromkeys(calls, float("inf"))
    for round_number in range(2 * rounds + 2):
        for device, call in calls.items():
            begin = time.process_time()
            call()
            torch.tpu.synchronize()
            if round_number >= 2:
                least[device] = min(least[device], time.process_time() - begin)
    torch.set_num_threads(2)
    return least["tpu"], least["cpu"]


def reasons(ratios: list[tuple[float, float, str]]) -> list[str]:
    """A line for each row above the limit in its time or its processor time, worst first."""
    unknown = "NO REASON IS KNOWN: find it, and write it into bench/ops.py"
    return [
        f"- {name}, {wall:.2f}x, in processor time {processor:.2f}x: {REASONS.get(name, unknown)}."
        for wall, processor, name in sorted(ratios, key=lambda row: -max(row[:2]))
        if max(wall, processor) > LIMIT
    ]


def main() -> None:
    """Measures all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=pathlib.Path, help="write a page with the table")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("highest")
    load = os.getloadavg()[0]
    titles = [*(f"{size}, us (CPU) ratio" for size in SIZES), "large, processor us (CPU) ratio"]
    lines = [f"| op | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    worst = []
    for name, make in CASES.items():
        if not re.search(options.only, name):
            continue
        cells = []
        for size, n in SIZES.items():
            tpu, cpu = measure(make, n, options.rounds)
            cells.append(f"{tpu * 1e6:.0f} ({cpu * 1e6:.0f}) {tpu / cpu:.2f}")
            if size == "large":
                ratio = tpu / cpu
                tpu, cpu = processor_time(make, n, options.rounds)
                worst.append((ratio, tpu / cpu, name))
                cells.append(f"{tpu * 1e6:.0f} ({cpu * 1e6:.0f}) {tpu / cpu:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    most = sorted(worst, reverse=True)[:10]
    print("worst at the large size: " + ", ".join(f"{name} {wall:.2f}x" for wall, _, name in most))
    explained = reasons(worst)
    print("\n".join(explained))
    if options.write:
        head = (
            "# Speed of single ops on the virtual TPU\n\nMade by `python bench/ops.py --write docs/speed.md`: microseconds "
            "of a call on the virtual TPU, of CPU torch in the same run in brackets, and their ratio, from the fastest of "
            "several rounds. CPU torch has two threads, for the processor time one. "
            f"The load average of the machine's {os.cpu_count()} cores was {load:.1f} at the start and "
            f"{os.getloadavg()[0]:.1f} at the end; where it is above 2, other programs ran too, which CPU torch's two threads "
            "suffer from most, and only the processor times can be relied on.\n\n"
        )
        section = f"\n## Above {LIMIT:.0f}x at the large size\n\nIn either of the two times there.\n\n"
        options.write.write_text(head + "\n".join(lines) + "\n" + section + "\n".join(explained or ["None."]) + "\n")


if __name__ == "__main__":
    main()
