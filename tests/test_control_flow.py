"""Control flow in compiled programs, compared with the CPU: torch.cond, while_loop, scan, map and associative_scan."""

import pathlib

import pytest
import torch
from helpers import output_of
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.utils._pytree import tree_leaves, tree_map

from torch_tpu import _C
from torch_tpu.aot import compiler

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "full_float32")


def to_tpu(values):
    return tree_map(lambda x: x.to("tpu") if isinstance(x, torch.Tensor) else x, values)


def check_close(actual, expected, **tolerance):
    for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one.cpu(), other, **tolerance)


def check(function, *arguments):
    """Gives the CPU's values, as one program and without a wait of the host. Returns the compiled function."""
    whole = torch.compile(function, backend="tpu", fullgraph=True)
    arguments_on_tpu = to_tpu(arguments)
    check_close(whole(*arguments_on_tpu), function(*arguments))
    before = torch.tpu.counters()
    with torch.tpu.forbid_waits():
        result = whole(*arguments_on_tpu)
    torch.tpu.synchronize()
    after = torch.tpu.counters()
    assert (after["executions"] - before["executions"], after["compiles"] - before["compiles"]) == (1, 0)
    check_close(result, function(*arguments))
    return whole


def check_gradients(function, *arguments):
    """Forward and backward give the CPU's values in one program each."""

    def run(function, arguments):
        leaves = [x.detach().requires_grad_() for x in arguments]
        result = function(*leaves)
        gradients = torch.autograd.grad(result, leaves, allow_unused=True)
        return result.detach(), [x for x in gradients if x is not None]

    whole = torch.compile(function, backend="tpu", fullgraph=True)
    arguments_on_tpu = to_tpu(arguments)
    expected = run(function, arguments)
    check_close(run(whole, arguments_on_tpu), expected, rtol=1e-4, atol=1e-5)
    before = torch.tpu.counters()["executions"]
    run(whole, arguments_on_tpu)
    torch.tpu.synchronize()
    assert torch.tpu.counters()["executions"] - before <= 3  # with the one that makes the first gradient


# --- cond --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda x, y: (x * y, y.sum(0)), lambda x, y: (x - y, x[0].clone()), (x, y))

    check(function, sign * torch.rand(4, 3), torch.randn(4, 3))


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_cond(sign):
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda x, y: (x * y).sin(), lambda x, y: x @ y @ x, (x, y)).sum()

    check_gradients(function, sign * torch.rand(3, 3), torch.randn(3, 3))


def test_cond_follows_its_condition():
    whole = check(lambda x: torch.cond(x[0] > x[1], lambda x: x + 1, lambda x: x * 2, (x,)), torch.tensor([1, 2]))
    assert whole(torch.tensor([3, 2]).to("tpu")).tolist() == [4, 3]


def test_a_condition_of_the_cpu():
    function = lambda p, x: torch.cond(p, lambda x: x + 1, lambda x: x * 2, (x,))  # noqa: E731
    whole, x = torch.compile(function, backend="tpu", fullgraph=True), torch.randn(3)
    for p in (torch.tensor(True), torch.tensor(False)):
        check_close(whole(p, x.to("tpu")), function(p, x))


def test_views_as_operands_and_results():
    def function(x):
        return torch.cond(x.sum() > 0, lambda y: y.t() * 2, lambda y: (y * 3).t() + 1, (x.t()[1:4, ::2],)).reshape(-1)

    x = torch.randn(6, 5)
    check(function, x)
    check(function, -x)


def test_lazy_conjugates():
    def function(x):
        return map_over(lambda y: y.conj() * 1j + y.conj().imag, x)

    check(function, torch.complex(torch.rand(4, 3), torch.rand(4, 3)))


# --- while_loop ----------------------------------------------------------------------------------------------------------


def counter(x, value=0):
    return torch.full((), value, dtype=torch.int64, device=x.device)


@pytest.mark.parametrize("start", [0, 6, 100])
def test_while_loop(start):
    def function(x, w):
        return while_loop(lambda i, y: i < 7, lambda i, y: (i + 1, (y @ w).tanh()), (counter(x, start), x.clone()))

    check(function, torch.randn(4, 3), torch.randn(3, 3))


