"""torch.compile with sizes that change: programs for upper bounds, whose padding must never be seen.

The arguments are slices of larger tensors that hold NaN (or an index out of range) elsewhere. Such a slice is taken as it
is, so what is beyond it is the padding of the program.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_tpu.compiler.bounded import rules
from torch_tpu.compiler.bounded.layout import UnboundedError

pytestmark = pytest.mark.usefixtures("full_float32")

BOUND = 16  # of the sizes below
SIZES = (11, 13, 9)
BATCH, BATCH_BOUND, WIDTH = 3, 4, 8


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.tpu.dynamism = "bucket"


def poisoned(whole, sizes, poison):
    """A slice of these sizes of a tensor that is poison elsewhere, and the same values on the CPU."""
    values = whole[tuple(slice(0, size) for size in sizes)]
    larger = torch.full_like(whole, poison)
    larger[tuple(slice(0, size) for size in sizes)] = values
    return larger.to("tpu")[tuple(slice(0, size) for size in sizes)], values.clone()


def floats(size, seed=0):
    """[BATCH, size, WIDTH]."""
    whole = torch.randn(BATCH_BOUND, BOUND, WIDTH, generator=torch.Generator().manual_seed(seed))
    return poisoned(whole, (BATCH, size, WIDTH), math.nan)


def indices(size, below, seed=0):
    """[BATCH, size]."""
    whole = torch.randint(0, below, (BATCH_BOUND, BOUND), generator=torch.Generator().manual_seed(seed))
    return poisoned(whole, (BATCH, size), 10**9)


def compiled(function, **keywords):
    return torch.compile(function, backend="tpu", **keywords)


def programs(call):
    before = torch.tpu.counters()["compiles"] + torch.tpu.counters()["disk_hits"]
    result = call()
    return result, torch.tpu.counters()["compiles"] + torch.tpu.counters()["disk_hits"] - before


def mark(*tensors):
    """Dimension 1 is the one that changes."""
    for tensor in tensors:
        torch._dynamo.mark_dynamic(tensor, 1)


@pytest.fixture(autouse=True)
def _log(caplog):
    """Why a graph has no form for upper bounds, when a test fails."""
    caplog.set_level("INFO", "torch_tpu.compiler")


def check(function, make, sizes=SIZES, tolerance=2e-6):
    """One program for all sizes, with the CPU's values."""
    made = 0
    step = compiled(function, fullgraph=True)
    for size in sizes:
        pairs = make(size)
        mark(*(pair[0] for pair in pairs))
        results, count = programs(lambda: step(*(pair[0] for pair in pairs)))
        made += count
        expected = function(*(pair[1] for pair in pairs))
        torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance, check_device=False)
        eager = function(*(pair[0] for pair in pairs))
        assert [each.stride() for each in leaves(results)] == [each.stride() for each in leaves(eager)]
    assert made == 1


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [each for one in value for each in leaves(one)]


def positions(x):
    return torch.arange(x.shape[1], device=x.device)


