"""Errors: torch's classes and texts, device memory that runs out, bad indices, the fallback's policies. Nothing aborts."""

import os
import random
import warnings

import pytest
import torch

import torch_tpu
from torch_tpu.aot.calls import overload_of

F = torch.nn.functional
DEBUG = torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING


@pytest.fixture(autouse=True)
def _warn_again():
    policy = torch.tpu.fallback
    yield
    torch.tpu.fallback = policy


def failure(run, device: str) -> Exception:
    with pytest.raises(Exception) as caught:
        run(device)
    return caught.value


# Calls that fail on every device; `ones` has shape [2, 3], `other` [4, 5].
def ones(device, *shape, dtype=torch.float32):
    return torch.ones(shape or (2, 3), device=device, dtype=dtype)


SAME_TEXT = {
    "add shapes": lambda d: ones(d) + ones(d, 4, 5),
    "mm shapes": lambda d: ones(d) @ ones(d, 4, 5),
    "bmm rank": lambda d: torch.bmm(ones(d), ones(d)),
    "addmm shapes": lambda d: torch.addmm(ones(d), ones(d), ones(d, 4, 5)),
    "mm dtypes": lambda d: ones(d) @ ones(d, 3, 2, dtype=torch.float64),
    "cat shapes": lambda d: torch.cat([ones(d), ones(d, 4, 5)]),
    "stack shapes": lambda d: torch.stack([ones(d), ones(d, 4, 5)]),
    "view": lambda d: ones(d).view(4),
    "reshape": lambda d: ones(d).reshape(4, -1),
    "view of a transposed": lambda d: ones(d).t().view(6),
    "expand": lambda d: ones(d).expand(5, 5),
    "in-place broadcast": lambda d: ones(d).add_(ones(d, 5, 2, 3)),
    "in-place promotion": lambda d: ones(d, dtype=torch.int32).add_(1.5),
    "out promotion": lambda d: torch.add(ones(d), ones(d), out=ones(d, dtype=torch.int32)),
    "sum dim": lambda d: ones(d).sum(5),
    "transpose dim": lambda d: ones(d).transpose(0, 7),
    "permute twice": lambda d: ones(d).permute(0, 0),
    "select": lambda d: ones(d)[5],
    "too many indices": lambda d: ones(d)[0, 0, 0],
    "gather dtype": lambda d: ones(d).gather(0, ones(d)),
    "index_select dtype": lambda d: ones(d).index_select(0, ones(d)),
    "scatter shapes": lambda d: ones(d).scatter(0, ones(d, 5, 5, dtype=torch.int64), 1.0),
    "topk": lambda d: ones(d).topk(9),
    "linear shapes": lambda d: F.linear(ones(d), ones(d, 4, 5)),
    "conv rank": lambda d: F.conv2d(ones(d), ones(d, 4, 5)),
    "cross entropy shapes": lambda d: F.cross_entropy(ones(d), ones(d, 3, dtype=torch.int64)),
    "embedding dtype": lambda d: F.embedding(ones(d), ones(d)),
    "bool minus": lambda d: ones(d, dtype=torch.bool) - ones(d, dtype=torch.bool),
    "minus bool": lambda d: -ones(d, dtype=torch.bool),
    "mean of integers": lambda d: ones(d, dtype=torch.int32).mean(),
    "argmax of nothing": lambda d: ones(d, 0).argmax(),
    "max of nothing": lambda d: ones(d, 0).max(),
    "clamp without bounds": lambda d: ones(d).clamp(),
    "where condition": lambda d: torch.where(ones(d), ones(d), ones(d)),
    "masked_fill mask": lambda d: ones(d).masked_fill(ones(d), 1),
    "item of many": lambda d: ones(d).item(),
    "split sizes": lambda d: ones(d).split([1, 5]),
    "repeat": lambda d: ones(d).repeat(2),
    "dropout probability": lambda d: F.dropout(ones(d), 2.0),
    "randint range": lambda d: torch.randint(5, 5, (2,), device=d),
    "arange sign": lambda d: torch.arange(0, 5, -1, device=d),
    "cumsum dim": lambda d: ones(d).cumsum(4),
    "in-place on a leaf": lambda d: ones(d).requires_grad_().add_(1),
    "backward twice": lambda d: [(y := ones(d).requires_grad_().exp().sum()).backward(), y.backward()],
    "backward of a vector": lambda d: ones(d).requires_grad_().mul(2).backward(),
    "write to an expanded": lambda d: ones(d, 1).expand(3).add_(1),
    "overlapping out": lambda d: torch.add(*[(x := ones(d, 4))[1:], x[1:]], out=x[:-1]),
    "integer power": lambda d: ones(d, dtype=torch.int32) ** -1,
    "binary cross entropy shapes": lambda d: F.binary_cross_entropy(ones(d), ones(d, 4, 5)),
}


