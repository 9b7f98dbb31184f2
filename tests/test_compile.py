"""torch.compile with the backend "tpu", compared with the same calls in eager mode."""

import copy
import functools
import random as random_choice
import threading

import pytest
import torch
from helpers import output_of, training_step
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "full_float32")


def compiled(function, **keywords):
    return torch.compile(function, backend="tpu", **keywords)


def executions_of(function, *arguments):
    """How many programs a call runs that ran before."""
    function(*arguments)
    before = torch.tpu.counters()
    function(*arguments)
    torch.tpu.synchronize()
    after = torch.tpu.counters()
    assert after["compiles"] == before["compiles"]
    return after["executions"] - before["executions"]


def random(*sizes):
    return torch.randn(sizes).to("tpu")


# --- values ------------------------------------------------------------------------------------------------------------


FUNCTIONS = {
    "pointwise": lambda x: (x * 2 + 1).relu() - x.sigmoid(),
    "reduction": lambda x: (x.sum(-1), x.mean(), x.amax(0), x.argmax(-1)),
    "views": lambda x: (x.t() @ x, x[1:3] * 2, x.reshape(-1)[::2] + 1, x.unsqueeze(1).expand(-1, 3, -1).sum(1)),
    "softmax": lambda x: F.log_softmax(x, -1) + F.softmax(x, 0),
    "factories": lambda x: x + torch.arange(6, device="tpu") + torch.ones(4, 6, device="tpu") + torch.eye(6, device="tpu")[:4],
    "index": lambda x: x[torch.tensor([0, 2], device="tpu")] + F.embedding(torch.tensor([1, 3], device="tpu"), x),
    "sort": lambda x: x.sort(-1),
    "where": lambda x: torch.where(x > 0, x, -x).cumsum(-1),
    "in place": lambda x: x.clone().mul_(2).add_(x).clamp_(-1, 1),
    "in place view": lambda x: _write_rows(x.clone()),
    "dtypes": lambda x: (x.bfloat16() * 2, x.int() // 2, x > 0, x.double().sqrt().nan_to_num()),
    "decomposed": lambda x: F.huber_loss(x, x * 2) + torch.logit(x.sigmoid()).sum(),
}


def _write_rows(x):
    x[1:3] = 5
    x[:, 2].mul_(3)
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_what_eager_mode_gives(name, no_fallback):
    function, x = FUNCTIONS[name], random(4, 6)
    torch.testing.assert_close(compiled(function, fullgraph=True)(x), function(x), rtol=1e-6, atol=1e-6)


# A seeded part of torch's operator database, less uninitialised memory, eigenvectors (whose sign is free), kernels of CUDA and
# ops of sparse tensors.
OPERATORS = [
    op
    for op in op_db
    if torch.float32 in op.dtypes and not op.name.startswith(("empty", "jiterator", "linalg.eigh", "new_empty", "sparse"))
]


@pytest.mark.parametrize("op", random_choice.Random(6).sample(OPERATORS, 48), ids=lambda op: op.formatted_name)
def test_operators_of_the_database(op):
    sample = next(iter(op.sample_inputs("cpu", torch.float32)))
    to_tpu = functools.partial(tree_map, lambda x: x.to("tpu") if isinstance(x, torch.Tensor) else x)
    keywords = {name: "tpu" if name == "device" else to_tpu(value) for name, value in sample.kwargs.items()}

    def result_of(function):
        torch.manual_seed(0)
        return function(to_tpu(sample.input), *to_tpu(sample.args))

    def function(*arguments):
        return op.op(*arguments, **keywords)

    torch.testing.assert_close(result_of(compiled(function)), result_of(function), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_lazy_conjugates():
    x = torch.complex(torch.randn(3, 2), torch.randn(3, 2)).to("tpu")

    def function(x):
        y = x + 1
        return y.conj(), y, x.conj(), torch.fft.ifft(x).t()

    for one, other in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, other)
        assert one.is_conj() == other.is_conj()


def test_a_graph_is_one_program():
    function = compiled(lambda x, y: ((x @ y).relu().sum(-1) * 2).exp(), fullgraph=True)
    assert executions_of(function, random(4, 6), random(6, 5)) == 1


def test_plain_compile_takes_tpu_tensors():
    function = torch.compile(lambda x: (x * 2).sum())
    x = random(4, 6)
    torch.testing.assert_close(function(x), (x * 2).sum())
    assert executions_of(function, x) == 1


def test_operands_of_any_layout():
    function = compiled(lambda x: x.exp() + 1)
    base = random(8, 8)
    for x in (base, base.t(), base[::2], base[:, 1:5], base[:1].expand(8, 8), base[2:, 3:].t()):
        torch.testing.assert_close(function(x), x.exp() + 1)
        assert function(x).stride() == (x.exp() + 1).stride()


def test_numbers_of_the_host():
    function = compiled(lambda x, scale, n: x * scale + n)
    x = random(3)
    for scale, n in ((2.0, 1), (3.5, 7), (4.0, 1)):
        torch.testing.assert_close(function(x, scale, n), x * scale + n)


def test_scalar_tensors_of_the_cpu_are_inputs():
    function = compiled(lambda x, scale: x * scale + scale.pow(2), fullgraph=True)
    x = random(3)
    function(x, torch.tensor(2.0))
    before = torch.tpu.counters()["compiles"]
    for scale in (torch.tensor(3.0), torch.tensor(-1.5), torch.tensor(0.0)):
        torch.testing.assert_close(function(x, scale).cpu(), x.cpu() * scale + scale.pow(2))
    assert torch.tpu.counters()["compiles"] == before


def test_sizes_that_change_and_come_back():
    def function(x):
        y = x * 2
        return y[1:], y.t(), y.sum(-1)

    whole = compiled(function)
    for length in (4, 6, 5, 4, 6, 9, 5):
        x = random(length, 3)
        for one, other in zip(whole(x), function(x), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset()


# --- options ---------------------------------------------------------------------------------------------------------------


def test_fast_math_lets_xla_change_values():
    x = torch.full((4,), 1.0, device="tpu")

    def function(x):
        return (x + 1e8) - 1e8

    assert compiled(function)(x).tolist() == function(x).tolist() == [0.0] * 4
    torch._dynamo.reset()
    assert compiled(function, options={"fast_math": True})(x).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "keywords",
    [{"mode": "fastest"}, {"options": {"fast_maths": True}}, {"options": {"fast_math": 1}}],
    ids=["mode", "option", "type"],
)
def test_unknown_options_are_errors(keywords):
    with pytest.raises(
        Exception, match=r"Unrecognized mode=fastest|Unexpected (optimization option fast_maths|type of attr fast_math)"
    ):
        compiled(lambda x: x + 1, **keywords)(random(3))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_are_all_the_same(mode):
    function, x = compiled(lambda x: x * 2 + 1, mode=mode), random(3)
    assert torch.equal(function(x), x * 2 + 1)


# --- mutation and aliases ------------------------------------------------------------------------------------------------


def test_arguments_are_written_in_place():
    def step(x, y):
        x.add_(y)
        y[0] = 7
        return x.sum()

    x, y = random(4, 6), random(4, 6)
    a, b = x.clone(), y.clone()
    alias = x.view(-1)
    torch.testing.assert_close(compiled(step)(x, y), step(a, b))
    assert torch.equal(x, a) and torch.equal(y, b) and torch.equal(alias, a.view(-1))


def test_writes_through_views_of_arguments():
    def step(x):
        x[1:3].mul_(2)
        x.t()[0].add_(1)

    base = random(5, 6)
    expected = base.clone()
    compiled(step)(base[1:])
    step(expected[1:])
    assert torch.equal(base, expected)


def test_results_that_are_views():
    def function(x):
        y = x + 1
        return x.t(), y, y[1:], y.t(), x

    x = random(4, 6)
    got, expected = compiled(function)(x), function(x)
    for one, other in zip(got, expected):
        assert torch.equal(one, other) and one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
    got[1].zero_()
    assert not got[2].any() and not got[3].any()
    got[0].zero_()
    assert not x.any() and got[4] is x


def test_a_result_twice():
    def function(x):
        y = x * 2
        return y, y

    one, other = compiled(function)(random(3))
    one.fill_(4)
    assert torch.equal(other, one)


# --- training ------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.linear(F.max_pool2d(self.norm(self.convolution(x)).relu(), 2).flatten(1))


def test_training_agrees_with_eager_mode(no_fallback):
    torch.manual_seed(0)
    model = Network().to("tpu")
    twin = copy.deepcopy(model)
    x, labels = random(4, 3, 8, 8), torch.randint(0, 10, (4,)).to("tpu")
    function = compiled(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, twin)]
    for _ in range(4):
        for optimizer, forward in zip(optimizers, (function, twin)):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), labels)
            loss.backward()
            optimizer.step()
    for one, other in zip(model.state_dict().values(), twin.state_dict().values()):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-5)
    model.eval(), twin.eval()
    torch.testing.assert_close(function(x), twin(x), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_a_whole_step_is_one_program(name, no_fallback):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("tpu")
    twin = copy.deepcopy(model)
    x, y = random(5, 6), random(5, 3)
    optimizer, other = (getattr(torch.optim, name)(each.parameters(), lr=0.05) for each in (model, twin))

    whole = compiled(training_step(model, optimizer))
    for _ in range(5):
        loss = whole(x, y)
        other.zero_grad()
        expected = F.mse_loss(twin(x), y)
        expected.backward()
        other.step()
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    for one, two in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert executions_of(whole, x, y) == 1


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "NAdam"])
def test_a_whole_step_is_captured_once(name, zero_first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("tpu")
    twin = copy.deepcopy(model)
    optimizer, other = (getattr(torch.optim, name)(each.parameters(), lr=0.05) for each in (model, twin))

    def step(model, optimizer, x, y):
        if zero_first:
            optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
        return loss.detach()

    whole = compiled(functools.partial(step, model, optimizer))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(4):
        x, y = random(5, 6), random(5, 3)
        torch.testing.assert_close(whole(x, y), step(twin, other, x, y), rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    for one, two in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert [set(state) for state in optimizer.state.values()] == [set(state) for state in other.state.values()]
    x, y = random(7, 6), random(7, 3)  # captured again, now that the parameters are known to Dynamo
    torch.testing.assert_close(whole(x, y), step(twin, other, x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["medium", "high", "highest"])
def test_products_of_what_was_transposed(precision):
    """XLA moves transposes through elementwise ops into dots, of which it has not all for bfloat16."""

    def function(x, y, mask):
        lhs = torch.where(mask.t(), x.t(), 0)
        return lhs @ y, (lhs @ y).softmax(-1), x.t().relu() @ y, x.t() @ y, y.t() @ torch.where(mask, x, 0), (y.t() * 2) @ x

    with torch.tpu.precision(precision):
        for sizes in ((4, 4, 8), (3, 5, 2), (1, 8, 4), (64, 96, 32)):
            k, m, n = sizes
            x, y = torch.randn(k, m), torch.randn(k, n)
            actual = compiled(function, dynamic=False)(x.to("tpu"), y.to("tpu"), x.to("tpu") > 0)
            tolerance = {"medium": 3e-2, "high": 1e-4, "highest": 1e-5}[precision]
            for one, other in zip(actual, function(x, y, x > 0), strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance * k**0.5 * 4)


def test_none_stays_none_after_a_whole_step():
    """Dynamo's only None is also that of gradients."""
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @compiled
    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), None

    assert step(random(4, 3))[1] is None
    assert compiled(lambda x: (x + 1, None))(random(2))[1] is None


def test_dropout_follows_the_seed():
    function = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="tpu")
    function(x)
    torch.manual_seed(3)
    one, two = function(x), function(x)
    torch.manual_seed(3)
    again = function(x)
    assert torch.equal(one, again) and not torch.equal(one, two)
    assert 400 < (one == 2).sum().item() < 600 and ((one == 0) | (one == 2)).all()


def test_autocast_and_checkpointing():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to("tpu")

    def function(x):
        with torch.autocast("tpu", torch.bfloat16):
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).float().square().mean()

    x = random(5, 6).requires_grad_()
    loss = compiled(function)(x)
    got = torch.autograd.grad(loss, [x, *model.parameters()])
    expected = torch.autograd.grad(function(x), [x, *model.parameters()])
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_inference_mode():
    model = Network().to("tpu").eval()
    x = random(2, 3, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-5)


