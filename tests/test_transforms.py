"""Forward-mode AD, torch.func, checkpointing, hooks and double backward on "tpu", against the CPU."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

WEIGHT, X = torch.randn(3, 4), torch.randn(5, 4)


pytestmark = pytest.mark.usefixtures("no_fallback", "full_float32")


def check(function, *args):
    """function(*args) with the tensors on each device."""
    actual = function(*(x.to("tpu") for x in args))
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(lambda x: x.detach().cpu(), actual),
        torch.utils._pytree.tree_map(lambda x: x.detach(), function(*args)),
        rtol=1e-3,
        atol=5e-4,
    )


def network(weight, x):
    return torch.nn.functional.layer_norm((x @ weight.t()).tanh(), (3,)).softmax(-1).log().sum(-1)


def loss(weight, x):
    return network(weight, x).pow(2).sum()


@pytest.mark.parametrize("derivative", [grad, jacrev, jacfwd, hessian])
def test_derivatives(derivative):
    check(derivative(loss), WEIGHT, X)


def test_jvp_and_vjp():
    check(lambda w, x: jvp(lambda w: network(w, x), (w,), (torch.ones_like(w),)), WEIGHT, X)
    check(lambda w, x: vjp(lambda w: network(w, x), w)[1](torch.ones_like(x[:, 0])), WEIGHT, X)


def test_vmap():
    check(lambda w, x: vmap(grad(loss), (None, 0))(w, x.unsqueeze(1)), WEIGHT, X)
    check(lambda w, x: vmap(vmap(lambda a, b: a * b + a.sum(), (0, None)), (None, 0))(x[:, 0], x[:, 1]), WEIGHT, X)
    check(lambda w, x: vmap(lambda i: x.index_select(0, i))(torch.tensor([[0, 1], [2, 3]], device=x.device)), WEIGHT, X)
    check(lambda w, x: vmap(torch.nn.functional.conv1d, (0, None))(x.reshape(5, 1, 1, 4), w[:, :3].unsqueeze(1)), WEIGHT, X)
    check(lambda w, x: vmap(torch.linalg.solve)(torch.eye(4, device=x.device).expand(5, 4, 4) * 2, x), WEIGHT, X)


def test_random_numbers_under_vmap():
    same = vmap(lambda x: x + torch.rand_like(x), randomness="same")(torch.zeros(4, 3, device="tpu"))
    assert torch.equal(same[0], same[3])
    different = vmap(lambda x: x + torch.rand_like(x), randomness="different")(torch.zeros(4, 3, device="tpu"))
    assert not torch.equal(different[0], different[3])


def test_functional_call():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))

    def per_sample(x):
        here = {name: p.detach().to(x.device) for name, p in model.named_parameters()}
        return vmap(grad(lambda p, x: functional_call(model, p, (x,)).sum()), (None, 0))(here, x)

    check(per_sample, X)


def test_forward_mode():
    def dual(w, x):
        with torch.autograd.forward_ad.dual_level():
            y = network(torch.autograd.forward_ad.make_dual(w, torch.ones_like(w)), x)
            return torch.autograd.forward_ad.unpack_dual(y).tangent

    check(dual, WEIGHT, X)


def test_double_backward():
    def penalty(w, x):
        w = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(w, x), w, create_graph=True)
        return torch.autograd.grad(gradient.pow(2).sum(), w)[0]

    check(penalty, WEIGHT, X)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    def run(w, x):
        w, x = w.detach().requires_grad_(), x.detach().requires_grad_()
        checkpoint(lambda w, x: loss(w, x), w, x, use_reentrant=reentrant).backward()
        return w.grad, x.grad

    check(run, WEIGHT, X)


def test_checkpoint_draws_the_same_numbers_again():
    x = torch.ones(100, device="tpu", requires_grad=True)
    seen = []

    def drop(x):
        y = torch.nn.functional.dropout(x, 0.5)
        seen.append(y.detach())
        return y

    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        checkpoint(drop, x, use_reentrant=False).sum().backward()
    assert torch.equal(seen[0], seen[1]) and torch.equal(x.grad, seen[0])


def test_hooks_and_anomalies():
    calls = []
    model = nn.Linear(4, 3).to("tpu")
    model.register_forward_hook(lambda module, args, output: calls.append("forward"))
    model.register_full_backward_hook(lambda module, grad_in, grad_out: calls.append("backward"))
    model.weight.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    model(X.to("tpu")).sum().backward()
    assert calls[0] == "forward" and set(calls) == {"forward", "backward", "accumulated"}
    with pytest.raises(RuntimeError, match="returned nan values"), torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(1, device="tpu", requires_grad=True)
        (x.sqrt() * 0).backward()


def test_custom_function_and_gradcheck():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    assert torch.autograd.gradcheck(Cube.apply, torch.randn(3, dtype=torch.float64, device="tpu", requires_grad=True))
    assert torch.autograd.gradgradcheck(torch.tanh, torch.randn(3, dtype=torch.float64, device="tpu", requires_grad=True))