@pytest.mark.parametrize("case", SAME_TEXT)
def test_class_and_text_are_those_of_the_cpu(case):
    expected, got = failure(SAME_TEXT[case], "cpu"), failure(SAME_TEXT[case], "tpu")
    assert type(got) is type(expected)
    assert str(got).replace("tpu:0", "cpu") == str(expected)


U8 = torch.uint8
MASK = [True, False, True]
# Numbers that do not fit the tensor's dtype: a call that converts them, of a device, a dtype and a number.
CONVERTING = {
    "fill": lambda d, t, n: torch.zeros(3, device=d, dtype=t).fill_(n),
    "full": lambda d, t, n: torch.full((3,), n, device=d, dtype=t),
    "setitem": lambda d, t, n: torch.zeros(3, device=d, dtype=t).__setitem__(1, n),
    "masked_fill": lambda d, t, n: torch.zeros(3, device=d, dtype=t).masked_fill_(torch.tensor(MASK, device=d), n),
    "index_fill": lambda d, t, n: torch.zeros(3, device=d, dtype=t).index_fill(0, torch.tensor([1], device=d), n),
    "scatter": lambda d, t, n: torch.zeros(3, device=d, dtype=t).scatter(0, torch.tensor([1], device=d), n),
    "pad": lambda d, t, n: F.pad(torch.zeros(3, device=d, dtype=t), (1, 1), value=n),
    "threshold": lambda d, t, n: F.threshold(torch.zeros(3, device=d, dtype=t), 1, n),
    "masked_fill by a CPU tensor": lambda d, t, n: torch.zeros(3, device=d, dtype=t).masked_fill_(
        torch.tensor(MASK, device=d), torch.tensor(n)
    ),
    "index_fill by a CPU tensor": lambda d, t, n: torch.zeros(3, device=d, dtype=t).index_fill(
        0, torch.tensor([1], device=d), torch.tensor(n)
    ),
    "foreach maximum": lambda d, t, n: torch._foreach_maximum([torch.zeros(3, device=d, dtype=t)], n)[0],
    "foreach clamp_max list": lambda d, t, n: torch._foreach_clamp_max([torch.zeros(3, device=d, dtype=t)], [n])[0],
}
# Where the number only takes part in the arithmetic.
COMPUTING = {
    "add alpha": lambda d, t, n: torch.zeros(3, device=d, dtype=t).add(torch.ones(3, device=d, dtype=t), alpha=n),
    "clamp": lambda d, t, n: torch.zeros(3, device=d, dtype=t).clamp(0, n),
    "clamp_max": lambda d, t, n: torch.zeros(3, device=d, dtype=t).clamp_max(n),
    "pow": lambda d, t, n: torch.zeros(3, device=d, dtype=t) ** n,
    "addcmul": lambda d, t, n: torch.addcmul(*[torch.zeros(3, device=d, dtype=t)] * 3, value=n),
    "index_add": lambda d, t, n: torch.zeros(3, device=d, dtype=t).index_add(
        0, torch.tensor([1], device=d), torch.ones(1, device=d, dtype=t), alpha=n
    ),
    "foreach addcmul": lambda d, t, n: torch._foreach_addcmul(*[[torch.zeros(3, device=d, dtype=t)]] * 3, [n])[0],
    "foreach pow": lambda d, t, n: torch._foreach_pow([torch.zeros(3, device=d, dtype=t)], [n])[0],
    "foreach add": lambda d, t, n: torch._foreach_add([torch.zeros(3, device=d, dtype=t)], [n])[0],
    "linspace": lambda d, t, n: torch.linspace(0, n, 3, device=d, dtype=t),
}


