"""torch.compile in a second process: graphs come from AOTAutograd's cache, programs from the compile cache."""

import json
import pathlib
import shutil

import pytest
import torch
from helpers import output_of

# A forward and backward graph, an inference graph and a whole training step; prints values and counters.
PROGRAM = """
import json, sys
import torch
from torch import nn
from torch.nn import functional as F

wish = json.loads(sys.argv[1])
torch.set_float32_matmul_precision(wish["precision"])
torch.manual_seed(0)
compiled = lambda function: torch.compile(function, backend="tpu", options=wish["options"])
draw = lambda *sizes: torch.randn(sizes).to("tpu")
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
x, y = draw(5, 6), draw(5, 3)

values = [compiled(lambda x: (x @ x.t() * wish["factor"]).relu().sum(-1))(x)]
loss = F.mse_loss(compiled(model)(x), y)
values += [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

@compiled
def step(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()

values += [step(x, y) for _ in range(3)] + [parameter.detach() for parameter in model.parameters()]
values = [value.cpu().tolist() for value in values]
counts = dict(torch._dynamo.utils.counters["aot_autograd"]), torch.tpu.counters()
found = {name: counts[0].get("autograd_cache_" + name, 0) for name in ("hit", "miss", "bypass", "saved")}
found |= {name: counts[1][name] for name in ("compiles", "disk_hits")}
print(json.dumps([values, found]))
"""


def run(folder: pathlib.Path, precision="highest", options=None, factor=2.0):
    """Values and counters of a process with its caches in a folder."""
    wish = json.dumps({"precision": precision, "options": options or {}, "factor": factor})
    code = f"import sys\nsys.argv = ['-', {wish!r}]\n{PROGRAM}"
    caches = {"TORCH_TPU_CACHE_DIR": str(folder / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "graphs")}
    return json.loads(output_of(code, TORCHINDUCTOR_AUTOGRAD_CACHE="", **caches).splitlines()[-1])


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder, values and counters of the first process."""
    folder = tmp_path_factory.mktemp("caches")
    return folder, *run(folder)


@pytest.fixture
def folder(first, tmp_path):
    """A copy of the folder that the first process filled."""
    shutil.copytree(first[0], tmp_path / "caches")
    return tmp_path / "caches"


def test_the_first_process_keeps_what_it_compiled(first):
    _, _, found = first
    # The step is one graph from the first call on.
    assert (found["hit"], found["miss"], found["bypass"], found["saved"]) == (0, 3, 0, 3)
    assert found["disk_hits"] == 0 and found["compiles"] > 0


def test_a_second_process_compiles_nothing(first, folder):
    values, found = run(folder)
    assert values == first[1]
    assert (found["hit"], found["miss"], found["bypass"], found["compiles"]) == (3, 0, 0, 0)
    assert found["disk_hits"] == first[2]["compiles"]


def test_another_graph_misses(folder):
    values, found = run(folder, factor=3.0)
    assert (found["hit"], found["miss"]) == (2, 1)
    assert found["compiles"] == 1
    generator = torch.manual_seed(0)
    torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 6, generator=generator)
    torch.testing.assert_close(torch.tensor(values[0]), (x @ x.t() * 3.0).relu().sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("changed", "value"), [("precision", "high"), ("options", {"fast_math": True})])
def test_another_precision_or_option_misses(folder, changed, value):
    _, found = run(folder, **{changed: value})
    assert (found["hit"], found["miss"], found["saved"]) == (0, 3, 3)
    assert found["compiles"] > 0


def damage(path: pathlib.Path, way: str) -> None:
    content = path.read_bytes()
    if way == "cut short":
        path.write_bytes(content[: len(content) // 2])
    elif way == "another thing":
        path.write_bytes(b"\x80\x04N.")  # None, pickled
    else:  # of another torch_tpu, whose class is gone
        path.write_bytes(content.replace(b"CompiledCode", b"CompiledCods"))


@pytest.mark.parametrize("way", ["cut short", "another thing", "a class that is not there"])
def test_damaged_entries_are_compiled_anew(first, folder, way):
    entries = [path for path in (folder / "graphs" / "aotautograd").rglob("*") if path.is_file()]
    assert len(entries) == 3
    for path in entries:
        damage(path, way)
    values, found = run(folder)
    assert values == first[1]
    assert found["hit"] == 0 and found["compiles"] == 0  # the programs are found


EFFECTS = """
import torch
function = torch.compile(lambda x: torch.linalg.inv(x * 0) + torch.linalg.eigvals(x).real.sum(), backend="tpu")
torch.tpu.fallback = "allow"
try:
    function(torch.eye(3, device="tpu")).cpu()
except torch.linalg.LinAlgError:
    print("singular", torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])
function = torch.compile(lambda x: torch.linalg.eigvals(x).real.sum() * 2, backend="tpu")
print(function(torch.eye(3, device="tpu")).item(), torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_graphs_that_need_the_host(tmp_path):
    """Effects in a fixed order are not kept; what runs between programs is."""
    caches = {"TORCH_TPU_CACHE_DIR": "off", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_AUTOGRAD_CACHE": ""}
    assert output_of(EFFECTS, **caches).split() == ["singular", "0", "6.0", "0"]
    assert output_of(EFFECTS, **caches).split() == ["singular", "0", "6.0", "1"]
