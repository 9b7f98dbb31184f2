"""EagerMode.DEFER_AND_FUSE: the same results as op by op, errors with their line, and loops that settle on a few programs."""

import gc
import re
import threading

import hypothesis
import pytest
import torch
from hypothesis import strategies
from torch import nn

MODES = torch.tpu.EagerMode


@pytest.fixture
def deferred():
    """Every test here defers, and nothing of it is left behind."""
    with torch.tpu.set_eager_mode(MODES.DEFER_AND_FUSE):
        yield
        torch.tpu.synchronize()


def executions() -> int:
    return torch.tpu.counters()["executions"]


# --- when things run ---------------------------------------------------------------------------------------------------------


def test_calls_run_together_when_a_value_is_needed(deferred):
    x = torch.arange(6.0).reshape(2, 3).to("tpu")
    torch.tpu.synchronize()
    before = executions()
    y = (x + 1) * 2
    y[0].add_(5)
    z = y.t() @ y
    assert executions() == before
    assert z.tolist() == [[113, 143, 173], [143, 181, 219], [173, 219, 265]]
    assert executions() == before + 1
    assert y.tolist() == [[7, 9, 11], [8, 10, 12]]
    assert executions() == before + 1  # it came with the same program


@pytest.mark.parametrize(
    "need",
    [
        lambda x: x.cpu(),
        lambda x: x.sum().item(),
        repr,
        lambda x: bool((x > 0).all()),
        lambda x: x.tolist(),
        lambda x: x.numpy(force=True),
        lambda x: torch.tpu.synchronize(),
        lambda x: torch.tpu.Event().record(),
        lambda x: torch.tpu.current_stream().query(),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x + 1),
        lambda x: torch.tpu.set_eager_mode(MODES.DEFER_NEVER),
        lambda x: x.untyped_storage().resize_(4),
    ],
)
def test_what_needs_a_value(deferred, need):
    x = torch.ones(3, device="tpu") + 1
    torch.tpu.synchronize()
    before = executions()
    y = x * 3
    need(y)
    assert executions() > before
    torch.tpu.set_eager_mode(MODES.DEFER_AND_FUSE)


