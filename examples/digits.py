"""Trains a small convolutional network on 1,797 scans of handwritten digits, on device "tpu".

Plain PyTorch: the device comes from torch.accelerator, nothing else names the TPU except the options below and the counters in
the last line. On a machine without a TPU it runs on the virtual one.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class DigitsNet(nn.Module):
    """Two convolutions with batch norm and pooling, then two linear layers. 8x8 images in, 10 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns logits [batch, 10] of images [batch, 1, 8, 8]."""
        return self.classifier(self.features(images))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns a training set of 1,437 scans and a test set of 360, shuffled with a fixed seed."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def evaluate(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Returns the share of right answers."""
    model.eval()
    images, labels = (tensor.to(device) for tensor in data.tensors)
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum().item()
    model.train()
    return right / len(labels)


def main() -> None:
    """Trains, evaluates, saves a checkpoint and loads it on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["strict", "debug"], default="strict", help="eager mode (default: strict)")
    parser.add_argument(
        "--precision", choices=["medium", "high", "highest"], default="medium", help="float32 matmuls and convolutions"
    )
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()

    device = torch.accelerator.current_accelerator()
    if device is None or device.type != "tpu":
        parser.error(f"expected the accelerator to be a tpu, found {device}")
    modes = {"strict": torch.tpu.EagerMode.DEFER_NEVER, "debug": torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING}
    torch.tpu.set_eager_mode(modes[options.mode])
    torch.set_float32_matmul_precision(options.precision)
    torch.manual_seed(0)
    print(f"training on {torch.tpu.get_device_name()}, eager mode {options.mode}, precision {options.precision}")

    train, test = load_data()
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0))
    model = DigitsNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_function = nn.CrossEntropyLoss()
    step_seconds = []
    accuracy = 0.0
    for epoch in range(1, options.epochs + 1):
        total = torch.zeros((), device=device)
        for images, labels in tqdm(loader, desc=f"epoch {epoch}/{options.epochs}", leave=False):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = loss_function(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach()
            torch.accelerator.synchronize()
            step_seconds.append(time.perf_counter() - begin)
        accuracy = evaluate(model, test, device)
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, test accuracy {accuracy:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "digits.pt")
        torch.save(model.state_dict(), path)
        on_cpu = DigitsNet()
        on_cpu.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    print(f"checkpoint loaded on the CPU: test accuracy {evaluate(on_cpu, test, torch.device('cpu')):.3f}")

    counts = torch.tpu.counters()
    print(
        f"test accuracy {accuracy:.3f} | compiles {counts['compiles']} | cache hits {counts['cache_hits']} | "
        f"fallbacks {sum(counts['fallbacks'].values())} | first step {step_seconds[0]:.2f} s | "
        f"step {statistics.median(step_seconds[1:]):.4f} s"
    )


if __name__ == "__main__":
    main()
