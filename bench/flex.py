"""FlexAttention by blocks on "tpu": a sliding window and the causal mask, beside torch's form of all scores and CPU torch.

    python bench/flex.py [--length 2048] [--window 256] [--block 128] [--batch 1] [--heads 4] [--features 64] [--rounds 9]

All are compiled and measured in one run, in alternating rounds; printed are medians in milliseconds and medians of the rounds'
ratios to the dense form of the same mask. CPU torch has no backward of FlexAttention; its forward is Inductor's kernel, where a
C++ compiler is at hand.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_tpu.compiler import flex_attention as blocks

Mask = Callable[..., Tensor]


def attention(mask: Any, device: str) -> Callable[..., Tensor]:
    """A compiled function whose code no other shares, so that Dynamo keeps a program for each."""
    code = compile("lambda query, key, value: flex_attention(query, key, value, block_mask=mask)", f"<{id(mask)}>", "eval")
    function = eval(code, {"flex_attention": flex_attention, "mask": mask})
    return torch.compile(function, backend="tpu" if device == "tpu" else "inductor", fullgraph=True)


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call, until its results are there."""
    begin = time.perf_counter()
    function()
    torch.tpu.synchronize()
    return time.perf_counter() - begin


class Side:
    """One mask in one form on one device."""

    def __init__(self, mask_mod: Mask, device: str, dense: bool, options: argparse.Namespace) -> None:
        length = options.length
        mask = create_block_mask(mask_mod, None, None, length, length, device=device, BLOCK_SIZE=options.block)
        sizes = (options.batch, options.heads, length, options.features)
        self.leaves = [torch.randn(sizes).to(device).requires_grad_() for _ in range(3)]
        self.weights = torch.randn(sizes).to(device)
        self.function = attention(mask, device)
        usual = blocks._MIN_BLOCKS
        blocks._MIN_BLOCKS = 1 << 62 if dense else usual
        self.forward()
        if device == "tpu":
            self.both()
        torch.tpu.synchronize()
        blocks._MIN_BLOCKS = usual

    def forward(self) -> None:
        """Without gradients."""
        with torch.no_grad():
            self.function(*(x.detach() for x in self.leaves))

    def both(self) -> None:
        """Forward and backward."""
        torch.autograd.grad(self.function(*self.leaves), self.leaves, self.weights)


def report(title: str, calls: dict[tuple[str, str], Callable[[], None]], rounds: int) -> None:
    """Measures in alternating rounds and prints."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(timed(call))
    print(f"{title:18}{'median':>10}{'of dense':>10}")
    for (mask, form), own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, times[mask, "dense"], strict=True))
        print(f"{mask + ', ' + form:18}{1e3 * statistics.median(own):8.1f}ms{ratio:10.2f}")


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("length", 2048), ("window", 256), ("block", 128), ("batch", 1), ("heads", 4), ("features", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", default="highest", help="of products on tpu; highest is CPU torch's arithmetic")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    masks: dict[str, Mask] = {
        "window": lambda b, h, m, n: (m >= n) & (m - n < options.window),
        "causal": lambda b, h, m, n: m >= n,
    }
    with torch.tpu.precision(options.precision):
        sides = {
            (name, form): Side(mask, "cpu" if form == "cpu" else "tpu", form == "dense", options)
            for name, mask in masks.items()
            for form in ("blocks", "dense", "cpu")
        }
        report("forward", {name: side.forward for name, side in sides.items()}, options.rounds)
        print()
        trained = {name: side.both for name, side in sides.items() if name[1] != "cpu"}
        report("with backward", trained, options.rounds)


if __name__ == "__main__":
    main()