def test_dead_results_are_not_computed(deferred):
    x = torch.ones(256, 256, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    y = x
    for _ in range(30):
        y = y * 1.01 + 1
    assert "(dead)" in torch.tpu.pending_graph(y)
    before = torch.tpu.memory_allocated()
    torch.tpu.synchronize()
    numbers = 64  # bytes
    assert torch.tpu.memory_allocated() - before <= y.nbytes + numbers
    assert torch.tpu.max_memory_allocated() - before <= y.nbytes + numbers
    z = y * 2
    del z
    before = executions()
    torch.tpu.synchronize()
    assert executions() == before  # nobody can ask for it


def test_a_value_that_dies_leaves_its_memory(deferred):
    x = torch.zeros(1 << 18, device="tpu") + 1
    torch.tpu.synchronize()
    for held in (True, False):
        other = x if held else None
        before = torch.tpu.memory_allocated()
        torch.tpu.reset_peak_memory_stats()
        x = x * 2 + 1
        torch.tpu.synchronize()
        more = torch.tpu.max_memory_allocated() - before
        assert more >= x.nbytes if held else more < 1024
    del other
    assert x.unique().tolist() == [7]
    # Also where graphs are cut: each reads what the last one made.
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    for _ in range(3000):
        x = x + 1
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - before < 1024
    assert x.unique().tolist() == [3007]


def test_a_value_overwritten_reuses_its_memory(deferred):
    x = torch.zeros(1 << 18, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    for _ in range(4):
        x.add_(1).mul_(2)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() < before + x.nbytes + 1024
    keep = x.clone()
    x.add_(1)
    assert x[0].item() == 31 and keep[0].item() == 30


def test_long_graphs_are_cut(deferred):
    x = torch.zeros(4, device="tpu")
    torch.tpu.synchronize()
    before = executions()
    for i in range(2500):
        x = x + (i % 7)
    assert x[0].item() == sum(i % 7 for i in range(2500))
    assert executions() > before + 2


# --- pending_graph ------------------------------------------------------------------------------------------------------------


def test_pending_graph_shows_the_calls_of_a_value(deferred):
    x = torch.ones(2, 3, device="tpu")
    torch.tpu.synchronize()
    y = x * 2.5
    other = x - 1
    z = y.sum(0)
    text = torch.tpu.pending_graph(z)
    lines = text.splitlines()
    assert len(lines) == 2 and "mul" in lines[0] and "2.5" in lines[0] and "sum" in lines[1]
    assert "Float[2, 3]" in lines[0]
    assert len(torch.tpu.pending_graph(other).splitlines()) == 1
    dot = torch.tpu.pending_graph(z, "graphviz")
    assert dot.startswith("digraph") and "n0 -> n" in dot and "sub" not in dot
    module = torch.tpu.pending_graph(z, "stablehlo")
    assert "stablehlo.multiply" in module and "stablehlo.subtract" in module and module.count("func.func") == 1
    before = executions()
    torch.tpu.pending_graph(z)
    assert executions() == before
    z.cpu()
    assert torch.tpu.pending_graph(z) == ""
    with pytest.raises(ValueError, match="'text', 'stablehlo' or 'graphviz'"):
        torch.tpu.pending_graph(z, "svg")
    with pytest.raises(TypeError, match="TPU tensor"):
        torch.tpu.pending_graph(torch.ones(2))


# --- errors -------------------------------------------------------------------------------------------------------------------


def test_an_error_names_the_line_that_recorded_the_call(deferred):
    table, index = torch.ones(10, 2, device="tpu"), torch.tensor([3, 20]).to("tpu")
    y = nn.functional.embedding(index, table)  # this line
    z = y * 2
    good = table + 1
    with pytest.raises(IndexError, match=r"embedding: index out of range in self \(called at .*test_deferred.py:\d+\)") as e:
        z.cpu()
    line = int(re.search(r":(\d+)\)", str(e.value))[1])
    with open(__file__) as source:
        assert "# this line" in source.readlines()[line - 1]
    assert good[0, 0].item() == 2  # what does not depend on it is there
    assert (good + 1)[0, 0].item() == 3


def test_user_errors_come_at_once(deferred):
    x = torch.ones(2, 3, device="tpu")
    before = executions()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(4, device="tpu")
    assert executions() == before
    assert (x + 1).sum().item() == 12


def test_a_graph_too_large_for_the_device_loses_only_what_is(deferred):
    x = torch.ones(4, device="tpu")
    huge = nn.functional.pad(x, (0, 1 << 40))
    y = x + 1
    with pytest.raises(torch.OutOfMemoryError):
        huge[:1].cpu()
    assert y.tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError, match="lost"):
        huge[0].item()
    del huge
    assert (y + 1).tolist() == [3, 3, 3, 3]


# --- the same results -------------------------------------------------------------------------------------------------------


def in_mode(mode, function):
    """What `function` returns in a mode, on the CPU, with the same random numbers for each mode."""
    with torch.tpu.set_eager_mode(mode):
        torch.manual_seed(3)
        return [x.cpu() for x in function()]


def test_rewrites_that_change_values_are_off():
    x = torch.tensor([100.0, 1e-30, 3.1415927])

    def chain():
        y = x.to("tpu")
        half = torch.tensor([1.0078125, 3.3, 7.7]).to("tpu", torch.bfloat16)
        return [(y + 1e8) - 1e8, torch.log(torch.exp(y)), torch.sqrt(y * y), half * half * half, y / 3 * 3, (y * 7) / 7]

    strict, fused = in_mode(MODES.DEFER_NEVER, chain), in_mode(MODES.DEFER_AND_FUSE, chain)
    for a, b in zip(strict, fused, strict=True):
        assert torch.equal(a, b), (a, b)


def test_random_numbers_are_the_same():
    def draw():
        x = torch.rand(5, device="tpu")
        y = nn.functional.dropout(torch.ones(64, device="tpu"), 0.5)
        return [x, y, torch.randn(3, device="tpu"), torch.randperm(9, device="tpu"), torch.rand(2, device="tpu") + x[:2]]

    for a, b in zip(in_mode(MODES.DEFER_NEVER, draw), in_mode(MODES.DEFER_AND_FUSE, draw), strict=True):
        assert torch.equal(a, b)


OPS = [
    lambda a, b: a + b,
    lambda a, b: a * b - 0.5,
    lambda a, b: a @ b.t(),
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: a.t().contiguous(),
    lambda a, b: torch.cat([a, b])[::2],
    lambda a, b: torch.softmax(a, 1),
    lambda a, b: torch.relu(a) + b.sum(0, keepdim=True),
    lambda a, b: a.clone(),
    lambda a, b: a.detach(),
    lambda a, b: a.flip(0),
    lambda a, b: torch.sigmoid(a) * torch.rand_like(b),
]
WRITES = [
    lambda a, b: a.add_(b),
    lambda a, b: a[1:3].mul_(0.5),
    lambda a, b: a[:, 0].copy_(b[:, 1] + 0),
    lambda a, b: a.t()[2].fill_(0.25),
    lambda a, b: a[::2].sub_(b[::2] / 2),
    lambda a, b: a.zero_(),
    lambda a, b: a[a > 1.5].sum(),
    lambda a, b: a.masked_fill_(b > 0, -0.125),
    lambda a, b: a.index_add_(0, torch.tensor([0, 2], device=a.device), b[:2] + 1),
]


@hypothesis.given(
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, len(OPS) + len(WRITES) - 1),
            strategies.integers(0, 7),
            strategies.integers(0, 7),
            strategies.integers(0, 9),
        ),
        max_size=25,
    )
)
@hypothesis.settings(max_examples=60)
def test_random_programs_agree_with_strict(program):
    """Views, writes and aliases; now and then a value is read or dropped."""

    def run():
        pool = [torch.linspace(-2, 2, 16).reshape(4, 4).add(i / 3).to("tpu") for i in range(3)]
        for kind, i, j, extra in program:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            if kind < len(OPS):
                result = OPS[kind](a, b)
                if result.shape == (4, 4):
                    pool.append(result)
            else:
                WRITES[kind - len(OPS)](a, b)
            if extra == 0:
                a.sum().item()
            if extra == 1 and len(pool) > 3:
                pool.pop(0)
        return pool

    for a, b in zip(in_mode(MODES.DEFER_NEVER, run), in_mode(MODES.DEFER_AND_FUSE, run), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)