def test_lstm(no_fallback):
    model = nn.LSTM(5, 7, batch_first=True).to("tpu")
    x = random(3, 4, 5)
    got, expected = compiled(model)(x), model(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def biased(score, batch, head, query, key):
    """A score_mod: ALiBi's, a slope for each head."""
    return score + (query - key) * 0.1 * (head + 1)


def written_out(query, key, value, is_causal):
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    at = torch.arange(query.shape[2], device=query.device)
    scores = scores + (at[:, None] - at) * 0.1 * (torch.arange(query.shape[1], device=query.device) + 1)[:, None, None]
    return torch.softmax(scores.masked_fill(at[:, None] < at, -torch.inf) if is_causal else scores, -1) @ value


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", ["compiled", "eager"])
def test_flex_attention(way, is_causal, no_fallback):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 20, 20, device="tpu", BLOCK_SIZE=8) if is_causal else None
    inputs = [random(2, 3, 20, 16).requires_grad_() for _ in range(3)]

    def function(query, key, value):
        return flex_attention(query, key, value, score_mod=biased, block_mask=mask)

    got = (compiled(function, fullgraph=True) if way == "compiled" else function)(*inputs)
    expected = written_out(*inputs, is_causal)
    weights = random(2, 3, 20, 16)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, weights), torch.autograd.grad(expected, inputs, weights), rtol=1e-4, atol=1e-5
    )


