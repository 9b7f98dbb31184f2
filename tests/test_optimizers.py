"""Every optimizer of torch.optim in its loop, foreach and fused forms, schedulers, clipping and GradScaler, against the CPU."""

import copy
import inspect

import pytest
import torch
from torch import nn

OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
OPTIONS = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.01}, {"maximize": True}],
    "AdamW": [{}, {"amsgrad": True}],
    "RMSprop": [{}, {"momentum": 0.5, "centered": True}],
    "Rprop": [{}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.01}],
}
FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}
NOT_DENSE = {"SparseAdam"}  # tests/ops/test_sparse.py


def train(device, make, steps=4, closure=False):
    """Parameters after some steps of a small network; in float64 with a closure, whose searches would magnify rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = torch.randn(8, 5), torch.randn(8, 2)
    dtype = torch.float64 if closure else torch.float32
    model, x, y = model.to(device, dtype), x.to(device, dtype), y.to(device, dtype)
    optimizer = make(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        if closure:
            optimizer.step(step)
        else:
            step()
            optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def check(make, **options):
    with torch.tpu.precision("highest"):
        torch.testing.assert_close(train("tpu", make, **options), train("cpu", make, **options), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - NOT_DENSE))
def test_optimizer(name, form):
    kind = OPTIMIZERS[name]
    parameters = inspect.signature(kind).parameters
    if form == "fused" and name not in FUSED:
        assert name not in ("SGD", "Adam", "AdamW", "Adagrad")
        return
    if form != "loop" and form not in parameters:
        return  # torch has no such form of it
    form_options = {form: True} if form != "loop" else {"foreach": False} if "foreach" in parameters else {}
    for options in OPTIONS.get(name, [{}]):
        if name == "Muon":  # for matrices alone

            def make(parameters, options=options):
                return kind([p for p in parameters if p.dim() == 2], lr=0.01, **options)
        else:

            def make(parameters, options=options):
                return kind(parameters, lr=0.01, **options, **form_options)

        check(make, closure=name == "LBFGS")


def test_sharing_of_state_between_devices():
    """A state saved on one device is loaded on another and goes on there."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    reference = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    reference.step()
    other = nn.Linear(3, 2).to("tpu")
    other.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(other.parameters())
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))  # torch shares the step counter
    assert optimizer.state[other.weight]["exp_avg"].device.type == "tpu"
    for m, o, x in ((model, reference, torch.ones(1, 3)), (other, optimizer, torch.ones(1, 3, device="tpu"))):
        o.zero_grad()
        m(x).sum().backward()
        o.step()
    torch.testing.assert_close(other.weight.detach().cpu(), model.weight.detach())


def test_schedulers_and_clipping():
    def make_run(device):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        average = torch.optim.swa_utils.AveragedModel(model)
        norms = []
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=device)).pow(2).sum().backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).cpu())
            nn.utils.clip_grad_value_(model.parameters(), 0.2)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
        return norms, [p.detach().cpu() for p in (*model.parameters(), *average.parameters())]

    with torch.tpu.precision("highest"):
        torch.testing.assert_close(make_run("tpu"), make_run("cpu"))


def test_new_learning_rates_compile_nothing():
    model = nn.Linear(4, 3).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    compiles = []
    for i in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (i + 1)
        optimizer.zero_grad()
        model(torch.ones(2, 4, device="tpu")).sum().backward()
        optimizer.step()
        compiles.append(torch.tpu.counters()["compiles"])
    assert compiles[-1] == compiles[2]


def test_grad_scaler():
    model = nn.Linear(4, 3).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0, growth_interval=2)
    before = model.weight.detach().clone()
    with torch.autocast("tpu", dtype=torch.float16):
        loss = model(torch.ones(2, 4, device="tpu")).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.testing.assert_close(model.weight.grad.cpu(), torch.full((3, 4), 2.0))
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)
    # An infinite gradient skips the step and halves the scale.
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    scaler.scale(model(torch.full((2, 4), float("inf"), device="tpu")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model.weight) and scaler.get_scale() == 512.0