def test_a_view_of_a_dead_base_keeps_its_value(deferred):
    x = torch.arange(12.0).reshape(3, 4).to("tpu")
    y = x * 2
    row = y[1]
    del y
    gc.collect()
    assert row.tolist() == [8, 10, 12, 14]


# --- loops settle ------------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Normalisation, dropout, an embedding and a few layers: what real models have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.body = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(self.embed(tokens).mean(1))


class Loop:
    """A training loop whose parts a test puts together."""

    def __init__(self, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True)) -> None:
        torch.manual_seed(0)
        self.model = Net().to("tpu")
        self.optimizer = optimizer(self.model.parameters())
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, 11, (8, 5), generator=self.generator)
        return tokens.to("tpu"), (tokens.sum(1) % 3).to("tpu")

    def loss(self) -> torch.Tensor:
        tokens, labels = self.batch()
        return nn.functional.cross_entropy(self.model(tokens), labels)

    def train(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def plain(loop, i):
    return loop.train()


def print_sometimes(loop, i):
    loss = loop.train()
    if i % 10 == 9:
        loss.item()
    return loss


def print_always(loop, i):
    loss = loop.train()
    loss.item()
    return loss


def train_and_evaluate(loop, i):
    loss = loop.train()
    if i % 10 == 4:
        loop.model.eval()
        with torch.no_grad():
            total = sum(loop.loss() for _ in range(3))
        total.item()
        loop.model.train()
    return loss


def accumulate(loop, i):
    loss = loop.loss() / 4
    loss.backward()
    if i % 4 == 3:
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return loss.detach()


def new_learning_rate(loop, i):
    loop.optimizer.param_groups[0]["lr"] = 1e-3 / (1 + i)
    return loop.train()


def clip(loop, i):
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
    loop.optimizer.step()
    return loss.detach()


def running_mean(loop, i):
    loss = loop.train()
    loop.mean = 0.9 * loop.mean + 0.1 * loss if i else loss
    if i % 7 == 6:
        float(loop.mean)
    return loss


LOOPS = [plain, print_sometimes, print_always, train_and_evaluate, accumulate, new_learning_rate, clip, running_mean]


@pytest.mark.parametrize("body", LOOPS, ids=lambda body: body.__name__)
def test_loops_settle(body):
    """After the first 50 iterations nothing is compiled, a step is a few programs, and the losses are Strict's."""
    losses = {}
    for mode in (MODES.DEFER_NEVER, MODES.DEFER_AND_FUSE):
        with torch.tpu.set_eager_mode(mode):
            gc.collect()
            loop = Loop()
            history = [body(loop, i) for i in range(50)]
            settled = torch.tpu.counters()
            history += [body(loop, i) for i in range(50, 80)]
            ran = torch.tpu.counters()
            if mode == MODES.DEFER_AND_FUSE:
                assert ran["compiles"] == settled["compiles"]
                assert ran["executions"] - settled["executions"] <= 30 * 3
            losses[mode] = torch.stack(history).cpu()
    torch.testing.assert_close(losses[MODES.DEFER_AND_FUSE], losses[MODES.DEFER_NEVER], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
        lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    ],
    ids=["SGD", "fused AdamW", "Adam per tensor"],
)
def test_loops_settle_with_other_optimizers(deferred, optimizer):
    loop = Loop(optimizer)
    for i in range(30):
        print_sometimes(loop, i)
    compiles = torch.tpu.counters()["compiles"]
    for i in range(30, 60):
        print_sometimes(loop, i)
    assert torch.tpu.counters()["compiles"] == compiles


