"""Every module of torch.nn that torch's own module database knows: outputs and gradients against the CPU."""

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 6  # of each module, spread over those that the database gives


def to(value, device):
    """Tensors in `value` on `device`, as leaves where they need gradients."""

    def move(x):
        if isinstance(x, torch.nn.utils.rnn.PackedSequence):
            return x.to(device)
        if not isinstance(x, torch.Tensor):
            return device if isinstance(x, torch.device | str) and str(x) == "cpu" else x
        return x.detach().to(device).requires_grad_(x.requires_grad)

    return tree_map(move, value)


def tensors(value):
    return [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]


def run(module, sample, device):
    """Outputs and gradients of inputs and parameters, on the CPU."""
    torch.manual_seed(0)
    module = copy.deepcopy(module).to(device)
    args, kwargs = (to(part, device) for part in (sample.forward_input.args, sample.forward_input.kwargs))
    outputs = tensors(module(*args, **kwargs))
    differentiable = [x for x in outputs if x.requires_grad]
    if differentiable:
        weights = [torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x) for x in differentiable]
        torch.autograd.backward(differentiable, weights)
    leaves = [x for x in [*tensors((args, kwargs)), *module.parameters()] if x.requires_grad]
    state = [x for x in module.buffers() if x.is_floating_point()]
    return [x.detach().cpu() for x in outputs + state], [None if x.grad is None else x.grad.cpu() for x in leaves]


def samples(info, training, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=dtype.is_floating_point, training=training
        )
    chosen = every[:: max(1, len(every) // SAMPLES)][:SAMPLES]
    for sample in chosen:
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        torch.manual_seed(1)
        module = info.module_cls(*args, **{k: v for k, v in kwargs.items() if k not in ("device", "dtype")}).to(dtype)
        module.train(training)
        if any(isinstance(x, torch.nn.parameter.UninitializedParameter) for x in module.parameters()):
            module(*sample.forward_input.args, **sample.forward_input.kwargs)  # a lazy module draws its parameters now
        yield module, sample


def is_random(module):
    return any(
        ("Dropout" in type(x).__name__ and getattr(x, "p", 0) > 0) or isinstance(x, torch.nn.RReLU) for x in module.modules()
    ) or (getattr(module, "dropout", 0) and module.training)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info, training):
    dtype = torch.float32
    with torch.tpu.precision("highest"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, sample in samples(info, training, dtype):
            try:
                expected = run(module, sample, "cpu")
            except (RuntimeError, NotImplementedError, ValueError):
                continue  # not a sample for the CPU
            actual = run(module, sample, "tpu")
            if training and is_random(module):
                assert [x.shape for x in actual[0]] == [x.shape for x in expected[0]]
                continue
            torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4, equal_nan=True)
