"""Ops on lists of tensors, fused optimizer steps and the gradient scaler, against CPU torch."""

import math

import pytest
import torch
from helpers import to_tpu

UNARY = "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt"
UNARY += " sigmoid sign sin sinh sqrt tan tanh trunc"


def tensors(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(shape, generator=generator) + 0.1).to(dtype) for shape in ((3, 4), (5,), (), (2, 0))]


def compare(actual, expected, rtol=1e-5, atol=1e-6):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        narrow = e.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(a.cpu(), e, rtol=1e-2 if narrow else rtol, atol=1e-2 if narrow else atol, equal_nan=True)


def check(name, *args, in_place=True, **kwargs):
    """The functional op and, on copies, the in-place one."""
    function = getattr(torch, "_foreach_" + name)
    compare(function(*to_tpu(args), **kwargs), function(*args, **kwargs))
    if not in_place:
        return
    function = getattr(torch, "_foreach_" + name + "_")
    ours, theirs = to_tpu(args), [[t.clone() for t in args[0]], *args[1:]]
    function(*ours, **kwargs)
    function(*theirs, **kwargs)
    compare(ours[0], theirs[0])


@pytest.mark.parametrize("name", UNARY.split())
def test_unary(name):
    check(name, tensors())


def test_unary_dtypes():
    for name in ("exp", "sqrt", "neg"):
        check(name, tensors(dtype=torch.bfloat16))
    check("exp", [torch.arange(3), torch.ones(2)], in_place=False)
    check("abs", [torch.tensor([1 + 2j]), torch.tensor([-1.0])], in_place=False)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"])
def test_binary(name):
    x, y = tensors(), tensors(1)
    check(name, x, y)
    check(name, x, 0.7)
    check(name, x, [0.5, 2, 1.0, 3.0])
    check(name, tensors(dtype=torch.bfloat16), 0.7)
    check(name, [torch.arange(1, 4), torch.ones(2)], 2, in_place=name != "div")


def test_binary_with_tensor_and_alpha():
    x, y = tensors(), tensors(1)
    for name in ("add", "mul", "div"):
        check(name, x, torch.tensor(2.5))
    check("add", x, y, alpha=0.3)
    check("sub", x, y, alpha=2)
    check("add", x, torch.tensor(2.5), alpha=0.3)
    compare(torch._foreach_pow(0.9, to_tpu(x)), torch._foreach_pow(0.9, x))


def test_ternary():
    x, y, z = tensors(), tensors(1), tensors(2)
    for name in ("addcmul", "addcdiv"):
        for value in (1, 0.3):
            check(name, x, y, z, value=value)
        check(name, x, y, z, [0.1, 0.2, 0.3, 0.4])
        numbers = torch.tensor([0.1, 0.2, 0.3, 0.4])  # stays on the CPU
        function = getattr(torch, "_foreach_" + name)
        compare(function(*to_tpu((x, y, z)), numbers), function(x, y, z, numbers))
    check("lerp", x, y, 0.3)
    check("lerp", x, y, z)
    check("lerp", x, y, [0.1, 0.6, 0.3, 0.4])


def test_copy_and_zero():
    x = to_tpu(tensors())
    torch._foreach_zero_(x)
    compare(x, [torch.zeros_like(t) for t in tensors()])
    torch._foreach_copy_(x, to_tpu([t.to(torch.bfloat16) for t in tensors()]))
    compare(x, [t.to(torch.bfloat16).float() for t in tensors()])
    compare(torch._foreach_clone(x), [t.cpu() for t in x])
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(5\) must match the size of tensor b \(3\)"):
        torch._foreach_copy_([torch.ones(5, device="tpu")], [torch.ones(3, device="tpu")])


def test_norm_and_max():
    x = tensors()
    for order in (0, 1, 2, 3, 0.5):
        check("norm", x, order, in_place=False)
    check("norm", x[:3], math.inf, in_place=False)
    check("norm", tensors(dtype=torch.bfloat16), 2, in_place=False)
    check("norm", tensors(dtype=torch.float16), 2, torch.float32, in_place=False)
    check("norm", [torch.tensor([3 + 4j, 1j])], 2, in_place=False)
    check("max", [*x[:3], torch.tensor([1.0, math.nan]), torch.arange(4)], in_place=False)
    with pytest.raises(RuntimeError, match="maximum of an empty tensor"):
        torch._foreach_max(to_tpu(x))
    with pytest.raises(RuntimeError, match="infinity norm on an empty tensor"):
        torch._foreach_norm(to_tpu(x), math.inf)


def test_views_are_written_through():
    def program(base):
        base = base.clone()
        torch._foreach_add_([base[0], base[1:, ::2], base[2:].t()[1]], 1.5)
        return base

    x = torch.randn(4, 6)
    torch.testing.assert_close(program(x.to("tpu")).cpu(), program(x))