def outcome(run, device, dtype, number):
    try:
        result = run(device, dtype, number)
        return result if result is None else result.tolist()
    except (RuntimeError, NotImplementedError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("case", CONVERTING)
@pytest.mark.parametrize("dtype", [U8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32])
def test_numbers_that_do_not_fit(case, dtype):
    for number in (1, 300, -1, -300, 1e10, -1e40, 2.5, float("inf"), float("nan"), 2**40):
        if case == "setitem" and dtype.is_floating_point:  # goes through a CPU tensor there, which does not check
            continue
        expected, got = (outcome(CONVERTING[case], d, dtype, number) for d in ("cpu", "tpu"))
        assert repr(got) == repr(expected), number


@pytest.mark.parametrize("case", COMPUTING)
@pytest.mark.parametrize("dtype", [U8, torch.int8, torch.int32])
def test_numbers_that_do_not_fit_the_arithmetic(case, dtype):
    for number in (1, 300, 2**40):
        expected, got = (outcome(COMPUTING[case], d, dtype, number) for d in ("cpu", "tpu"))
        assert repr(got) == repr(expected), number


def test_a_number_that_does_not_fit_leaves_the_tensor_alone():
    x = torch.ones(3, device="tpu", dtype=U8)
    with pytest.raises(RuntimeError, match="value cannot be converted to type uint8_t without overflow"):
        x.fill_(300)
    assert x.tolist() == [1, 1, 1]
    assert (x + 300).tolist() == (torch.ones(3, dtype=U8) + 300).tolist()  # operands of binary ops wrap


# torch names its kernels in these; the rest of the text is the same.
@pytest.mark.parametrize("run", [lambda d: ones(d) & ones(d), lambda d: ones(d, dtype=torch.int32).softmax(0)])
def test_not_implemented_for_a_dtype(run):
    expected, got = failure(run, "cpu"), failure(run, "tpu")
    assert type(got) is type(expected) is NotImplementedError
    assert str(got).partition("not implemented")[2] == str(expected).partition("not implemented")[2]


MIXED = {
    "add": lambda a, c: a + c,
    "mm": lambda a, c: a @ c.t(),
    "cat": lambda a, c: torch.cat([a, c]),
    "linear": lambda a, c: F.linear(a, c),
    "where": lambda a, c: torch.where(a > 0, c, a),
    "out": lambda a, c: torch.add(a, a, out=c),
    "embedding": lambda a, c: F.embedding(torch.zeros(2, dtype=torch.int64), a),
    "cross entropy": lambda a, c: F.cross_entropy(a, torch.zeros(2, dtype=torch.int64)),
}


@pytest.mark.parametrize("case", MIXED)
def test_tensors_on_two_devices(case):
    text = "Expected all tensors to be on the same device, but found at least two devices, tpu:0 and cpu!"
    with pytest.raises(RuntimeError, match=text):
        MIXED[case](ones("tpu"), ones("cpu"))


def test_cpu_scalars_mix_and_cpu_indices_index():
    x = ones("tpu")
    assert (x + torch.tensor(2.0)).sum().item() == 18
    assert x[torch.tensor([1])].shape == (1, 3)
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device as the indexed tensor"):
        ones("cpu")[torch.tensor([1], device="tpu")]


# --- memory ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.zeros(1 << 44, device="tpu"),
        lambda: torch.empty(1 << 50, device="tpu").fill_(1),
        lambda: ones("tpu")[0, 0].expand(1 << 42).clone(),
        lambda: ones("tpu", 1 << 20, 1) + ones("tpu", 1, 1 << 22),
    ],
)
def test_out_of_memory_lists_the_largest_tensors(allocate):
    big = [torch.full((1 << 20,), float(i), device="tpu") for i in range(3)]
    told = torch.tpu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        allocate()
    text = str(caught.value)
    assert text.startswith("TPU out of memory. Tried to allocate ")
    assert "Largest live tensors:" in text and "Float [1048576]" in text
    assert torch.tpu.memory_stats()["num_ooms"] == told + 1
    assert sum(x.sum().item() for x in big) == 3 << 20  # life goes on


def test_sizes_that_overflow():
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        torch.empty(1 << 62, device="tpu")
    with pytest.raises(RuntimeError):
        torch.empty(-1, device="tpu")


# --- indices that only the device sees -------------------------------------------------------------------------------------

BAD_INDEX = {
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_put": lambda x, i: x.index_put_((i,), torch.tensor(1.0, device="tpu")),
    "nll_loss": lambda x, i: F.cross_entropy(x[:1], i),
}


@pytest.mark.parametrize("bad", [7, -8])
@pytest.mark.parametrize("case", BAD_INDEX)
def test_bad_index_in_debug_mode_fails_at_its_line(case, bad):
    x, index = ones("tpu", 4, 5), torch.tensor([bad], device="tpu")
    with torch.tpu.set_eager_mode(DEBUG), pytest.raises(IndexError, match=r"out of bounds|out of range"):
        BAD_INDEX[case](x, index)
    torch.tpu.synchronize()  # reported once
    assert (x + 1).shape == (4, 5)