def test_a_loop_as_long_as_the_data_says():
    def function(x):
        return while_loop(lambda x, n: x.abs().max() > 1, lambda x, n: (x / 2, n + 1), (x.clone(), counter(x)))

    whole = check(function, torch.tensor([100.0, 3.0]))
    assert whole(torch.tensor([9.0, 0.0]).to("tpu"))[1].item() == 4
    assert whole(torch.tensor([0.5, 0.0]).to("tpu"))[1].item() == 0


def test_carries_of_other_dtypes():
    def function(x):
        def body(i, go, z, h):
            return i + 1, (i < 3) & go, z * 1j, h * 2

        start = (counter(x), torch.ones((), dtype=torch.bool, device=x.device), torch.complex(x, x), x.bfloat16())
        return while_loop(lambda i, go, z, h: go & (i < 9), body, start)

    check(function, torch.randn(3))


def test_carries_in_a_nest():
    def function(x):
        def body(state):
            return ({"a": state["a"] + state["b"][0], "b": (state["b"][0] * 2, state["b"][1] + 1)},)

        start = ({"a": x * 1, "b": (x + 1, counter(x))},)
        return while_loop(lambda state: state["b"][1] < 3, body, start)

    check(function, torch.randn(3))


# --- scan and map --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(dim, reverse):
    def function(x):
        start = torch.zeros(3, device=x.device)
        return scan(lambda c, y: (c * 0.5 + y, (c + 1) * y), start, x, dim=dim, reverse=reverse)

    check(function, torch.randn(5, 3) if dim == 0 else torch.randn(3, 5))


def test_scan_of_a_nest():
    def function(x, n):
        def step(carry, xs):
            total, count = carry
            return (total + xs["x"], count + xs["n"]), [xs["x"] * total, (xs["n"] > 0, count * 2)]

        return scan(step, (torch.zeros(3, device=x.device), counter(x)), {"x": x, "n": n})

    check(function, torch.randn(4, 3), torch.tensor([1, -2, 0, 5]))


def test_gradients_of_scan():
    def function(x, w, b):
        def step(c, y):
            c = torch.tanh(y @ w + c * b)
            return c, c * 2

        last, ys = scan(step, torch.ones(3, device=x.device), x)
        return last.sum() + (ys * ys).sum()

    check_gradients(function, torch.randn(6, 4), torch.randn(4, 3), torch.randn(3))


def test_map():
    def function(xs, w):
        return map_over(lambda x: {"dot": x[0] @ w, "sum": x[0].sum() + x[1]}, xs)

    check(function, (torch.randn(5, 2, 3), torch.randint(5, (5,))), torch.randn(3, 4))


def test_gradients_of_map():
    check_gradients(lambda x, w: map_over(lambda x: (x @ w).sin(), x).sum(), torch.randn(5, 2, 3), torch.randn(3, 4))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [2, 7, 16])
def test_associative_scan(length, reverse):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    def function(a, b):
        return associative_scan(combine, (a, b), 0, reverse=reverse, combine_mode="generic")

    check(function, torch.randn(length, 3), torch.randn(length, 3))


def test_the_pointwise_mode_of_associative_scan():
    x = torch.randn(7, 3)
    expected = associative_scan(torch.mul, x, 0, combine_mode="generic")
    for function in (associative_scan, torch.compile(associative_scan, backend="tpu", fullgraph=True)):
        check_close(function(torch.mul, x.to("tpu"), 0), expected)
    with pytest.raises(ValueError, match="Combine_fn must be a callable"):
        associative_scan(3, x.to("tpu"), 0)


# --- one in another, and what bodies hold --------------------------------------------------------------------------------


def test_nesting():
    def function(x, w):
        def step(carry, y):
            branch = torch.cond(y.sum() > 0, lambda y: y @ w, lambda y: y - carry.mean(), (y,))
            _, doubled = while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, z * 0.5 + w[0]), (counter(x), branch * 1))
            return carry + doubled, map_over(lambda v: v * w.sum() + carry, w + 1)

        return scan(step, torch.zeros(3, device=x.device), x)

    check(function, torch.randn(5, 3), torch.randn(3, 3))


def test_gradients_of_nested_control_flow():
    def function(x, w):
        def step(carry, y):
            y = torch.cond(y.sum() > 0, lambda y: (y @ w).sin(), lambda y: y * w[0], (y,))
            return carry + y, carry * y

        last, ys = scan(step, torch.ones(3, device=x.device), x)
        return (last * ys).sum()

    check_gradients(function, torch.randn(5, 3), torch.randn(3, 3))


