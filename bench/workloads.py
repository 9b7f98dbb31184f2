"""What peer.py and compile.py measure, in plain torch: the same code runs on "tpu" of either package and on the CPU.

A repeated workload is a function of a :class:`Side` that returns the body of one round and the calls in it; one measured once
returns what it found out.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

LENGTHS = (17, 24, 31, 40, 45, 52, 60, 64, 71, 77, 85, 92, 100, 109, 117, 128)


class Side:
    """A device to run on, how many programs it has compiled, and the backend of torch.compile there."""

    def __init__(self, device: str, programs: Callable[[], int], backend: str | None = None) -> None:
        self.device, self.programs, self.backend = torch.device(device), programs, backend

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled function or module; as it is where there is no backend."""
        return torch.compile(function, backend=self.backend) if self.backend else function

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def randn(self, *sizes: int) -> torch.Tensor:
        """Random numbers, the same on every side."""
        return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(self.device)


# --- models -----------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer block of width 256 with 4 heads; attention is written out, for TorchTPU's kernel needs a TPU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(256), nn.LayerNorm(256)
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.wide, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[batch, length, 256] to the same."""
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 4, 64).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(256, dim=2))
        scores = (q @ k.transpose(2, 3) * 0.125).masked_fill(mask[:length, :length], float("-inf"))
        heads = torch.softmax(scores, -1) @ v
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, 256))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class GPT(nn.Module):
    """Four blocks, vocabulary 1024, up to 128 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1024, 256), nn.Embedding(128, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 1024, bias=False)
        self.register_buffer("mask", torch.ones(128, 128, dtype=torch.bool).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, length] to logits [batch, length, 1024]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """ResNet's block of two 3x3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        fits = stride == 1 and inputs == outputs
        shortcut = [] if fits else [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 10 classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        blocks += [Residual(inputs, outputs, outputs // inputs), Residual(outputs, outputs, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def training_step(side: Side, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, adam: bool) -> Callable[[], float]:
    """One step whose loss is read; AdamW, or gradients alone."""
    model, inputs, labels = model.to(side.device), inputs.to(side.device), labels.to(side.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if adam else 0.0)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        if adam:
            optimizer.step()
        return loss.item()

    return step


def gpt_step(side: Side) -> Callable[[], float]:
    """Batch 4 of 128 tokens, AdamW."""
    torch.manual_seed(0)
    return training_step(side, GPT(), torch.randint(0, 1024, (4, 128)), torch.randint(0, 1024, (4, 128)), adam=True)


def resnet_step(side: Side) -> Callable[[], float]:
    """Batch 8 of 64x64 pictures, forward and backward."""
    torch.manual_seed(0)
    return training_step(side, resnet18(), torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)), adam=False)


# --- compiled ---------------------------------------------------------------------------------------------------------------


def whole_step(side: Side, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, adam: bool) -> Callable[[], float]:
    """Forward, backward and update as one compiled function; the loss is read."""
    model, inputs, labels = model.to(side.device), inputs.to(side.device), labels.to(side.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @side.compile
    def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()  # at the beginning, for gradients that nobody sees need not be computed
        loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        if adam:
            optimizer.step()
        return loss.detach()

    return lambda: step(inputs, labels).item()


def tokens(count: int) -> torch.Tensor:
    """Batch 4 of so many tokens."""
    return torch.randint(0, 1024, (4, count))


def gpt_whole_step(side: Side) -> Callable[[], float]:
    """Batch 4 of 128 tokens, AdamW."""
    torch.manual_seed(0)
    return whole_step(side, GPT(), tokens(128), tokens(128), adam=True)


def resnet_whole_step(side: Side) -> Callable[[], float]:
    """Batch 8 of 64x64 pictures, forward and backward."""
    torch.manual_seed(0)
    return whole_step(side, resnet18(), torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)), adam=False)


def compiled_model_step(side: Side, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], float]:
    """A step whose model and loss are compiled; backward and AdamW are called as in eager mode."""
    model, inputs, labels = model.to(side.device), inputs.to(side.device), labels.to(side.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = side.compile(lambda inputs, labels: F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()))

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(inputs, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# --- measured again and again -----------------------------------------------------------------------------------------------

Round = tuple[Callable[[], Any], int]


def chained(side: Side, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, calls: int) -> Round:
    """Each call works on the last one's result."""

    def body() -> None:
        y = x
        for _ in range(calls):
            y = call(y)
        side.synchronize()

    return body, calls


def held(side: Side, call: Callable[[], torch.Tensor], calls: int) -> Round:
    """All results live until the end of the round; those of the last are given up first."""
    results: list[torch.Tensor] = []

    def body() -> None:
        results.clear()
        for _ in range(calls):
            results.append(call())
        side.synchronize()

    return body, calls