FUNCTIONS = {
    "pointwise": lambda x: (x * 2 + 1).relu() - x.sigmoid(),
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 1)), x.sum(-1), x.sum(1, keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(1), x.mean((1, 2), keepdim=True), x.mean(2)),
    "variance": lambda x: (x.var(1), x.std(1, correction=0), *torch.var_mean(x, 1), *torch.std_mean(x, (0, 1)), x.var(2)),
    "extremes": lambda x: (x.amax(1), x.amin(1), x.max(), x.min(), *x.max(1), *x.min(1), x.amax((1, 2))),
    "positions of extremes": lambda x: (x.argmax(1), x.argmin(1), x.argmax(-1)),
    "extremes of integers": lambda x: ((x * 9).int().amax(1), (x * 9).int().amin(1), (x * 9).int().argmax(1)),
    "products": lambda x: (x.prod(1), (x > 0).all(1), (x > 0).any(1), x.count_nonzero(1), (x > 9).any()),
    "norms": lambda x: (
        x.norm(),
        x.norm(dim=1),
        x.norm(1, dim=1),
        torch.linalg.vector_norm(x, math.inf, 1),
        F.normalize(x, dim=1),
    ),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp(2)),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(1), x.softmax(-1)),
    "running": lambda x: (x.cumsum(1), x.cumprod(1), x.cumsum(2), x.cummax(1)[0], x.logcumsumexp(1)),
    "sort": lambda x: (*x.sort(1), *x.sort(1, descending=True), *x.sort(2)),
    "topk": lambda x: (*x.topk(3, 1), *x.topk(3, 1, largest=False), *x.topk(2, 2)),
    "last": lambda x: (x[:, -1], x[:, -3:], x[:, :-2], x[:, 2:], x[:, 1:-1], x[:, 3], x[:, ::2], x[:, 1::3]),
    "views": lambda x: (
        x.transpose(1, 2),
        x.reshape(x.shape[0], -1),
        x.reshape(-1, 8),
        x.unflatten(2, (2, 4)).sum(2),
        x.flatten(),
    ),
    "merged": lambda x: (x.reshape(-1, 8).sum(0), x.flatten().mean(), x.reshape(-1, 8).amax(0), x.reshape(-1, 4).softmax(0)),
    "heads": lambda x: x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2).reshape(x.shape[0] * 2, x.shape[1], 4),
    "expand": lambda x: (x[:, :1].expand(-1, x.shape[1], -1) + x, x.new_zeros(x.shape[1]) + x.sum((0, 2)), x.repeat(2, 1, 1)),
    "cat": lambda x: (torch.cat([x, x * 2], 1), torch.cat([x, x], 2), torch.cat([x[:, :2], x], 1), torch.stack([x, -x], 1)),
    "pad": lambda x: (F.pad(x, (0, 0, 1, 2), value=5.0), F.pad(x, (1, 1)), F.pad(x, (0, 0, 1, 0)).sum(1)),
    "factories": lambda x: (
        positions(x) + x[0, :, 0],
        torch.ones(x.shape[1], 2, device=x.device).sum(0),
        torch.full((x.shape[1],), 2.0, device=x.device).mean(),
        torch.arange(2, x.shape[1] + 2, device=x.device).sum(),
        torch.zeros_like(x).sum(1),
    ),
    "numbers": lambda x: (x / x.shape[1], x * x.shape[1] + (x.shape[1] - 1), torch.full((2,), x.shape[1], device=x.device)),
    "triangles": lambda x: ((x @ x.transpose(1, 2)).tril(), (x @ x.transpose(1, 2)).triu(1).sum(2)),
    "products of matrices": lambda x: (x @ x.transpose(1, 2), x.transpose(1, 2) @ x, torch.einsum("bld,bmd->lm", x, x)),
    "moved": lambda x: (x.flip(1), x.flip((0, 1)), x.roll(2, 1), x.roll((1, -1), (1, 2))),
    "split": lambda x: [part * 2 for part in x.split(3, 2)],
    "where": lambda x: torch.where(positions(x)[None, :, None] % 2 == 0, x, 0.0).sum(1),
    "attention": lambda x: heads_of(x, is_causal=False),
    "causal attention": lambda x: heads_of(x, is_causal=True),
    "masked attention": lambda x: F.scaled_dot_product_attention(
        *[x.view(*x.shape[:2], 2, 4).transpose(1, 2)] * 3, attn_mask=(positions(x)[None] % 3 != 1).expand(x.shape[1], -1)
    ),
    "layer norm": lambda x: (F.layer_norm(x, (8,)), F.rms_norm(x, (8,)), F.layer_norm(x.transpose(0, 1), (8,)).sum(0)),
    "losses": lambda x: (
        F.mse_loss(x, x * 2),
        F.l1_loss(x, x.roll(1, 2)),
        F.smooth_l1_loss(x, x * 2),
        F.huber_loss(x, x * 3, reduction="sum"),
        F.binary_cross_entropy(x.sigmoid(), (x > 0).float()),
        F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    ),
    "pictures": lambda x: F.conv1d(x.transpose(1, 2), x.new_ones(5, 8, 3) * 0.1, padding=1),
    "half precision": lambda x: (x.bfloat16().mean(1), x.bfloat16().sum(1), x.half().softmax(1)),
}


def test_parts_of_a_dimension_that_changes():
    def function(x):
        length = x.shape[1]
        first, second = x.split([length - 3, 3], 1)
        return first.sum(1), second * 2, x.narrow(1, length - 4, 2)

    check(function, lambda size: [floats(size)])


def heads_of(x, **keywords):
    q = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q * 0.5, q + 1, **keywords).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_padding_is_never_seen(name, no_fallback):
    tolerance = 1e-2 if name == "half precision" else 5e-6
    check(FUNCTIONS[name], lambda size: [floats(size)], tolerance=tolerance)