@pytest.mark.parametrize("case", BAD_INDEX)
def test_bad_index_in_strict_mode_fails_at_the_next_wait(case):
    x, index = ones("tpu", 4, 5), torch.tensor([7], device="tpu")
    torch.tpu.synchronize()
    BAD_INDEX[case](x, index)
    with pytest.raises(IndexError, match=case):
        torch.tpu.synchronize()
    torch.tpu.synchronize()
    assert ones("tpu").sum().item() == 6


def test_a_failure_surfaces_at_a_host_read():
    x = ones("tpu", 4, 5)
    y = F.embedding(torch.tensor([9], device="tpu"), x)
    with pytest.raises(IndexError, match="embedding"):
        y.cpu()


def test_gather_raises_what_the_cpu_raises():
    index = torch.tensor([[9]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        ones("cpu").gather(1, index)
    with torch.tpu.set_eager_mode(DEBUG), pytest.raises(RuntimeError, match="out of bounds"):
        ones("tpu").gather(1, index.to("tpu"))


# --- the CPU's turn --------------------------------------------------------------------------------------------------------


def eigenvalues():
    return torch.linalg.eigvals(torch.eye(2, device="tpu"))


def fallbacks() -> int:
    return torch.tpu.counters()["fallbacks"].get("aten::_linalg_eigvals", 0)


def test_fallback_policies():
    before = fallbacks()
    torch.tpu.fallback = "error"
    with pytest.raises(NotImplementedError, match=r"aten::_linalg_eigvals is not lowered for TPU \(inputs: Float \[2, 2\]\)"):
        eigenvalues()
    torch.tpu.fallback = "allow"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = eigenvalues()
    assert result.is_tpu and torch.equal(result.cpu(), torch.ones(2, dtype=torch.complex64))
    assert fallbacks() > before
    with pytest.raises(ValueError, match="'error', 'warn' or 'allow'"):
        torch.tpu.fallback = "perhaps"
    assert torch.tpu.fallback == "allow"


def test_fallback_warns_once_per_op():
    torch.tpu.fallback = "warn"
    messages = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.linalg.eigvals(torch.eye(3, device="tpu"))
            torch.linalg.eigvals(torch.eye(2, device="tpu"))
        messages = [str(w.message) for w in caught if "is not lowered for TPU" in str(w.message)]
    assert len(messages) == len({m.split()[0] for m in messages}) >= 1
    assert "Float [3, 3]" in messages[0] and "torch.tpu.fallback" in messages[0]


def test_a_warning_can_be_made_an_error():
    torch.tpu.fallback = "warn"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not lowered for TPU.*")
        with pytest.raises(UserWarning, match="aten::linalg_eig"):
            torch.linalg.eig(torch.eye(2, device="tpu"))


def test_recovery_in_autograd():
    x = ones("tpu").requires_grad_()
    with pytest.raises(RuntimeError):
        (x @ x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [[2, 2, 2], [2, 2, 2]]


# --- arguments that fit nothing ---------------------------------------------------------------------------------------------

SHAPES = [(), (0,), (3,), (2, 3), (3, 2), (1, 2, 3), (2, 1, 3, 4), (2, 0, 3), (1, 1, 2, 1, 1, 1, 3)]
DTYPES = [torch.float32, torch.float32, torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.complex64]


def scrambled(kind: str, rng: random.Random, length: int | None = None):
    """Any argument of a schema's type, e.g. "List[Tensor]", which may have its length."""
    if kind == "Tensor":
        shape, dtype = rng.choice(SHAPES), rng.choice(DTYPES)
        return torch.ones(shape, dtype=dtype, device="tpu")
    if kind.startswith("Optional["):
        return rng.choice([None, scrambled(kind[9:-1], rng, length)])
    if kind.startswith("List["):
        return [scrambled(kind[5:-1], rng) for _ in range(rng.randrange(4) if length is None else length)]
    numbers = {"number": (-1, 0, 2, 0.5), "int": (-7, -1, 0, 1, 2, 3, 5), "float": (-1.0, 0.0, 0.5), "bool": (True, False)}
    return rng.choice(numbers.get(kind, ("none", "mean", "bogus") if kind == "str" else (None,)))


# torch itself does not survive numbers that stand for no dtype, nor lists of another length than the schema's.
ENUMERATED = {"dtype", "out_dtype", "layout", "memory_format"}


def scrambled_call(op, rng: random.Random):
    positional, by_name = [], {}
    for argument in op._schema.arguments:
        if argument.has_default_value() and rng.random() < 0.5:
            value = argument.default_value
        elif argument.name in ENUMERATED:
            value = None
        else:
            value = scrambled(str(argument.type), rng, argument.N)
        if argument.kwarg_only:
            by_name[argument.name] = value
        else:
            positional.append(value)
    return op(*positional, **by_name)


ROWS = [name for name, _ in torch_tpu._C._op_rows()]
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS) if os.environ.get("TORCH_TPU_TEST_ALL") == "1" else [3])
def test_no_arguments_are_a_fault_of_the_backend(part):
    """Every row takes or refuses what comes: dtypes, shapes and numbers of dims at random."""
    torch.tpu.fallback = "allow"
    for row in ROWS[part::PARTS]:
        rng = random.Random(row)
        for _ in range(6):
            try:
                scrambled_call(overload_of(row), rng)
                torch.tpu.synchronize()
            except Exception as error:
                assert "fault of torch_tpu" not in str(error), row


FIT_NOTHING = {  # what only torch itself calls: its own kernels do not look at it
    "batch_norm_backward": lambda d: torch.ops.aten.native_batch_norm_backward(
        ones(d), ones(d), ones(d, 2), None, None, ones(d, 3), ones(d, 3), True, 1e-5, [True] * 3
    ),
    "log_softmax_backward": lambda d: torch.ops.aten._log_softmax_backward_data(ones(d), ones(d, 3, 2), 1, torch.float32),
    "layer_norm_backward": lambda d: torch.ops.aten.native_layer_norm_backward(
        ones(d)[0, 0], ones(d), [3], ones(d, 2, 1), ones(d, 2, 1), None, None, [True, False, False]
    ),
    "csr_to_coo": lambda d: torch._convert_indices_from_csr_to_coo(
        torch.zeros(2, 0, dtype=torch.int64, device=d), torch.zeros(2, 3, dtype=torch.int64, device=d)
    ),
    "unfold_backward": lambda d: torch.ops.aten.unfold_backward(ones(d, 3), [5], 0, 2, 0),
    "cdist_backward": lambda d: torch.ops.aten._cdist_backward(ones(d, 5, 5), ones(d, 5, 5), ones(d)[0, 0], 2.0, ones(d, 5, 5)),
}


@pytest.mark.parametrize("case", FIT_NOTHING)
def test_arguments_that_do_not_fit_together(case):
    assert "the arguments do not fit together" in str(failure(FIT_NOTHING[case], "tpu"))


def test_pivots_that_do_not_fit():
    error = failure(lambda d: torch.lu_unpack(ones(d, 3, 5), ones(d, 2, dtype=torch.int32)), "tpu")
    assert str(error) == "lu_unpack: Expected LU_pivots of shape [*, min(m, n)] for LU_data of shape [3, 5], but got [2]"


def test_adaptive_pooling_backward_of_nothing():
    aten = torch.ops.aten
    x, index = ones("tpu", 1, 4, 0, 3, 5), ones("tpu", 1, 4, 4, 3, 5, dtype=torch.int64)
    assert aten.adaptive_max_pool3d_backward(ones("tpu", 1, 4, 4, 3, 5), x, index).shape == x.shape


def test_optimizer_steps_of_several_elements():
    def step(device):
        lists = [[ones(device)] for _ in range(4)]
        numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
        torch.ops.aten._fused_adam_(*lists, [], [ones(device, 2)], **numbers)

    assert str(failure(step, "tpu")) == str(failure(step, "cpu")) == "a Tensor with 2 elements cannot be converted to Scalar"


BAG_GRADIENTS = {"indices": (torch.float32, torch.int64), "offset2bag": (torch.int64, torch.float32)}


@pytest.mark.parametrize("dtypes", BAG_GRADIENTS.values(), ids=BAG_GRADIENTS)
def test_embedding_bag_gradient_of_bad_indices(dtypes):
    def gradient(device):
        indices, owner = (torch.zeros(6, dtype=dtype, device=device) for dtype in dtypes)
        sizes = torch.ones(3, dtype=torch.int64, device=device)
        aten = torch.ops.aten
        return aten._embedding_bag_dense_backward(ones(device, 3, 3), indices, owner, sizes, sizes, 5, False, 0, None)

    text = str(failure(gradient, "tpu"))
    if dtypes[0] == torch.float32:
        assert text.startswith("Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int")
    else:
        assert text == str(failure(gradient, "cpu"))
