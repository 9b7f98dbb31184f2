"""torch.compile with the backend "tpu" on the cases that torch keeps for every device, against the CPU.

Higher-order operators, autograd functions and custom operators, modules, optimizers, operators whose sizes change, mutation
and aliasing, and tensor subclasses. Of the large databases a fixed part runs by default, and all of them with
TORCH_TPU_TEST_ALL=1 (make test-all).
"""

import copy
import itertools
import math
import os
import random
import sys
import warnings

import pytest
import torch
from helpers import training_step
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.optests import aot_autograd_check
from torch.testing._internal.subclasses import WrapperSubclass
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves, tree_map

ALL = os.environ.get("TORCH_TPU_TEST_ALL") == "1"
pytestmark = pytest.mark.usefixtures("fresh_dynamo", "full_float32")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Most of the custom operators run on the CPU, which is announced; and the database seeds some operators itself."""
    monkeypatch.setattr(torch.tpu, "fallback", "allow")
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing") and hasattr(module, "wrapper_set_seed"):
            monkeypatch.setattr(module, "wrapper_set_seed", lambda function, *args, **kwargs: function(*args, **kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(function, **keywords):
    return torch.compile(function, backend="tpu", **keywords)


def name_of(info):
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def chosen(database, count):
    """A part of a database."""
    return database if ALL else random.Random(7).sample(database, count)


def tensors(value):
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def placed(value, device, move=lambda x, device: x.to(device, copy=True)):
    """Copies of the tensors in `value` on `device`: leaves that require a gradient if they did."""

    def place(x):
        if isinstance(x, torch.Tensor):
            return move(x.detach(), device).requires_grad_(x.requires_grad)
        if isinstance(x, BlockMask):
            return x.to(device)
        return device if isinstance(x, torch.device) or x == "cpu" else x

    return tree_map(place, value)


def outcome(function, *arguments):
    """Results, gradients (zeros where there are none), and what the arguments hold afterwards: on the CPU."""
    torch.manual_seed(0)
    results = tensors(function(*arguments))
    leaves = [x for x in tensors(arguments) if x.requires_grad]
    differentiable = [x for x in results if x.requires_grad and x.numel() > 0]
    gradients = []
    if leaves and differentiable:
        weights = [torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x) for x in differentiable]
        found = torch.autograd.grad(differentiable, leaves, weights, allow_unused=True)
        gradients = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(leaves, found, strict=True)]
    return [[x.detach().cpu() for x in each] for each in (results, gradients, tensors(arguments))]


def of_sample(info, sample):
    """A function and its arguments."""

    def function(given, args, kwargs):
        return info.op(given, *args, **kwargs)

    return function, (sample.input, sample.args, sample.kwargs)


# --- higher-order operators, autograd functions, custom operators -----------------------------------------------------------

NOT_HERE = {"inline_asm_elementwise": "PTX, for CUDA"}
# Compared with eager mode on "tpu".
NOT_ON_THE_CPU = {
    "flex_attention": "torch's eager FlexAttention has no gradients on the CPU",
    "NumpyExpMarkDirtyAutogradFunction": "writes to NumPy's copy, which is the tensor itself on the CPU alone",
}
CALLS = [info for info in (*hop_db, *autograd_function_db, *custom_op_db) if info.name not in NOT_HERE]


@pytest.mark.parametrize("info", CALLS, ids=name_of)
def test_calls(info):
    reference = "tpu" if info.name in NOT_ON_THE_CPU else "cpu"
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd):
        function, arguments = of_sample(info, sample)
        expected = outcome(function, *placed(arguments, reference))
        actual = outcome(compiled(function), *placed(arguments, "tpu"))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("info", [info for info in hop_db if info.name not in NOT_HERE], ids=name_of)
def test_higher_order_operators_of_changing_sizes(info):
    reference = "tpu" if info.name in NOT_ON_THE_CPU else "cpu"
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd):
        function, arguments = of_sample(info, sample)
        expected = outcome(function, *placed(arguments, reference))
        actual = outcome(compiled(function, dynamic=True), *placed(arguments, "tpu"))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# --- modules ----------------------------------------------------------------------------------------------------------------

MODULES = chosen(module_db, 15)


def modules_of(info, training):
    """The first and the last of the database's samples: a module on the CPU, and its arguments."""
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    for sample in samples[:1] + samples[1:][-1:]:
        torch.manual_seed(1)
        made, given = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **{k: v for k, v in made.kwargs.items() if k not in ("device", "dtype")})
        module.float().train(training)
        if any(isinstance(x, nn.parameter.UninitializedParameter) for x in module.parameters()):
            module(*given.args, **given.kwargs)  # a lazy module draws its parameters now
        yield module, (given.args, given.kwargs)