PAIRS = {
    "embedding": (lambda x, i: F.embedding(i, x[0]), 9),
    "gather": (lambda x, i: x.gather(1, i.unsqueeze(2).expand(-1, -1, 8)), 9),
    "negative indices": (lambda x, i: x[0].index_select(0, (i[0] - 4) % 9) + x[0, i[0] - 9], 9),
    "index": (lambda x, i: (x[torch.arange(x.shape[0], device=x.device)[:, None], i], x[:, i[0]], x[:, :, i[1] % 8]), 9),
    "cross entropy": (lambda x, i: F.cross_entropy(x.flatten(0, 1), i.flatten()), 8),
    "cross entropy of classes in the middle": (lambda x, i: F.cross_entropy(x.transpose(1, 2), i, ignore_index=3), 8),
    "losses one by one": (lambda x, i: F.nll_loss(x.log_softmax(2).transpose(1, 2), i, reduction="none"), 8),
    "label smoothing": (lambda x, i: F.cross_entropy(x.flatten(0, 1), i.flatten(), label_smoothing=0.1), 8),
    "scatter": (lambda x, i: torch.zeros(9, 8, device=x.device).index_add(0, i[0], x[0]), 9),
    "one hot": (lambda x, i: F.one_hot(i, 9).float().sum(1), 9),
    "key padding": (
        lambda x, i: F.scaled_dot_product_attention(
            x, x, x, attn_mask=(i % 2 == 0)[:, None, :] | torch.eye(1, device=x.device).bool()
        ),
        9,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_indices_in_padding_are_never_used(name, no_fallback):
    function, below = PAIRS[name]
    check(function, lambda size: [floats(size), indices(size, below)])


class Transformer(nn.Module):
    """Two layers of width 32 for up to 1,024 tokens of 64 words."""

    def __init__(self, words=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, 32), nn.Embedding(1024, 32)
        layers = [nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(32, words)

    def forward(self, tokens):
        """[batch, length] to [batch, length, 64]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            h = layer.norm1(x)
            q, k, v = (h.view(*h.shape[:2], 2, 16).transpose(1, 2) * scale for scale in (1.0, 0.5, 2.0))
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + layer.linear2(F.gelu(layer.linear1(layer.norm2(x))))
        return self.head(x)


def lengths(count):
    choice = torch.randperm(1024 - 17 + 1, generator=torch.Generator().manual_seed(5))[:count]
    return [int(n) + 17 for n in choice]


@pytest.mark.parametrize("dynamism", ["bucket", "bounded"])
def test_64_lengths_take_at_most_8_programs(dynamism, no_fallback):
    torch.tpu.dynamism = dynamism
    torch.manual_seed(0)
    words = 64 if dynamism == "bucket" else 65  # no program of the other test fits
    model, on_tpu = Transformer(words), Transformer(words).to("tpu")
    on_tpu.load_state_dict(model.state_dict())
    step = torch.compile(on_tpu, backend="tpu")
    made = 0
    with torch.no_grad():
        for length in lengths(64):
            tokens = torch.randint(0, 64, (2, length))
            given = tokens.to("tpu")
            result, count = programs(lambda: step(given))
            made += count
            torch.testing.assert_close(result.cpu(), model(tokens), rtol=1e-4, atol=1e-4)
    assert 2 <= made <= 8


@pytest.mark.parametrize("precision", ["medium", "high"])
def test_products_of_masked_operands(precision, no_fallback):
    """The mask of padding stands between a transpose and a product, for which XLA then has no bfloat16 kernel."""
    linear, reference = torch.nn.Linear(8, 4).to("tpu"), torch.nn.Linear(8, 4)
    reference.load_state_dict(linear.state_dict())

    def loss_of(linear, x):
        return linear(x).softmax(-1).cumsum(0).square().sum()

    function = torch.compile(loss_of, backend="tpu", dynamic=True)
    with torch.tpu.precision(precision):
        for length in (3, 5, 9):
            x = torch.randn(length, 8)
            gradients = [
                torch.autograd.grad(call(module, y), [y, module.weight])
                for call, module, y in (
                    (function, linear, x.to("tpu").requires_grad_()),
                    (loss_of, reference, x.clone().requires_grad_()),
                )
            ]
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=5e-2, atol=0.1)


@pytest.mark.parametrize("whole", [False, True])
def test_training_at_changing_lengths(whole, no_fallback):
    torch.manual_seed(0)
    model, reference = Transformer().to("tpu"), Transformer()
    reference.load_state_dict(model.state_dict())

    def loss_of(model, tokens):
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())

    @torch.compile(backend="tpu", dynamic=True)
    def whole_step(tokens):
        loss = loss_of(model, tokens)
        loss.backward()
        return loss.detach()

    part = torch.compile(loss_of, backend="tpu", dynamic=True)
    made = []
    for length in (40, 61, 33, 50, 64):
        tokens = torch.randint(0, 64, (2, length))
        on_tpu = tokens.to("tpu")
        for each in (model, reference):
            each.zero_grad(set_to_none=False)

        def step():
            if whole:
                return whole_step(on_tpu)
            loss = part(model, on_tpu)
            loss.backward()
            return loss

        loss, count = programs(step)
        made.append(count)
        expected = loss_of(reference, tokens)
        expected.backward()
        torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-5)
    assert made[2:] == [0, 0, 0]


DIFFERENTIABLE = [
    name
    for name in FUNCTIONS
    if name
    not in (
        "running",
        "positions of extremes",
        "extremes of integers",
        "products",
        "half precision",
        "factories",
        "numbers",
        "triangles",
    )
]


def weights(x):
    return torch.arange(x.shape[-1], device=x.device) * 0.125 + 0.5 if x.ndim else 1.0


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "gather", "index", "cross entropy", "label smoothing", "key padding"])
def test_gradients_at_changing_sizes(name, no_fallback):
    function, below = PAIRS[name] if name in PAIRS else (FUNCTIONS[name], 0)

    def total(*given):
        results = [each for each in leaves(function(*given)) if each.is_floating_point()]
        return sum((each * weights(each)).sum() for each in results)

    step = compiled(total, fullgraph=True)
    made = []
    for size in SIZES:
        pairs = [floats(size)] + ([indices(size, below)] if below else [])
        mark(*(pair[0] for pair in pairs))
        x, reference = (value.detach().requires_grad_() for value in pairs[0])
        torch._dynamo.mark_dynamic(x, 1)
        (grad,), count = programs(lambda: torch.autograd.grad(step(x, *(pair[0] for pair in pairs[1:])), x))
        (expected,) = torch.autograd.grad(total(reference, *(pair[1] for pair in pairs[1:])), reference)
        torch.testing.assert_close(grad.cpu(), expected, rtol=2e-5, atol=2e-5)
        made.append(count)
    assert made[1:] == [0, 0]


# --- bounds -------------------------------------------------------------------------------------------------------------------


def rows(count, width):
    """A width of its own for each test, so that no program of another one fits."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


def programs_at(function, sizes, width, **bounds):
    """How many programs each size made."""
    made = []
    for size in sizes:
        x = rows(size, width)
        given = x.to("tpu")
        torch._dynamo.mark_dynamic(given, 0, **bounds)
        result, count = programs(lambda: function(given))
        torch.testing.assert_close(result.cpu(), x.softmax(0).sum(1), rtol=1e-5, atol=1e-6)
        made.append(count)
    return made


def column_softmax(x):
    return x.softmax(0).sum(1)


def test_buckets_are_powers_of_two():
    assert programs_at(compiled(column_softmax), (5, 7, 8, 9, 16, 6), 21) == [1, 0, 0, 1, 0, 0]


def test_one_bound_grows():
    torch.tpu.dynamism = "bounded"
    assert programs_at(compiled(column_softmax), (5, 20, 9, 30, 3), 22) == [1, 1, 0, 0, 0]


def test_off_makes_a_program_for_each_size():
    torch.tpu.dynamism = "off"
    assert programs_at(compiled(column_softmax), (5, 7, 5), 23) == [1, 1, 0]


def test_the_users_bound():
    torch.tpu.dynamism = "bounded"
    assert programs_at(compiled(column_softmax), (5, 40, 9), 24, min=2, max=48) == [1, 0, 0]


def test_bounds_stay_below_what_the_graph_can_take():
    table = torch.randn(20, 25).to("tpu")  # sizes up to 20, and the next power of two is 32

    def function(x):
        return x + table[: x.shape[0]]

    step = compiled(function, fullgraph=True)
    for size in (17, 20, 19):
        given = rows(size, 25).to("tpu")
        torch._dynamo.mark_dynamic(given, 0)
        torch.testing.assert_close(step(given), given + table[:size])


def test_batch_and_length_change(no_fallback):
    torch.manual_seed(0)
    model = Transformer(66)
    on_tpu = copy.deepcopy(model).to("tpu")
    step = torch.compile(on_tpu, backend="tpu", dynamic=True)
    made = 0
    with torch.no_grad():
        for batch, length in ((3, 40), (4, 33), (3, 64), (4, 50)):
            tokens = torch.randint(0, 66, (batch, length))
            given = tokens.to("tpu")
            result, count = programs(lambda: step(given))
            made += count
            torch.testing.assert_close(result.cpu(), model(tokens), rtol=1e-4, atol=1e-4)
    assert made == 1


def test_dynamism_is_checked():
    with pytest.raises(ValueError, match="'off', 'bucket' or 'bounded', got 'some'"):
        torch.tpu.dynamism = "some"


def test_a_graph_without_a_bounded_form_has_exact_sizes(caplog):
    """The values of no op depend on whether there is a rule for it."""

    def function(x):
        same = positions(x.t())[:, None] == positions(x.t())
        return torch.linalg.inv(x @ x.t() * 0.01 + same)

    step = compiled(function)
    for size in (5, 7):
        x = rows(size, 26)
        given = x.to("tpu")
        torch._dynamo.mark_dynamic(given, 0)
        torch.testing.assert_close(step(given).cpu(), function(x), rtol=1e-3, atol=1e-4)
    assert "has a program for each size" in caplog.text
    (note,) = torch.tpu.explain(step)(given).exact_sizes
    assert "linalg" in note.reason
    assert "test_dynamic_shapes.py" in note.reason
    assert note.graph in str(torch.tpu.explain(step)(given))


def test_a_larger_bound_may_have_no_form(monkeypatch):
    """The first bound's program runs; the second cannot be made, which is no error of the user's."""

    def cos(call):
        if call.padded("self").tensor.shape[0] > 8:
            raise UnboundedError("too large")
        return rules.pointwise(call)

    monkeypatch.setitem(rules._rules, torch.ops.aten.cos.default, cos)
    step = compiled(torch.cos)
    for size in (7, 12, 6):
        x = rows(size, 32)
        given = x.to("tpu")
        torch._dynamo.mark_dynamic(given, 0)
        torch.testing.assert_close(step(given).cpu(), x.cos())


# --- what the user may do with results ----------------------------------------------------------------------------------------


def test_results_are_tensors_of_their_own():
    @compiled
    def function(x):
        return x * 2, x.sum(0)

    for size in (5, 7):
        given = rows(size, 27).to("tpu")
        torch._dynamo.mark_dynamic(given, 0)
        doubled, _ = function(given)
        assert doubled._base is None
        assert doubled.is_contiguous()
        expected = given * 2
        doubled.add_(1).view(-1)[0] = 5
        expected.add_(1).view(-1)[0] = 5
        torch.testing.assert_close(doubled, expected)
        torch.testing.assert_close(given * 2 + 1, (given.cpu() * 2 + 1).to("tpu"))


def test_results_are_arguments_without_copies():
    """The result of one program is the argument of the next one."""
    step = compiled(lambda x: x.cumsum(0) * 0.5)
    for size in (9, 12, 14):
        x = rows(size, 28)
        given = x.to("tpu")
        torch._dynamo.mark_dynamic(given, 0)
        first = step(given)
        torch._dynamo.mark_dynamic(first, 0)
        second, count = programs(lambda: step(first))
        torch.testing.assert_close(second.cpu(), (x.cumsum(0) * 0.5).cumsum(0) * 0.5, rtol=1e-5, atol=1e-5)
        assert count == 0


def test_indices_beyond_the_real_size_are_refused():
    step = compiled(lambda x, i: x[i])
    for size in (9, 12):
        given, index = rows(size, 29).to("tpu"), torch.tensor([1, size - 1, -size], device="tpu")
        torch._dynamo.mark_dynamic(given, 0)
        torch.testing.assert_close(step(given, index), given[index])
    with pytest.raises(IndexError, match="out of bounds"):
        step(given, index + 1)
        torch.tpu.synchronize()


def test_saved_activations_may_be_packed():
    """Hooks of saved tensors see real elements only."""
    step = compiled(lambda x, w: (x @ w).relu().reshape(-1, 4).softmax(1).square().sum())
    for size in (9, 12):
        x, w = rows(size, 30), rows(30, 8)
        mine = [x.to("tpu").requires_grad_(), w.to("tpu").requires_grad_()]
        torch._dynamo.mark_dynamic(mine[0], 0)
        with torch.autograd.graph.save_on_cpu():
            loss = step(*mine)
        theirs = [x.requires_grad_(), w.requires_grad_()]
        expected = (x @ w).relu().reshape(-1, 4).softmax(1).square().sum()
        for a, b in zip(torch.autograd.grad(loss, mine), torch.autograd.grad(expected, theirs), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


def test_dropout_at_changing_sizes():
    step = compiled(lambda x: F.dropout(x, 0.5))
    for size in (100, 120):
        given = torch.ones(size, 31, device="tpu")
        torch._dynamo.mark_dynamic(given, 0)
        result = step(given).cpu()
        assert set(result.unique().tolist()) == {0.0, 2.0}
        assert abs(result.mean() - 1) < 0.1