def test_errors():
    one = torch.ones(2, device="tpu")
    with pytest.raises(RuntimeError, match="at least one tensor"):
        torch._foreach_mul([], 1)
    with pytest.raises(RuntimeError, match="same number of tensors, got 1 and 2"):
        torch._foreach_mul([one], [one, one])
    with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
        torch._foreach_mul([one], [1, 2])
    with pytest.raises(RuntimeError, match="scalar tensor expected to be 0 dim but it has 1 dimensions and 2 elements"):
        torch._foreach_mul([one], one)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
        torch._foreach_mul_([torch.arange(3, device="tpu")], 1.5)
    with pytest.raises(RuntimeError, match="In-place abs is not supported"):
        torch._foreach_abs_([torch.ones(2, dtype=torch.complex64, device="tpu")])


# --- optimizers ------------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "sgd_dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "maximize": True}),
    "adam": (torch.optim.Adam, {}),
    "adam_amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
}


def train(device, optimizer, options, steps=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (3,), ())
    parameters = [torch.randn(s, generator=generator).to(dtype).to(device).requires_grad_() for s in shapes]
    gradients = [[torch.randn(s, generator=generator).to(dtype) for s in shapes] for _ in range(steps)]
    instance = optimizer(parameters, lr=0.05, **options)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(device)
        instance.step()
    state = [v for p in parameters for _, v in sorted(instance.state[p].items()) if isinstance(v, torch.Tensor)]
    return [p.detach().cpu() for p in parameters] + [v.cpu() for v in state]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_optimizers(name, implementation):
    optimizer, options = OPTIMIZERS[name]
    expected = train("cpu", optimizer, {**options, "foreach": False})
    compare(train("tpu", optimizer, {**options, implementation: True}), expected)


def test_learning_rate_tensor_and_narrow_parameters():
    for lr in (torch.tensor(0.05), 0.05):
        x = torch.ones(3, device="tpu", requires_grad=True)
        x.grad = torch.full((3,), 0.5, device="tpu")
        torch.optim.SGD([x], lr=lr.to("tpu") if isinstance(lr, torch.Tensor) else lr, fused=True).step()
        torch.testing.assert_close(x.detach().cpu(), torch.full((3,), 0.975))
    optimizer, options = OPTIMIZERS["adamw"]
    expected = train("cpu", optimizer, {**options, "fused": True}, dtype=torch.bfloat16)
    compare(train("tpu", optimizer, {**options, "fused": True}, dtype=torch.bfloat16), expected)


def test_changing_learning_rate_compiles_once():
    x = torch.ones(3, device="tpu", requires_grad=True)
    x.grad = torch.ones(3, device="tpu")
    optimizer = torch.optim.SGD([x], lr=0.1, fused=True)
    optimizer.step()
    before = torch.tpu.counters()["compiles"]
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
        optimizer.step()
    assert torch.tpu.counters()["compiles"] == before


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_fused_step_scales_and_skips(found):
    def step(device):
        lists = [[t.to(device) for t in tensors(i)] for i in range(4)]
        steps = [torch.tensor(3.0, device=device) for _ in lists[0]]
        torch._fused_adam_(
            *lists,
            [],
            steps,
            lr=0.1,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
            grad_scale=torch.tensor(4.0, device=device),
            found_inf=torch.tensor(found, device=device),
        )
        return [t for one in lists for t in one]

    compare(step("tpu"), step("cpu"))


def test_clip_grad_norm():
    def clipped(device):
        parameters = [t.to(device).requires_grad_() for t in tensors()]
        for p in parameters:
            p.grad = p.detach() * 3
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return [norm, *(p.grad for p in parameters)]

    compare(clipped("tpu"), clipped("cpu"))


def test_gradient_scaler_ops():
    for bad in (False, True):
        gradients = [torch.tensor([1.0, math.inf if bad else 2.0]), torch.ones(2, dtype=torch.float16)]
        ours, found = to_tpu(gradients), torch.zeros(1, device="tpu")
        torch._amp_foreach_non_finite_check_and_unscale_(ours, found, torch.tensor([0.25], device="tpu"))
        compare(ours, [g * 0.25 for g in gradients])
        assert found.item() == bad
    for found, tracker in ((0.0, 0), (0.0, 1), (1.0, 1)):
        results = []
        for device in ("tpu", "cpu"):
            scale, count = torch.tensor([8.0], device=device), torch.tensor([tracker], dtype=torch.int32, device=device)
            torch._amp_update_scale_(scale, count, torch.tensor([found], device=device), 2.0, 0.5, 2)
            results.append([scale.cpu(), count.cpu()])
        compare(*results)


def test_gradient_scaler():
    x = torch.ones(3, device="tpu", requires_grad=True)
    scaler, optimizer = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=2), torch.optim.SGD([x], lr=0.1)
    for factor in (1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((x * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(x.detach().cpu(), torch.full((3,), 0.8))
    assert scaler.get_scale() == 4.0
