"""Autocast on "tpu" has the op lists of CUDA: torch's own test lists, op by op."""

import inspect
import warnings

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists

# Ops of CUDA alone.
NOT_HERE = {
    "_thnn_fused_lstm_cell",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "_convolution",
    "rnn_tanh_cell",
    "rnn_relu_cell",
}
MODULES = {"torch": torch, "nn": torch._C._nn, "methods": torch.Tensor}


@pytest.fixture(scope="module")
def lists():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutocastTestLists(torch.device("tpu"))


def entries(lists, name):
    for entry in getattr(lists, name):
        op, args, *rest = entry
        if isinstance(args, str):  # einsum's equation
            continue  # which the list writes down in a way that no call takes
        kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
        if op not in NOT_HERE:
            yield op, args, kwargs, rest


def call(where, op, args, kwargs):
    function = getattr(MODULES[where], op, None) or getattr(torch.ops.aten, op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def dtypes(value):
    values = value if isinstance(value, (tuple, list)) else [value]
    return {x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["torch_fp16", "nn_fp16", "methods_fp16"])
def test_lower_precision(lists, name, dtype):
    checked = 0
    with torch.autocast("tpu", dtype=dtype):
        for op, args, kwargs, _ in entries(lists, name):
            assert dtypes(call(name.split("_")[0], op, args, kwargs)) == {dtype}, op
            checked += 1
    assert checked == len(list(entries(lists, name))) and (checked or not getattr(lists, name))


@pytest.mark.parametrize("name", ["torch_fp32", "nn_fp32", "methods_fp32"])
def test_full_precision(lists, name):
    with torch.autocast("tpu", dtype=torch.float16):
        for op, args, kwargs, _ in entries(lists, name):
            assert dtypes(call(name.split("_")[0], op, args, kwargs)) <= {torch.float32}, op


def test_promotion(lists):
    with torch.autocast("tpu", dtype=torch.float16):
        for op, args, kwargs, _ in entries(lists, "torch_need_autocast_promote"):
            assert dtypes(call("torch", op, args, kwargs)) == {torch.float32}, op


@pytest.mark.parametrize("name", ["torch_expect_builtin_promote", "methods_expect_builtin_promote"])
def test_builtin_promotion(lists, name):
    with torch.autocast("tpu", dtype=torch.float16):
        for op, args, _, rest in entries(lists, name):
            result = call(name.split("_")[0], op, args, {})
            results = result if isinstance(result, tuple) else (result,)
            assert all(x.dtype == rest[0] for x in results if isinstance(x, torch.Tensor)), op  # equal gives a bool


def test_banned(lists):
    for op, args, *_ in getattr(lists, "banned", []) or []:
        with torch.autocast("tpu", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
            call("nn", op, args, {})
    a = torch.rand(3, device="tpu")
    with torch.autocast("tpu", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(a, a)


def test_nesting_and_cache():
    layer, x = torch.nn.Linear(4, 3).to("tpu"), torch.ones(2, 4, device="tpu")
    with torch.autocast("tpu"):
        assert layer(x).dtype == torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert layer(x).dtype == torch.float32
        assert layer(x).dtype == torch.bfloat16
        layer(x).sum().backward()
    assert layer.weight.grad.dtype == torch.float32

    @torch.autocast("tpu", dtype=torch.float16)
    def run(x):
        return x @ x.t()

    assert run(x).dtype == torch.float16 and not torch.is_autocast_enabled("tpu")
    assert inspect.isfunction(run)
