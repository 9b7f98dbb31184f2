"""Random programs of views, writes and aliases in Strict, Debug, DeferAndFuse and torch.compile: all four must agree."""

import random

import pytest
import torch

MODES = torch.tpu.EagerMode


def only_write(_):
    """A step without a result."""


STEPS = [
    lambda a, b: a + b,
    lambda a, b: a * b - 0.5,
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.cat([a, b])[::2],
    lambda a, b: torch.relu(a) + b[:1],
    lambda a, b: a.clone(),
    lambda a, b: a.flip(0),
    lambda a, b: a.amax(0, keepdim=True) - b,
    lambda a, b: torch.where(b.isnan(), a, b),
    lambda a, b: a / 3 * 3 + b.sqrt().nan_to_num(0.25),
    # Views.
    lambda a, b: a.t(),
    lambda a, b: a.view(-1).view(4, 4) if a.is_contiguous() else a.transpose(0, 1),
    lambda a, b: a.unflatten(0, (2, 2)).flatten(0, 1),
    lambda a, b: a.detach(),
    lambda a, b: a[:],
    # Writes.
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(0.5),
    lambda a, b: only_write(a[1:3].mul_(2)),
    lambda a, b: only_write(a[:, 0].copy_(b[:, 1] + 0)),
    lambda a, b: only_write(a.t()[2].fill_(0.25)),
    lambda a, b: only_write(a[::2].sub_(b[::2] / 2)),
    lambda a, b: a.masked_fill_(torch.eye(4, device=a.device).bool(), -0.125),
    lambda a, b: a.index_add_(0, torch.tensor([0, 2], device=a.device), b[:2] + 1),
    lambda a, b: a.copy_(b.clone()),
    lambda a, b: only_write(a.diagonal().zero_()),
]


def programs(count, seed):
    """Lists of steps, each with the numbers of its operands, that torch itself runs."""
    choice = random.Random(seed)
    found = []
    while len(found) < count:
        length = choice.randrange(2, 14)
        program = [(choice.randrange(len(STEPS)), choice.randrange(8), choice.randrange(8)) for _ in range(length)]
        if is_fair(interpreted(program)):
            found.append(program)
    return found


def interpreted(program):
    """A function of three tensors that returns all tensors that the program made."""

    def function(x, y, z):
        pool = [x, y, z]
        for step, i, j in program:
            result = STEPS[step](pool[i % len(pool)], pool[j % len(pool)])
            if result is not None and result.shape == (4, 4):
                pool.append(result)
        return pool[3:]

    return function


def arguments(device="tpu"):
    """Three tensors, two of which are views of one."""
    base = torch.linspace(-2, 2, 32).reshape(8, 4).to(device)
    return [base[:4], base[2:6].t(), torch.linspace(-1, 1, 16).reshape(4, 4).to(device)]


def outcome(function, device="tpu"):
    """What a call returns, what it leaves in its arguments, and what a write into each result then changes."""
    given = arguments(device)
    results = function(*given)
    values = [[each.cpu() for each in [*given, *results]]]
    for result in results:
        result.add_(1)
        values.append([each.cpu() for each in [*given, *results]])
    return values


def is_fair(function):
    """Does torch itself run the program, and AOTAutograd on the CPU give what eager mode gives?

    Some writes are errors (an operand that overlaps what is written), and AOTAutograd does not put all aliases of arguments
    together again.
    """
    torch._dynamo.reset()
    try:
        expected = outcome(function, "cpu")
        same(outcome(torch.compile(function, backend="aot_eager", fullgraph=True), "cpu"), expected)
    except Exception:  # of any kind: none of it is ours
        return False
    return True


def same(ours, theirs):
    """The same values, and the same aliases, since each write was seen in the same tensors.

    Not bit for bit: one program of a product and a sum rounds once.
    """
    assert len(ours) == len(theirs)
    for mine, others in zip(ours, theirs, strict=True):
        for a, b in zip(mine, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed):
    for program in programs(6, seed):
        function = interpreted(program)
        with torch.tpu.set_eager_mode(MODES.DEFER_NEVER):
            expected = outcome(function)
        for mode in (MODES.DEFER_NEVER_AND_LAUNCH_BLOCKING, MODES.DEFER_AND_FUSE):
            with torch.tpu.set_eager_mode(mode):
                same(outcome(function), expected)
        torch._dynamo.reset()
        same(outcome(torch.compile(function, backend="tpu", fullgraph=True)), expected)


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_with_graph_breaks(seed):
    """Two in one function: tensors and their views go from one graph to the next."""
    for one, other in zip(programs(4, 10 + seed), programs(4, 20 + seed), strict=True):
        first, second = interpreted(one), interpreted(other)

        def function(x, y, z):
            made = first(x, y, z)
            torch._dynamo.graph_break()
            return made + second(made[-1] if made else x, y, z)

        try:
            expected = outcome(function)
        except RuntimeError as error:
            assert "memory location" in str(error)
            continue
        torch._dynamo.reset()
        same(outcome(torch.compile(function, backend="tpu")), expected)


@pytest.mark.usefixtures("full_float32")
@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_random_programs(seed):
    """Autograd through views and writes."""

    def gradients(function, backend):
        x, y, z = (each.detach().clone().requires_grad_() for each in arguments())

        def loss(x, y, z):
            results = function(x * 1, y * 1, z * 1)
            return sum(((each * (i + 1)).tanh().sum() for i, each in enumerate(results)), (x * y * z).sum())

        value = (torch.compile(loss, backend=backend) if backend else loss)(x, y, z)
        return value.detach().cpu(), *(each.cpu() for each in torch.autograd.grad(value, (x, y, z)))

    for program in programs(4, 30 + seed):
        function = interpreted(program)
        try:
            expected = gradients(function, None)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            continue
        torch._dynamo.reset()
        compiled = gradients(function, "tpu")
        torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