def test_a_loop_that_stops_early_gives_all_its_results(deferred):
    optimizer = lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)  # noqa: E731  (AdamW makes a large step of a rounding)
    loop = Loop(optimizer)
    for _ in range(33):
        loss = loop.train()
    weights = [p.detach().cpu() for p in loop.model.parameters()]
    with torch.tpu.set_eager_mode(MODES.DEFER_NEVER):
        other = Loop(optimizer)
        for _ in range(33):
            expected = other.train()
        assert abs(loss.item() - expected.item()) < 1e-3
        for a, b in zip(weights, other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b.detach().cpu(), rtol=1e-3, atol=1e-4)


def test_inference_settles(deferred):
    model = Net().to("tpu").eval()
    tokens = torch.arange(40).reshape(8, 5).remainder(11).to("tpu")
    with torch.no_grad():
        results = [model(tokens) for _ in range(320)]
        compiles = torch.tpu.counters()["compiles"]
        results += [model(tokens) for _ in range(120)]
    assert torch.tpu.counters()["compiles"] == compiles
    for y in results[1:]:
        assert torch.equal(y.cpu(), results[0].cpu())


# --- threads -----------------------------------------------------------------------------------------------------------------


def test_threads_share_a_graph(deferred):
    """Each thread's own values are right, whatever the others record and run meanwhile."""
    shared = torch.arange(8.0).to("tpu")
    failures = []

    def work(seed):
        try:
            x = torch.full((8,), float(seed), device="tpu", requires_grad=True)
            total = torch.zeros(8, device="tpu")
            for i in range(40):
                y = ((x * shared + i).relu() * 2).sum()
                y.backward()
                total.add_(x.grad)
                x.grad = None
                if i % (seed + 3) == 0:
                    assert total.tolist() == [2.0 * (i + 1) * k for k in range(8)]
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_calls_wait_in_line_for_their_programs():
    """Strict: new programs are compiled by other threads, and values are right and in order all the same."""
    x = torch.zeros(37, device="tpu")
    for i in range(12):  # each a program of its own, some on results of the last
        x[i : i + 1 + i // 2] += 1
        y = torch.cat([x, x[: i + 1]])
        x = x + y[: x.numel()] * 0
    expected = torch.zeros(37)
    for i in range(12):
        expected[i : i + 1 + i // 2] += 1
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("mode", [MODES.DEFER_NEVER, MODES.DEFER_AND_FUSE])
def test_tensors_that_share_a_buffer_are_written_apart(mode):
    with torch.tpu.set_eager_mode(mode):
        ones = [torch.ones(3, 7, device="tpu") for _ in range(4)]
        zeros = torch.zeros(3, 7, device="tpu")
        a, b = [zeros.clone() for _ in ones], [zeros.clone() for _ in ones]
        torch._foreach_add_(a, ones)
        torch._foreach_add_(a, b)
        torch._foreach_addcmul_(b, ones, a, value=2)
        assert all(torch.equal(x.cpu(), torch.ones(3, 7)) for x in a)
        assert all(torch.equal(x.cpu(), torch.full((3, 7), 2.0)) for x in b)
        assert torch.equal(zeros.cpu(), torch.zeros(3, 7))
