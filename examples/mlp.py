"""Trains a two-layer perceptron (512-1024-10, batch 64, SGD) on a made-up task and times its steps, on device "tpu".

The first step compiles its programs; the next 20 run them. Both are printed.
"""

import argparse
import time

import torch
from torch import nn

BATCH, FEATURES, HIDDEN, CLASSES = 64, 512, 1024, 10


def main() -> None:
    """Trains for 1 + 20 steps (or more) and prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps after the first (default: 20)")
    parser.add_argument("--precision", choices=["medium", "high", "highest"], default="medium")
    parser.add_argument("--device", default=None, help="default: the accelerator")
    options = parser.parse_args()

    device = torch.device(options.device) if options.device else torch.accelerator.current_accelerator()
    torch.set_float32_matmul_precision(options.precision)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(BATCH, FEATURES)
    labels = images[:, :CLASSES].argmax(dim=1).to(device)  # the largest of the first ten features: learnable
    images = images.to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    begin = time.perf_counter()
    first_loss = step()
    first_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(options.steps):
        last_loss = step()
    rest = time.perf_counter() - begin
    print(f"loss {first_loss:.4f} -> {last_loss:.4f}")
    print(
        f"first step {first_seconds:.3f} s | next {options.steps} steps {rest:.3f} s ({rest / options.steps * 1e3:.2f} ms each)"
    )


if __name__ == "__main__":
    main()