def add16(side: Side) -> Round:
    """Sum of 16 elements."""
    y = side.randn(16)
    return chained(side, lambda x: x + y, side.randn(16), 1000)


def transposed_add(side: Side) -> Round:
    """Sum with a transposed matrix, 64x64."""
    y = side.randn(64, 64)
    return chained(side, lambda x: x.t() + y, side.randn(64, 64), 500)


def slice_add(side: Side) -> Round:
    """Sum of a slice and a number."""
    x = side.randn(64, 64)
    return held(side, lambda: x[1:33] + 1.0, 500)


def item(side: Side) -> Round:
    """A sum whose value the host reads."""
    x = torch.zeros(1, device=side.device)
    return (lambda: [(x + 1).item() for _ in range(100)]), 100


def steps(step: Callable[[], float], count: int) -> Round:
    """Steps one after the other: the first of a round finds cold caches."""
    return (lambda: [step() for _ in range(count)]), count


def gpt(side: Side) -> Round:
    """Training steps of the small GPT."""
    return steps(gpt_step(side), 5)


def resnet(side: Side) -> Round:
    """Training steps of ResNet-18 without an optimizer."""
    return steps(resnet_step(side), 5)


def gpt_whole(side: Side) -> Round:
    """Compiled training steps of the small GPT."""
    return steps(gpt_whole_step(side), 5)


def resnet_whole(side: Side) -> Round:
    """Compiled training steps of ResNet-18 without an optimizer."""
    return steps(resnet_whole_step(side), 5)


def add64m(side: Side) -> Round:
    """Sum of two tensors of 64 MiB into a new one."""
    x, y = side.randn(16 << 20), side.randn(16 << 20)
    return held(side, lambda: x + y, 1)


def chain64m(side: Side) -> Round:
    """Five elementwise calls on 64 MiB."""
    x = side.randn(16 << 20)
    return held(side, lambda: ((x * 1.1 + 0.1).relu() - 0.2) * 0.9, 1)


def mm_bf16(side: Side) -> Round:
    """Product of two bfloat16 matrices of 1024x1024."""
    x, y = side.randn(1024, 1024).bfloat16(), side.randn(1024, 1024).bfloat16()
    return held(side, lambda: x @ y, 1)


# --- measured once in a process ---------------------------------------------------------------------------------------------

Found = dict[str, float]


def timed(side: Side, work: Callable[[], Any]) -> Found:
    """Seconds and programs of some work."""
    side.synchronize()
    programs, begin = side.programs(), time.perf_counter()
    work()
    side.synchronize()
    return {"seconds": time.perf_counter() - begin, "programs": side.programs() - programs}


def slices(side: Side) -> Found:
    """32 slices at offsets that are new; the op and one slice ran before."""
    x = side.randn(64, 16)
    (x[40] + 1.0).cpu()
    return timed(side, lambda: [x[i] + 1.0 for i in range(1, 33)])


def gpt_first(side: Side) -> Found:
    """The first training step."""
    return timed(side, gpt_step(side))


def gpt_compiled_first(side: Side) -> Found:
    """The first training step with a compiled model."""
    torch.manual_seed(0)
    return timed(side, compiled_model_step(side, GPT(), tokens(128), tokens(128)))


def gpt_whole_first(side: Side) -> Found:
    """The first training step, compiled whole."""
    return timed(side, gpt_whole_step(side))


def mlp_compiled_first(side: Side) -> Found:
    """The first training step of a compiled 512-1024-10 network at batch 64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return timed(side, compiled_model_step(side, model, torch.randn(64, 512), torch.randint(0, 10, (64,))))


def compiled_lengths(side: Side) -> Found:
    """Forward passes of a compiled model at 16 lengths, the first time."""
    torch.manual_seed(0)
    model = side.compile(GPT().to(side.device).eval())
    inputs = [tokens(length).to(side.device) for length in LENGTHS]
    with torch.no_grad():
        return timed(side, lambda: [model(each).cpu() for each in inputs])


def lengths(side: Side) -> Found:
    """Forward passes at 16 lengths, the first time."""
    torch.manual_seed(0)
    model = GPT().to(side.device).eval()
    inputs = [torch.randint(0, 1024, (4, length)).to(side.device) for length in LENGTHS]
    with torch.no_grad():
        return timed(side, lambda: [model(tokens).cpu() for tokens in inputs])


def first_op(side: Side) -> Found:
    """One op; the process is what is measured."""
    x = torch.ones(16).to(side.device)
    return timed(side, lambda: (x + x).cpu())