def test_modules_and_constants():
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(3, 4)

    def function(x):
        return scan(lambda h, y: ((n := cell(y, h)), n * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)), zeros(x), x)

    def zeros(x):
        return torch.zeros(2, 4, device=x.device)

    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        expected = function(x)
        cell.to("tpu")
        check_close(torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu")), expected)


@pytest.mark.parametrize("way", ["loop", "branch"])
def test_writes_of_captured_tensors(way):
    """Without gradients, torch lets bodies write what they capture, such as a cache of keys."""

    def function(x):
        cache, sums = torch.zeros(4, 3, device=x.device), torch.zeros(3, 4, device=x.device).t()

        def keep(i, y):
            cache.index_copy_(0, i[None], y[None] + cache[1:2])
            sums[:, 1:].add_(y[1:])
            return y * 0.5 + sums.mean()

        if way == "loop":
            result = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, keep(i, y)), (counter(x), x[0] * 1))
        else:
            other = lambda i, y: sums.sub_(2)[i[None]].sum(0) + y  # noqa: E731
            result = torch.cond(x.sum() > 0, keep, other, (counter(x, 2), x[0]))
        return result, cache * 1, sums * 1

    with torch.no_grad():
        for x in (torch.rand(4, 3), -torch.rand(4, 3)):
            check(function, x)


def test_writes_of_a_branch_in_a_loop():
    """torch refuses these; the core takes them."""

    def run(x):
        kept, other = x.clone(), x.clone()  # both share one value

        def branch(y):
            kept.add_(y)
            return [y * 2]

        def step(i, y):
            (y,) = _C._record_case(i > 0, [lambda: [y + other], lambda: branch(y)])
            return [i + 1, y]

        i, y = _C._record_while(lambda i, y: [i < 3], step, [counter(x), x])
        return [i, y, kept, other]

    x = torch.tensor([1.0, 2.0])
    i, y, kept, other = _C._CompiledGraph("writes", 1, False, run, [])([x.to("tpu")])
    assert i.item() == 3
    # y is 2, 4 and 8 times x after the steps; the last two add the y that they begin with to kept.
    check_close([y, kept, other], [(x + x) * 4, x + 2 * x + 4 * x, x])


def test_autocast():
    def function(x, w):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: w @ x, (x,))
            return map_over(lambda y: y @ w, y[None])

    operands = torch.rand(3, 3), torch.rand(3, 3)
    result = torch.compile(function, backend="tpu", fullgraph=True)(*to_tpu(operands))
    assert result.dtype == torch.bfloat16
    check_close(result, function(*operands))


def test_index_bounds_in_a_body():
    def function(x, i):
        def step(c, j):
            c = c + torch.cond(j > 1, lambda j: x[j[None]].sum(0), lambda j: x[j[None]].sum(0) * 2, (j,))
            return c, c * 1

        return scan(step, torch.zeros(3, device=x.device), i)

    whole = check(function, torch.randn(4, 3), torch.tensor([0, 3, 1, 2]))
    for bad in ([0, 4, 1, 2], [0, 1, 1, -5]):
        with pytest.raises(IndexError, match="out of bounds"):
            whole(torch.randn(4, 3).to("tpu"), torch.tensor(bad).to("tpu"))
            torch.tpu.synchronize()


@pytest.mark.parametrize("way", ["scan", "map", "nested"])
def test_random_numbers_differ_from_step_to_step(way):
    def function(x):
        def step(c, y):
            inner = map_over(lambda v: torch.rand_like(v), y) if way == "nested" else torch.rand_like(y)
            return c + 1, inner

        if way == "map":
            return map_over(lambda y: torch.rand_like(y), x), torch.rand_like(x)
        return scan(step, counter(x), x)[1], torch.rand_like(x)

    whole, x = torch.compile(function, backend="tpu", fullgraph=True), torch.zeros(5, 40).to("tpu")
    torch.manual_seed(3)
    inside, behind = whole(x)
    numbers = torch.cat([inside.flatten(), behind.flatten(), *(y.flatten() for y in whole(x))])
    assert numbers.unique().numel() == numbers.numel()
    assert abs(numbers.mean().item() - 0.5) < 0.05
    torch.manual_seed(3)
    torch.testing.assert_close(whole(x)[0], inside)


