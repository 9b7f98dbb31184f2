"""FlexAttention in compiled programs: blocks that the mask leaves out are not computed. Compared with float64 on the CPU."""

import dataclasses
import pathlib
from collections.abc import Callable

import pytest
import torch
from helpers import output_of
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from torch_tpu.aot import compiler
from torch_tpu.compiler import flex_attention as blocks

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "full_float32", "by_blocks")


@pytest.fixture
def by_blocks(monkeypatch):
    """Small blocks, too, so that tests are fast; torch's form is an error."""
    monkeypatch.setattr(blocks, "_MIN_STEP", 0)
    monkeypatch.setattr(blocks, "sdpa_dense", no_dense)
    monkeypatch.setattr(blocks, "sdpa_dense_backward", no_dense)


def no_dense(*_):
    raise AssertionError("all scores are made")


def causal(b, h, m, n):
    return m >= n


def window(b, h, m, n):
    return (m >= n) & (m - n < 20)


def window_by_head(b, h, m, n):
    return (m >= n) & (m - n < 10 + 12 * h + 20 * b)


def window_by_batch(b, h, m, n):
    return (m >= n) & (m - n < 10 + 20 * b)


def some_rows(b, h, m, n):
    return (m > 20) & (m < 50) & (n >= m - 3) & (n < m)


def alibi(score, b, h, m, n):
    return score + (n - m) * 0.1 * (h + 1)


def capped(score, b, h, m, n):
    return torch.tanh(score / 2) * 2 + b


@dataclasses.dataclass
class Case:
    """Sizes, mask and modification of a call."""

    mask: Callable[..., torch.Tensor]
    mod: Callable[..., torch.Tensor] | None = None
    queries: int = 64
    keys: int = 64
    heads: int = 4
    key_heads: int = 4
    key_batch: int = 2
    features: int = 8
    masks: tuple[int | None, int | None] = (None, None)  # of the batch, of the heads
    block: int | tuple[int, int] = 16

    def operands(self):
        """Query, key, value and the gradient of the result, float64."""
        return [
            torch.randn(2, self.heads, self.queries, 16, dtype=torch.float64),
            torch.randn(self.key_batch, self.key_heads, self.keys, 16, dtype=torch.float64),
            torch.randn(self.key_batch, self.key_heads, self.keys, self.features, dtype=torch.float64),
            torch.randn(2, self.heads, self.queries, self.features, dtype=torch.float64),
        ]

    def block_mask(self):
        return create_block_mask(self.mask, *self.masks, self.queries, self.keys, device="tpu", BLOCK_SIZE=self.block)


CASES = {
    "causal": Case(causal),
    "window and alibi": Case(window, alibi),
    "one key head for two": Case(window, capped, key_heads=2, features=24),
    "sizes that end within a block": Case(window, alibi, queries=70, keys=75),
    "blocks that are not square": Case(causal, queries=60, keys=80, block=(32, 8)),
    "a mask for each head": Case(window_by_head, alibi, masks=(2, 4), key_heads=2, queries=50),
    "a mask for each batch": Case(window_by_batch, masks=(2, None)),
    "rows without scores": Case(some_rows, alibi),
    "keys shared by the batch": Case(window_by_head, capped, masks=(2, 4), key_batch=1),
}