def is_random(module):
    kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)
    drawing = any(isinstance(x, kinds) or getattr(x, "dropout", 0) for x in module.modules())
    return module.training and drawing


def run_module(module, arguments, device, wrap=lambda module: module):
    """Results, gradients of arguments and parameters, and what these and the buffers hold."""
    run = wrap(module.to(device))

    def function(arguments, state):
        return run(*arguments[0], **arguments[1])

    return outcome(function, placed(arguments, device), list(module.state_dict(keep_vars=True).values()))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_modules(info, training):
    for module, arguments in modules_of(info, training):
        twin = copy.deepcopy(module)
        expected, actual = run_module(module, arguments, "cpu"), run_module(twin, arguments, "tpu", compiled)
        if is_random(module):
            assert [x.shape for each in actual for x in each] == [x.shape for each in expected for x in each]
        else:
            torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4, equal_nan=True)


# --- optimizers -------------------------------------------------------------------------------------------------------------

NOT_COMPILED = {
    "SparseAdam": "sparse gradients, which torch does not trace",
    "LBFGS": "torch leaves its step out of graphs, and its searches magnify rounding",
}
FURTHER = {"SGD": ("momentum", "dampening", "nesterov"), "Adam": ("amsgrad",), "RMSprop": ("momentum",)}
OPTIMIZERS = [
    pytest.param(info.optim_cls, options, id=f"{info.optim_cls.__name__}-{options.desc}".replace(" ", "_"))
    for info in optim_db
    if info.optim_cls.__name__ not in NOT_COMPILED
    for options in info.optim_inputs_func("cpu")
    if ALL or options.desc in ("default", *FURTHER.get(info.optim_cls.__name__, ()))
]


def steps_of(kind, options, device, wrap=lambda function: function):
    """Losses and parameters of some whole steps, and the programs that each ran."""
    torch.manual_seed(0)
    bias = kind is not torch.optim.Muon  # for matrices alone
    model = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias)).to(device)
    x, y = torch.randn(8, 5).to(device), torch.randn(8, 2).to(device)
    optimizer = kind(model.parameters(), **options.kwargs)

    run, losses, programs = wrap(training_step(model, optimizer)), [], []
    for _ in range(3):
        before = torch.tpu.counters()["executions"]
        losses.append(run(x, y).cpu())
        programs.append(torch.tpu.counters()["executions"] - before)
    state = {name: x for name, x in optimizer.state_dict()["state"].items()}
    return (losses, [x.detach().cpu() for x in model.parameters()], placed(state, "cpu")), programs


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_whole_steps(kind, options):
    expected, _ = steps_of(kind, options, "cpu")
    before = counters["stats"]["unique_graphs"]
    actual, programs = steps_of(kind, options, "tpu", compiled)
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-5, check_dtype=False)
    if kind is torch.optim.Adafactor:
        return  # reads its step count on the host, which ends the graph
    assert programs[1:] == [1, 1]
    # SGD's first step takes the gradient instead of a buffer; if it dampens other gradients, no buffer gives the same.
    assert counters["stats"]["unique_graphs"] - before == (2 if options.kwargs.get("dampening") else 1)


# --- operators whose sizes change -------------------------------------------------------------------------------------------

# What a comparison of values with the CPU cannot judge: new memory, factors known up to signs, kernels of CUDA, random numbers.
UNDEFINED = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_"),
    *("svd", "linalg.svd", "linalg.eigh", "linalg.eig", "linalg.qr", "qr", "pca_lowrank", "svd_lowrank", "geqrf"),
    *("linalg.householder_product", "linalg.lstsq", "linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.pinv"),
    *("jiterator_unary", "jiterator_binary", "jiterator_binary_return_by_ref", "jiterator_2inputs_2outputs"),
    *("jiterator_4inputs_with_extra_args", "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial"),
    *("nn.functional.rrelu", "normal", "rand_like", "randint_like", "randn_like", "uniform"),
}
NOT_DYNAMIC = {
    "max_pool2d_with_indices_backward": "torch's tracing refuses symbolic sizes there, with CPU tensors as well",
    "tensor_split": "torch wants its indices on the CPU",
    "nn.functional.pad.circular": "where it crops more than it has, the CPU gives new memory",
    "matrix_exp": "magnifies rounding",
}
GROWING = [
    info
    for info in op_db
    if torch.float32 in info.dtypes
    and not {info.name, name_of(info)} & (UNDEFINED | NOT_DYNAMIC.keys())
    and not info.name.startswith("sparse")
]