def test_random_numbers_in_branches():
    def function(x):
        return torch.cond(x.sum() > 0, torch.rand_like, lambda x: torch.randn_like(x) - 9, (x,)), torch.rand_like(x)

    whole, x = torch.compile(function, backend="tpu", fullgraph=True), torch.ones(50).to("tpu")
    numbers = torch.cat([y for _ in range(2) for y in whole(x)])
    assert numbers.unique().numel() == numbers.numel()
    assert whole(-x)[0].mean() < -5


# --- what no program holds: between programs -----------------------------------------------------------------------------


def test_random_numbers_in_a_loop_of_unknown_length():
    def function(x):
        return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, torch.rand_like(y) + y[:1] * 0 + i), (counter(x), x.clone()))

    last, y = torch.compile(function, backend="tpu")(torch.zeros(20).to("tpu"))
    assert last.item() == 4
    assert 3 < y.min() < y.max() < 4
    assert y.unique().numel() == 20


def test_gradients_of_while_loop():
    def function(x):
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin() * x), (counter(x), x.clone()))[1].sum()

    x = torch.randn(3)
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.clone().to(device).requires_grad_()
        (torch.compile(function, backend="tpu") if device == "tpu" else function)(leaf).backward()
        results.append(leaf.grad.cpu())
    torch.testing.assert_close(*results)


def test_integers_that_are_carried():
    function = lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x.clone()))[1]  # noqa: E731
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(function, backend="tpu")(x.to("tpu")).cpu(), x * 8)


# --- programs --------------------------------------------------------------------------------------------------------------

# Leaves the texts of its programs in the cache's folder.
TEXTS = """
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over

def step(c, y):
    y = torch.cond(y.sum() > 0, lambda y: (y @ w).sin(), lambda y: y * w[0], (y,))
    return c + y, c * y

def function(x, i):
    last, ys = scan(step, torch.ones(3, device=x.device), x)
    n, doubled = while_loop(lambda n, y: y.sum() < 100, lambda n, y: (n + 1, y * 2 + w[i[:1]]), (i[0] * 1, w.abs()))
    pairs = associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")
    return last * ys + map_over(lambda y: w @ y + torch.rand_like(y), x) * n + pairs + doubled.sum()

w = torch.rand(3, 3).to("tpu").requires_grad_()
for length in LENGTHS:
    torch._dynamo.reset()
    x, i = torch.randn(length, 3).to("tpu").requires_grad_(), torch.tensor([0, 1]).to("tpu")
    with torch.set_grad_enabled(False):
        torch.compile(function, backend="tpu", fullgraph=True)(x, i)
    f = lambda x: sum(y.sum() for y in scan(step, torch.ones(3, device=x.device), x))
    torch.compile(f, backend="tpu", fullgraph=True)(x).backward()
torch.tpu.synchronize()
"""


def texts_of(folder, lengths, **env):
    output_of(
        TEXTS.replace("LENGTHS", repr(lengths)), TORCH_TPU_CACHE_DIR=str(folder), TORCH_TPU_CACHE_MODE="dump-on-miss", **env
    )
    texts = [path.read_text() for path in pathlib.Path(folder).rglob("misses/*")]
    return [text for text in texts if "stablehlo.while" in text and "stablehlo.case" in text]


def test_programs_do_not_grow_with_the_length(tmp_path):
    def sizes(lengths):
        return sorted(
            len(text.splitlines()) for text in texts_of(tmp_path / str(lengths), lengths) if "associative" not in text
        )

    short, long = sizes([8]), sizes([64])
    assert len(short) == len(long) == 3
    assert short[:2] == long[:2]  # forward and backward of the scan
    assert long[2] - short[2] < 200  # three more levels of associative_scan


@pytest.mark.skipif(compiler.libtpu() is None, reason="libtpu is not installed: pip install libtpu")
def test_libtpu_compiles_control_flow(tmp_path):
    programs = []
    for number, text in enumerate(texts_of(tmp_path / "cache", [8], TORCH_TPU_TARGET_GENERATION="5")):
        path = tmp_path / f"control_flow-{number}.mlir"
        path.write_text(f"// row: control_flow\n// call: control_flow()\n// generations: 5\n{text}")
        programs.append(compiler.Program(path))
    assert len(programs) == 3
    judge = compiler.Compiler(tmp_path / "verdicts.jsonl", time_limit=60)
    try:
        assert [judge.judge(program, "v5e:1x1") for program in programs] == ["ok"] * 3
    finally:
        judge.close()