def reference(query, key, value, mod, mask):
    """Output and logsumexp from all scores."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    sizes = (*query.shape[:3], key.shape[2])
    b, h, m, n = (torch.arange(size).view([-1 if i == d else 1 for d in range(4)]) for i, size in enumerate(sizes))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mod is None else mod(scores, b, h, m, n)
    scores = scores.masked_fill(~mask(b, h, m, n).expand(scores.shape), -torch.inf)
    logsumexp = scores.logsumexp(-1)
    return torch.exp(scores - logsumexp.masked_fill(logsumexp.isinf(), torch.inf)[..., None]) @ value, logsumexp


def compiled(case, mod, mask):
    grouped = case.heads != case.key_heads

    def function(query, key, value):
        aux = AuxRequest(lse=True)
        return flex_attention(query, key, value, score_mod=mod, block_mask=mask, enable_gqa=grouped, return_aux=aux)

    return torch.compile(function, backend="tpu", fullgraph=True)


def outcome(function, operands, buffers=()):
    """Results and gradients, those of the logsumexp among them, in float64 on the CPU."""
    *leaves, weights = operands
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    output, logsumexp = function(*leaves)
    logsumexp = getattr(logsumexp, "lse", logsumexp)
    loss = (output * weights).sum() + torch.where(logsumexp.isinf(), 0, logsumexp).sum() * 0.1
    gradients = torch.autograd.grad(loss, [*leaves, *buffers])
    return [x.detach().cpu().double() for x in (output, logsumexp, *gradients)]


def close(actual, expected, **tolerance):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, no_fallback):
    case = CASES[name]
    operands = case.operands()
    expected = outcome(lambda *x: reference(*x, case.mod, case.mask), operands)
    actual = outcome(compiled(case, case.mod, case.block_mask()), [x.float().to("tpu") for x in operands])
    close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
def test_dtypes(dtype, tolerance):
    case = Case(window, alibi)
    operands = [x.to(dtype) for x in case.operands()]
    expected = outcome(lambda *x: reference(*x, case.mod, case.mask), [x.double() for x in operands])
    actual = outcome(compiled(case, case.mod, case.block_mask()), [x.to("tpu") for x in operands])
    close(actual, expected, rtol=tolerance, atol=tolerance)


def test_autocast():
    case = Case(window, alibi)
    operands = case.operands()
    expected = outcome(lambda *x: reference(*x, case.mod, case.mask), operands)
    function = compiled(case, case.mod, case.block_mask())

    def run(*leaves):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            output, aux = function(*leaves)
        assert output.dtype == torch.bfloat16
        return output.float(), aux

    close(outcome(run, [x.float().to("tpu") for x in operands]), expected, rtol=2e-2, atol=2e-2)


def test_gradients_of_captured_buffers():
    case, bias, slope = Case(causal), torch.randn(4, dtype=torch.float64), torch.randn(64, dtype=torch.float64)

    def modification(bias, slope):
        return lambda score, b, h, m, n: score * bias[h] + slope[m] * slope[n]

    def run(device, dtype, function):
        leaves = [x.to(device, dtype).detach().requires_grad_() for x in (bias, slope)]
        return outcome(function(modification(*leaves)), [x.to(device, dtype) for x in operands], leaves)

    operands = case.operands()
    expected = run("cpu", torch.float64, lambda mod: lambda *x: reference(*x, mod, case.mask))
    mask = case.block_mask()
    close(run("tpu", torch.float32, lambda mod: compiled(case, mod, mask)), expected, rtol=1e-4, atol=1e-4)


def test_masks_of_captured_buffers():
    documents = torch.tensor([0] * 20 + [1] * 30 + [2] * 14)
    on_tpu = documents.to("tpu")
    case = Case(lambda b, h, m, n: (on_tpu[m] == on_tpu[n]) & (m >= n))
    operands = case.operands()
    expected = outcome(lambda *x: reference(*x, None, lambda b, h, m, n: (documents[m] == documents[n]) & (m >= n)), operands)
    actual = outcome(compiled(case, None, case.block_mask()), [x.float().to("tpu") for x in operands])
    close(actual, expected, rtol=1e-4, atol=1e-5)


def test_blocks_that_are_left_out_are_not_read():
    """A dense form would multiply what is not a number by zero."""
    case = Case(window)
    operands = [x.float().to("tpu") for x in case.operands()]
    mask = case.block_mask()
    listed = BlockMask.from_kv_blocks(
        mask.kv_num_blocks - torch.tensor([0, 0, 0, 1], dtype=torch.int32, device="tpu"), mask.kv_indices,
        mask.full_kv_num_blocks * 0, mask.full_kv_indices, BLOCK_SIZE=16, mask_mod=window,
    )  # fmt: skip
    last = listed.kv_indices[0, 0, 3, listed.kv_num_blocks[0, 0, 3]].item()
    assert last == 3
    for x in operands[1:3]:
        x[:, :, 48:] = torch.nan
    output, logsumexp, *gradients = outcome(compiled(case, None, listed), operands)
    assert output.isfinite().all()
    assert logsumexp.isfinite().all()
    assert all(x.isfinite().all() for x in gradients)
    assert all((x[:, :, 48:] == 0).all() for x in gradients[1:])


def test_max_scores():
    case = Case(window, alibi)
    mask, (query, key, value, _) = case.block_mask(), (x.float() for x in case.operands())

    def function(*operands):
        aux = AuxRequest(lse=True, max_scores=True)
        return flex_attention(*operands, score_mod=alibi, block_mask=mask, return_aux=aux)

    _, aux = torch.compile(function, backend="tpu")(*(x.to("tpu") for x in (query, key, value)))
    b, h, m, n = (torch.arange(x).view([-1 if i == d else 1 for d in range(4)]) for i, x in enumerate((2, 4, 64, 64)))
    scores = alibi(query @ key.mT / 4, b, h, m, n).masked_fill(~window(b, h, m, n), -torch.inf)
    torch.testing.assert_close(aux.max_scores.cpu(), scores.amax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux.lse.cpu(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_one_program_without_a_wait():
    case = Case(window)
    function, operands = compiled(case, None, case.block_mask()), [x.float().to("tpu") for x in case.operands()[:3]]
    function(*operands)
    before = torch.tpu.counters()
    with torch.tpu.forbid_waits():
        function(*operands)
    torch.tpu.synchronize()
    after = torch.tpu.counters()
    assert (after["executions"] - before["executions"], after["compiles"] - before["compiles"]) == (1, 0)


@pytest.mark.parametrize("case", [Case(causal, block=32), Case(causal)], ids=["few blocks", "small blocks"])
def test_torch_form_where_blocks_are_no_gain(case, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(blocks, "_attend", no_dense)
    operands = case.operands()
    expected = outcome(lambda *x: reference(*x, None, causal), operands)
    with torch.tpu.precision("highest"):
        actual = outcome(compiled(case, None, case.block_mask()), [x.float().to("tpu") for x in operands])
    close(actual, expected, rtol=1e-4, atol=1e-5)


# --- the TPU's compiler ----------------------------------------------------------------------------------------------------

TEXTS = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

bias = torch.randn(4).to("tpu").requires_grad_()
for masks, trains in (((None, None), True), ((2, 4), False)):
    torch._dynamo.reset()
    mask = create_block_mask(lambda b, h, m, n: (m >= n) & (m - n < 200 + b * h), *masks, 600, 600, device="tpu")
    query, key, value = (torch.randn(2, heads, 600, 64).to("tpu").requires_grad_() for heads in (4, 2, 2))
    mod = lambda score, b, h, m, n: score + bias[h] * (m - n)
    function = lambda *x: flex_attention(*x, score_mod=mod, block_mask=mask, enable_gqa=True)
    with torch.set_grad_enabled(trains):
        output = torch.compile(function, backend="tpu", fullgraph=True)(query, key, value)
    if trains:
        output.sum().backward()
torch.tpu.synchronize()
"""


@pytest.mark.skipif(compiler.libtpu() is None, reason="libtpu is not installed: pip install libtpu")
def test_libtpu_compiles_flex_attention(tmp_path):
    cache = tmp_path / "cache"
    output_of(TEXTS, TORCH_TPU_CACHE_DIR=str(cache), TORCH_TPU_CACHE_MODE="dump-on-miss", TORCH_TPU_TARGET_GENERATION="5")
    programs = []
    for number, text in enumerate(path.read_text() for path in pathlib.Path(cache).rglob("misses/*")):
        if "stablehlo.while" not in text:
            continue
        path = tmp_path / f"flex_attention-{number}.mlir"
        path.write_text(f"// row: flex_attention\n// call: flex_attention()\n// generations: 5\n{text}")
        programs.append(compiler.Program(path))
    assert len(programs) == 3
    judge = compiler.Compiler(tmp_path / "verdicts.jsonl", time_limit=60)
    try:
        assert [judge.judge(program, "v5e:1x1") for program in programs] == ["ok"] * 3
    finally:
        judge.close()