# --- what no program can hold ---------------------------------------------------------------------------------------------


def test_values_from_and_to_the_host():
    def function(x, host):
        y = x + host.to("tpu")
        return y * 2, (y.cpu() + 1), host * 3

    x, host = random(4), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(function)(x, host), function(x, host))
        host = host + 1


def test_ops_of_the_cpu_between_programs(monkeypatch):
    monkeypatch.setattr(torch.tpu, "fallback", "allow")  # the one warning that it gives belongs to other tests

    def function(x):
        return torch.linalg.eigvals(x @ x.t()).abs().sum() * 2

    x = random(3, 3)
    whole = compiled(function)
    torch.testing.assert_close(whole(x), function(x), rtol=1e-4, atol=1e-4)
    before = sum(torch.tpu.counters()["fallbacks"].values())
    assert executions_of(whole, x) <= 3  # two programs, and a copy for the CPU
    assert sum(torch.tpu.counters()["fallbacks"].values()) == before + 2


def test_indices_of_the_cpu():
    def function(x, indices):
        y = x.clone()
        y[indices] = 7
        return y + 1, x[indices] * 2

    x, indices = random(6), torch.tensor([1, 3])
    torch.testing.assert_close(compiled(function, fullgraph=True)(x, indices), function(x, indices))


def test_indices_of_the_tpu_are_a_part_of_the_program():
    function = compiled(lambda x, i: (x + 1)[i] * 2, fullgraph=True)
    assert executions_of(function, random(6), torch.tensor([1, 3]).to("tpu")) == 1


