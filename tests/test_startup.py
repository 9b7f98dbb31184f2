"""Start-up in processes of its own: autoload, plugins, environment variables, forks, several devices; and the tools."""

import json
import os

import torch
from helpers import output_of, run_python

# --- processes of their own ------------------------------------------------------------------------------------------------


def test_import_torch_is_enough_and_starts_nothing():
    code = """
import sys, torch
assert "torch_tpu" in sys.modules
assert torch.device("tpu:3").index == 3 and torch.tpu.is_available() and torch.tpu.device_count() == 1
assert torch.accelerator.current_accelerator().type == "tpu"
torch.manual_seed(0)
assert not torch.tpu.is_initialized()
with open("/proc/self/maps") as maps:
    assert "pjrt" not in maps.read().lower()
x = torch.ones(2, device="tpu")
assert torch.tpu.is_initialized()
"""
    result = run_python("-c", code, TORCH_TPU_VIRTUAL_DEVICES="")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_autoload_can_be_declined():
    code = """
import sys, torch
print("torch_tpu" in sys.modules, hasattr(torch, "tpu"))
import torch_tpu
print(torch.ones(2, device="tpu").sum().item())
"""
    assert output_of(code, TORCH_TPU_AUTOLOAD="0") == "False False\n2.0"
    code = "import torch_tpu, torch; print(torch.ones(2, device='tpu').sum().item())"
    assert output_of(code) == "2.0"  # the package before torch


def test_four_virtual_devices():
    code = """
import torch
import torch_tpu
assert torch.tpu.device_count() == 4 and not torch.tpu.is_initialized()
x = torch.arange(6.0).view(2, 3)
a = x.to("tpu:3")
assert a.device == torch.device("tpu:3") and (a * 2).device.index == 3
b = a.to("tpu:1")
assert torch.equal(b.cpu(), x) and b.device.index == 1
c = a.t().to("tpu:2", torch.float64, non_blocking=True)
assert torch.equal(c.cpu(), x.t().double())
b.copy_(a[0])
assert torch.equal(b.cpu(), x[:1].expand(2, 3))
with torch.tpu.device(2):
    assert torch.ones(1, device="tpu").device.index == 2 and torch.tpu.current_stream().device_index == 2
assert torch.tpu.current_device() == 0
assert torch.tpu.can_device_access_peer(0, 3)
try:
    a + b
except RuntimeError as error:
    assert "Expected all tensors to be on the same device, but found at least two devices, tpu:3 and tpu:1" in str(error), error
else:
    raise AssertionError("two devices in one add")
assert torch.tpu.memory_allocated(3) > 0
torch.manual_seed(1)
assert [g.initial_seed() for g in torch.tpu.default_generators] == [1] * 4
weight = torch.ones(3, device="tpu:3", requires_grad=True)
(weight * torch.ones(3, device="tpu:3")).sum().backward()
assert weight.grad.device.index == 3
model = torch.nn.Linear(3, 2).to("tpu:1")
assert model(a.to("tpu:1")).device.index == 1
print("ok")
"""
    assert output_of(code, TORCH_TPU_VIRTUAL_DEVICES="4") == "ok"


def test_a_forked_child_is_told_to_spawn():
    code = """
import os, torch
assert not torch.tpu._is_in_bad_fork()
torch.ones(1, device="tpu").item()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    texts = [str(torch.tpu._is_in_bad_fork()), str(torch.tpu.is_initialized())]
    for use in (torch.tpu.init, lambda: torch.ones(1, device="tpu"), torch.tpu.synchronize):
        try:
            use()
            texts.append("no error")
        except RuntimeError as error:
            texts.append(str(error).splitlines()[0])
    os.write(write, "|".join(texts).encode())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(os.read(read, 10000).decode())
assert torch.ones(1, device="tpu").item() == 1
"""
    bad_fork, initialized, *errors = output_of(code).split("|")
    assert (bad_fork, initialized) == ("True", "False")
    for error in errors:
        assert "Cannot re-initialize TPU in forked subprocess" in error and "spawn" in error


def test_a_child_forked_before_the_start_may_use_the_device():
    code = """
import os, torch
torch.tpu.device_count()
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.ones(3, device="tpu").sum().item() == 3 else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert output_of(code) == ""


FIRST_TENSOR = """
import torch
import torch_tpu
try:
    torch.ones(1, device="tpu")
except {} as error:
    print(error)
"""


def test_a_wrong_plugin_path_names_every_place():
    code = FIRST_TENSOR.format("RuntimeError")
    text = output_of(code, TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so")
    assert "TORCH_TPU_PJRT_PLUGIN" in text and "/nowhere/plugin.so" in text and "No such file" in text
    # A library that is no plugin.
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    text = output_of(code, TORCH_TPU_PJRT_PLUGIN=library)
    assert library in text and "GetPjrtApi" in text


def test_wrong_environment_values_are_named():
    code = FIRST_TENSOR.format("ValueError")
    assert "TORCH_TPU_VIRTUAL_DEVICES" in output_of(code, TORCH_TPU_VIRTUAL_DEVICES="many")
    assert "TORCH_TPU_FALLBACK" in output_of(code, TORCH_TPU_FALLBACK="maybe")


def test_plugin_from_the_environment():
    info = json.loads(run_python("-m", "torch_tpu", "info", "--json").stdout)
    code = "import torch, json; from torch_tpu import _C; torch.tpu.init(); print(json.loads(_C._info())['plugin'])"
    assert output_of(code, TORCH_TPU_PJRT_PLUGIN=info["plugin"]) == info["plugin"]


# --- tools -----------------------------------------------------------------------------------------------------------------


def test_info():
    result = run_python("-m", "torch_tpu", "info")
    assert result.returncode == 0, result.stderr
    name = torch.tpu.get_device_name()
    assert name != "cpu"
    for text in ("torch_tpu ", "plugin: ", "PJRT C API", f"tpu:0  {name}, plugin ", "looked for a plugin in:", "environment:"):
        assert text in result.stdout
    info = json.loads(run_python("-m", "torch_tpu", "info", "--json").stdout)
    assert info["error"] in (None, "") and os.path.exists(info["plugin"]) and len(info["devices"]) >= 1 and info["probes"]
    broken = run_python("-m", "torch_tpu", "info", TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so")
    assert broken.returncode == 1 and "/nowhere/plugin.so" in broken.stdout


def test_the_table_names_only_ops_that_torch_has():
    result = run_python("-c", "import torch_tpu", TORCH_CPP_LOG_LEVEL="WARNING")
    assert result.returncode == 0 and "the table of ops names" not in result.stderr, result.stderr


def test_ops_list():
    result = run_python("-m", "torch_tpu", "ops", "--json")
    assert result.returncode == 0, result.stderr
    ops = json.loads(result.stdout)
    assert set(ops.values()) <= {"lowered", "composite", "decomposed", "CPU", "none"}
    assert ops["aten::add.Tensor"] == ops["aten::add.out"] == ops["aten::add_.Tensor"] == "lowered"
    assert ops["aten::reshape"] == "composite"
    assert ops["aten::_linalg_eigvals"] == "CPU"
    assert len(ops) > 2500
    text = run_python("-m", "torch_tpu", "ops").stdout
    assert len(text.splitlines()) == len(ops)
