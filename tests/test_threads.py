"""Several Python threads use the device at once: what each computes is what it computes alone."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

MODES = torch.tpu.EagerMode


@pytest.fixture(params=[MODES.DEFER_NEVER, MODES.DEFER_AND_FUSE], ids=["strict", "deferred"], autouse=True)
def _mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.tpu.set_eager_mode(request.param):
        yield


def in_threads(work: Callable[[int], Any], count: int = 4) -> list[Any]:
    """Calls ``work(i)`` for each thread, all at once; returns the results or raises the first failure."""
    start = threading.Barrier(count)
    results: list[Any] = [None] * count
    failures: list[BaseException] = []

    def body(i: int) -> None:
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def train(seed: int) -> list[torch.Tensor]:
    """A model of its own for each seed, trained for some steps: the losses and the weights."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) - 0.5)
    model.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.rand(16, 6, generator=generator).to("tpu")
    losses = []
    for step in range(8):
        optimizer.zero_grad()
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % (seed + 2) == 0:
            loss.item()
    return [torch.stack(losses).cpu(), *(p.detach().cpu() for p in model.parameters())]


def test_models_train_apart():
    alone = [train(seed) for seed in range(3)]
    together = in_threads(train, 3)
    for a, b in zip(alone, together, strict=True):
        # In a graph that calls of other threads cut elsewhere, fused operations may round another way.
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    assert alone[0][0][-1] < alone[0][0][0]


def test_one_tensor_is_read_by_all():
    shared = torch.arange(64.0, device="tpu").reshape(8, 8)
    expected = torch.arange(64.0).reshape(8, 8)

    def work(i: int) -> None:
        for k in range(20):
            row = shared[(i + k) % 8]
            assert torch.equal((row * 2 + i).cpu(), expected[(i + k) % 8] * 2 + i)
            assert (shared.t() + k).sum().item() == expected.sum().item() + 64 * k
            assert torch.equal(shared.clone().add_(1).cpu(), expected + 1)

    in_threads(work)
    assert torch.equal(shared.cpu(), expected)


def test_one_tensor_is_overwritten_while_others_read_it():
    """Whoever reads finds an old or a new value, never one without: the memory goes from one to the other."""
    weight, one = torch.full((16, 16), 1000.0, device="tpu"), torch.ones(16, 16, device="tpu")

    def work(i: int) -> None:
        for _ in range(100):
            if i == 0:
                weight.add_(one)
            else:
                assert 1000 <= weight.min().item() <= weight.max().item() <= 1100
                assert (weight + one).min().item() >= 1001

    in_threads(work, 3)
    assert weight.unique().tolist() == [1100.0]


def test_gradients_of_a_shared_weight():
    """Autograd's own thread and those that call it: each call gives its own gradient."""
    weight = torch.arange(1.0, 5.0, device="tpu", requires_grad=True)

    def work(i: int) -> list[list[float]]:
        gradients = []
        for k in range(10):
            x = torch.full((4,), float(i + k), device="tpu")
            (gradient,) = torch.autograd.grad((weight * weight * x).sum(), weight)
            gradients.append(gradient.tolist())
        return gradients

    for i, gradients in enumerate(in_threads(work)):
        assert gradients == [[2.0 * w * (i + k) for w in (1, 2, 3, 4)] for k in range(10)]
    assert weight.grad is None


def test_gradients_add_up():
    """Accumulation into one ``.grad`` from several threads, which autograd guards."""
    weight = torch.ones(5, device="tpu", requires_grad=True)

    def work(i: int) -> None:
        for _ in range(10):
            (weight * (i + 1)).sum().backward()

    weight.grad = torch.zeros(5, device="tpu")
    in_threads(work)
    assert weight.grad.tolist() == [10.0 * (1 + 2 + 3 + 4)] * 5


def test_errors_belong_to_the_thread_that_made_them():
    good = torch.arange(6.0, device="tpu")

    def work(i: int) -> None:
        for _ in range(10):
            if i == 0:
                with pytest.raises(RuntimeError, match="must match"):
                    good + torch.ones(5, device="tpu")
                with pytest.raises(IndexError):
                    good.select(0, 9)
            else:
                assert (good * i).sum().item() == 15.0 * i

    in_threads(work)


def test_settings_of_one_thread():
    """Grad mode, device guards and streams are a thread's own."""

    def work(i: int) -> tuple[bool, int]:
        stream = torch.tpu.Stream()
        with torch.set_grad_enabled(i % 2 == 0), torch.tpu.stream(stream):
            y = torch.ones(3, device="tpu", requires_grad=True) * 2
            assert torch.tpu.current_stream() == stream
            stream.synchronize()
            return y.requires_grad, int(y.sum().item())

    assert in_threads(work) == [(i % 2 == 0, 6) for i in range(4)]


def test_looking_on_disturbs_nobody():
    """Statistics, counters, synchronize and the memory's report, while others compute."""

    def work(i: int) -> float:
        if i == 0:
            for _ in range(30):
                torch.tpu.memory_stats()
                torch.tpu.counters()
                torch.tpu.memory_summary()
                torch.tpu.synchronize()
                torch.tpu.empty_cache()
            return 0.0
        x = torch.zeros(10, device="tpu")
        for k in range(60):
            x = x + k
            if k % 20 == 0:
                x = x.cpu().to("tpu")
        return x[3].item()

    assert in_threads(work) == [0.0, *[float(sum(range(60)))] * 3]