def test_kernels_that_read_values_on_the_host():
    def function(x):
        return torch.linspace(x[0], x[1], 5, device=x.device) + torch.cholesky(torch.eye(5, device=x.device) * x[1] * x[1])

    x = torch.tensor([1.0, 3.0]).to("tpu")
    whole = compiled(function, fullgraph=True)
    for y in (x, x * 2, x + 1):
        torch.testing.assert_close(whole(y), function(y))


def test_errors_of_the_user_are_eager_modes():
    singular = compiled(lambda x: torch.linalg.inv(x * 0) + 1)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        singular(random(3, 3)).cpu()
    indices = compiled(lambda x, i: F.embedding(i, x) * 2)
    with pytest.raises(IndexError, match="index out of range in self"):
        indices(random(3, 3), torch.tensor([5]).to("tpu")).cpu()


@pytest.mark.parametrize("captured", [False, True])
def test_results_as_long_as_the_data_says(captured):
    x = torch.tensor([0.0, 1.0, 0.0, 2.0]).to("tpu")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=captured):
        function = compiled(lambda x: (x * 2).nonzero() + 1, fullgraph=captured)
        assert function(x).tolist() == [[2], [4]]
        assert function(1 - x).tolist() == [[1], [3], [4]]


def test_control_flow():
    from torch._higher_order_ops import associative_scan, scan, while_loop

    def function(x):
        branch = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        _, doubled = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.zeros((), device=x.device), x))
        last, all_of_it = scan(lambda carry, y: (carry + y, carry * 2 + y), torch.zeros(3, device=x.device), x)
        return branch + 1, doubled, last, all_of_it, associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    x = torch.randn(4, 3)
    expected = function(x)
    torch._dynamo.reset()
    whole = compiled(function, fullgraph=True)
    for one, other in zip(whole(x.to("tpu")), expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    for one, other in zip(whole(-x.to("tpu")), function(-x), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_custom_ops():
    with torch.library._scoped_library("torch_tpu_tests", "DEF"):
        twice = torch.library.custom_op(
            "torch_tpu_tests::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        twice.register_fake(torch.empty_like)
        x = random(3)
        torch.testing.assert_close(compiled(lambda x: twice(x + 1) - 1, fullgraph=True)(x), (x + 1) * 2 - 1)


def test_writes_after_reads_keep_their_order():
    def function(count, x):
        before = x * count
        count.add_(1)
        return before, x * count

    count, x = torch.tensor(2.0), random(3)
    got = compiled(function)(count, x)
    torch.testing.assert_close(got, (x * 2, x * 3))
    assert count.item() == 3


# --- devices and threads ------------------------------------------------------------------------------------------------

TWO_DEVICES = """
import torch
x, y = torch.arange(4.0).to("tpu:0"), torch.arange(4.0).to("tpu:1")
one = torch.compile(lambda x: (x * 2).sum(-1), backend="tpu", fullgraph=True)
assert one(x).device == x.device and one(y).device == y.device and one(y).item() == 12
both = torch.compile(lambda x, y: (x + 1, y * 2, (x + 1).sum(), (y * 2).sum()), backend="tpu", fullgraph=True)
results = both(x, y)
assert [each.device.index for each in results] == [0, 1, 0, 1], results
assert [each.sum().item() for each in results] == [10, 12, 10, 12]
moved = torch.compile(lambda x, y: x * y.to(x.device) + 1, backend="tpu", fullgraph=True)
assert moved(x, y).device == x.device and moved(x, y).tolist() == [1, 2, 5, 10]
with torch.tpu.device(1):
    made = torch.compile(lambda: torch.ones(3, device="tpu") * 2, backend="tpu", fullgraph=True)()
assert made.device.index == 1
"""


def test_graphs_over_several_devices():
    output_of(TWO_DEVICES, TORCH_TPU_VIRTUAL_DEVICES="2")


def test_threads_compile_and_call_at_once():
    def function(x, power):
        return (x**power).softmax(-1).sum(0)

    wanted = {power: function(torch.linspace(0, 1, 12).reshape(4, 3), power) for power in (1, 2, 3)}
    step = compiled(function)
    failures = []

    def work(power):
        for _ in range(5):
            result = step(torch.linspace(0, 1, 12).reshape(4, 3).to("tpu"), power).cpu()
            if not torch.allclose(result, wanted[power], rtol=1e-5):
                failures.append((power, result))

    threads = [threading.Thread(target=work, args=(power,)) for power in (1, 2, 3) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_attention_trains(no_fallback):
    """The fused row has seeds among its results also without dropout: autograd saves them."""

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()

    given = [random(2, 3, 5, 4).requires_grad_() for _ in range(3)]
    ours = torch.autograd.grad(compiled(function)(*given), given)
    torch.testing.assert_close(ours, torch.autograd.grad(function(*given), given), rtol=1e-5, atol=1e-5)