def smaller(value, by):
    """The same with `by` elements less in each dimension of tensors that has enough."""

    def cut(x):
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            for d, size in enumerate(x.shape):
                x = x.narrow(d, 0, size - by) if size > by + 1 else x
        return x

    return tree_map(cut, value)


def poisoned(x, device):
    """A slice of a tensor of powers of two, the bounds of programs, that is NaN elsewhere: it is taken with its padding."""
    bounds = [size if size < 2 else 1 << (size - 1).bit_length() for size in x.shape]
    if not x.dtype.is_floating_point or bounds == list(x.shape) or x.layout != torch.strided:
        return x.to(device, copy=True)
    part = tuple(slice(0, size) for size in x.shape)
    whole = torch.full(bounds, math.nan, dtype=x.dtype)
    whole[part] = x
    return whole.to(device)[part]


def families(info):
    """A function, with arguments of several sizes and the CPU's outcome for each: of two samples, those that the CPU takes."""
    samples = itertools.islice(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd), 24)
    large = [s for s in samples if any(size > 3 for x in tensors((s.input, s.args, s.kwargs)) for size in x.shape)]
    for sample in large[:: max(1, len(large) - 1)]:
        function, arguments = of_sample(info, sample)
        family = []
        for by in (0, 2):
            cut = smaller(arguments, by)
            try:
                family.append((cut, outcome(function, *placed(cut, "cpu"))[:2]))
            except Exception:  # sizes that the CPU refuses
                continue
        if len(family) > 1:
            yield function, family


@pytest.mark.parametrize("info", chosen(GROWING, 28), ids=name_of)
def test_operators_of_changing_sizes(info):
    for function, family in families(info):
        torch._dynamo.reset()
        run = compiled(function, dynamic=True)
        for arguments, expected in family:
            actual = outcome(run, *placed(arguments, "tpu", poisoned))[:2]
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-4, equal_nan=True)


# What the whole database has found.
FOUND = {
    "rows of a stack": (lambda x, y: torch.stack([x, y], 1).sin(), [(5, 6), (5, 6)]),
    "rows of a concatenation": (lambda x, y: torch.cat([x, y], 1).sin(), [(5, 6), (5, 6)]),
    "a sum expanded": (lambda x: x.sum(1), [(5, 6)]),
    "a sum to one": (lambda x: x.sum_to_size(1), [(5,)]),
    "nothing to contract": (torch.addmm, [(5, 10), (5, 0), (0, 10)]),
    "a product of nothing": (lambda x: x + x.new_zeros(3, 0) @ x.new_zeros(0, 50), [(3, 50)]),
    "parts of complex": (lambda x, y: torch.complex(x, y).exp().abs(), [(5,), (5,)]),
    "complex": (lambda x, y: torch.view_as_real(torch.complex(x, y)), [(5,), (5,)]),
    "cropped": (lambda x: F.pad(x.sin(), (-1, 2, 0, -2)), [(3, 6, 6)]),
    "padded": (lambda x: F.pad(x.sin(), (1, 2, 0, 2)), [(3, 6, 6)]),
    "zeros without memory": (lambda x: torch.sgn(x), [(5, 6)]),
    "heads": (F.scaled_dot_product_attention, [(3, 2, 6, 5), (3, 2, 7, 5), (3, 2, 7, 5)]),
    "heads with a scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
        [(3, 2, 6, 5), (3, 2, 7, 5), (3, 2, 7, 3)],
    ),
    "heads with a mask": (
        lambda q, k, v, x: F.scaled_dot_product_attention(q, k, v, x > 0),
        [(3, 2, 6, 5), (3, 2, 7, 5), (3, 2, 7, 5), (6, 7)],
    ),
}


@pytest.mark.parametrize("which", ["static", "first", "all"])
@pytest.mark.parametrize("name", FOUND)
def test_found(name, which):
    """Of fixed sizes, with a first dimension that changes, and where all may."""
    function, sizes = FOUND[name]
    arguments = [torch.randn(each).requires_grad_() for each in sizes]
    expected = outcome(function, *placed(arguments, "cpu"))
    on_device = placed(arguments, "tpu", poisoned)
    if which == "first":
        for x in on_device:
            torch._dynamo.maybe_mark_dynamic(x, 0)
    actual = outcome(compiled(function, dynamic={"static": False, "first": None, "all": True}[which]), *on_device)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_probabilities_in_padding_are_not_checked():
    x = poisoned(torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]), "tpu")
    run = compiled(lambda x: (torch.bernoulli(x), torch.bernoulli(x, 0.5), x.clone().bernoulli_(x)), dynamic=True)
    exact, half, in_place = run(x)
    assert exact.tolist() == in_place.tolist() == [0, 1, 1, 0, 1] and half.shape == (5,)


# --- mutation and aliasing ----------------------------------------------------------------------------------------------------


def write_argument(x, y):
    y.copy_(x.detach() * 2)
    return x * y


def write_view(x, y):
    y[1:].copy_(x.detach()[1:] + 1)
    return (x * y).sum(), y[0]


def write_intermediate(x, y):
    z = x * 2
    z[0].mul_(3)
    z.t()[1].add_(y[:, 0].sum())
    return z, z.t(), z[0]


def same_argument_twice(x, y):
    return x, y.view(-1), x * y, x.t()


def write_metadata(x, y):
    y.t_()
    y.t_()
    return x + y, y.unsqueeze(0)


def write_shared(x, y):
    first, second = y.view(-1)[:4], y.view(-1)[2:]
    first.fill_(1)
    second.fill_(2)
    return x * y, first + second[:4]


MUTATIONS = [write_argument, write_view, write_intermediate, same_argument_twice, write_metadata, write_shared]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", MUTATIONS, ids=lambda function: function.__name__)
def test_mutation_and_aliasing(function, dynamic):
    x, y = torch.randn(3, 3).requires_grad_(), torch.randn(3, 3)
    aot_autograd_check(function, placed((x, y), "tpu"), {}, dynamic, check_gradients="auto")
    run = compiled(function, dynamic=dynamic)
    for _ in range(2):
        expected = outcome(function, *placed((x, y), "cpu"))
        torch.testing.assert_close(outcome(run, *placed((x, y), "tpu")), expected)


# --- tensor subclasses --------------------------------------------------------------------------------------------------------


def network(x, weight, bias):
    hidden = F.layer_norm((x @ weight + bias).relu(), (4,))
    return F.softmax(hidden.view(-1, 2), -1), hidden.t()[1:]


SUBCLASSES = {
    "two tensors": (lambda x: TwoTensor(x, x * 2 + 1), lambda x: [x.a, x.b]),
    "two of two": (lambda x: TwoTensor(TwoTensor(x, x + 1), TwoTensor(x - 1, x * 2)), lambda x: [x.a.a, x.a.b, x.b.a, x.b.b]),
    "a wrapper": (lambda x: WrapperSubclass(x.clone()), lambda x: [x.a]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", SUBCLASSES)
def test_subclasses(name, dynamic):
    wrap, parts = SUBCLASSES[name]
    values = [torch.randn(6, 3), torch.randn(3, 4), torch.randn(4)]

    def outcome_on(device, run):
        leaves = [wrap(x.to(device)).requires_grad_() for x in values]
        results = run(*leaves)
        sum((x * x).sum() for x in results).backward()
        return [part.detach().cpu() for x in (*results, *(leaf.grad for leaf in leaves)) for part in parts(x)]

    expected = outcome_on("cpu", network)
    torch.testing.assert_close(outcome_on("tpu", compiled(network, dynamic=dynamic)), expected, rtol=1e-4, atol=1e-5)


def test_a_mutated_subclass():
    def function(x):
        x.mul_(2)[0].add_(1)
        return x.sum()

    x = TwoTensor(torch.ones(2, 3).to("tpu"), torch.zeros(2, 3).to("tpu"))
    total = compiled(function, fullgraph=True)(x)
    assert (total.a.item(), total.b.item()) == (15, 3)
    assert x.a.tolist() == [[3] * 3, [2] * 3] and x.b.tolist() == [[1] * 3, [0] * 3]
