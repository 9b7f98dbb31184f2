"""The device module: devices, streams, events, memory statistics, random state, start-up in processes of its own, tools."""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch

import torch_tpu


def run_python(code: str, *, args=("-c",), **env: str) -> subprocess.CompletedProcess:
    """Runs a program in a fresh Python process; an environment variable set to "" is removed."""
    environment = {key: value for key, value in {**os.environ, **env}.items() if value}
    return subprocess.run(
        [sys.executable, *args, *([code] if code else [])], env=environment, capture_output=True, text=True, timeout=120
    )


def output_of(code: str, **env: str) -> str:
    result = run_python(code, **env)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# --- devices ---------------------------------------------------------------------------------------------------------------


def test_programs_may_be_forgotten_at_any_time():
    """Code takes memory mappings, of which a process has only so many: then all programs go, in the midst of calls."""
    x = torch.randn(64, device="tpu")
    expected = (x.cpu() * 2 + 1).sum()
    failures, stop = [], threading.Event()

    def work():
        while not stop.is_set():
            if not torch.allclose((x * 2 + 1).sum().cpu(), expected):
                failures.append("a wrong sum")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        torch_tpu._C._forget_programs()
        y = torch.ones(3, device="tpu")
        y.add_(1)
        assert y.tolist() == [2, 2, 2]
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.device_count() == torch.tpu.device_count() >= 1
    assert torch.tpu.is_available()
    torch.ones(1, device="tpu")
    assert torch.tpu.is_initialized()


def test_set_device():
    torch.tpu.set_device(0)
    torch.tpu.set_device("tpu:0")
    torch.tpu.set_device(torch.device("tpu"))
    torch.tpu.set_device(-1)  # nothing, as for CUDA
    assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.tpu.set_device(99)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="tpu:99")
    with pytest.raises(ValueError, match="Expected a tpu device, but got: cpu"):
        torch.tpu.set_device("cpu")
    assert torch.tpu.current_device() == 0


def test_device_contexts():
    x = torch.ones(1, device="tpu")
    for context in (torch.tpu.device(0), torch.tpu.device("tpu"), torch.tpu.device(None), torch.tpu.device(-1)):
        with context:
            assert torch.tpu.current_device() == 0
    with torch.tpu.device_of(x), torch.tpu.device_of(x.cpu()):
        assert torch.tpu.current_device() == 0
    with torch.device("tpu"):
        assert torch.zeros(2).device == torch.device("tpu:0")


def test_properties():
    properties = torch.tpu.get_device_properties()
    assert properties == torch.tpu.get_device_properties("tpu:0")
    assert properties.name == torch.tpu.get_device_name()
    assert properties.total_memory == torch.tpu.mem_get_info()[1] > 0
    assert properties.multi_processor_count == 1
    assert torch.tpu.get_device_capability() == (properties.generation, 0)
    assert not torch.tpu.can_device_access_peer(0, 0)


def test_capability_lists_the_dtypes_of_a_tpu():
    dtypes = torch.accelerator.get_device_capability("tpu")["supported_dtypes"]
    assert {torch.bool, torch.uint64, torch.bfloat16, torch.float8_e8m0fnu, torch.complex128} <= dtypes
    assert not {torch.complex32, torch.qint8, torch.bits8} & dtypes


def test_methods_and_names():
    x = torch.ones(2)
    assert x.tpu().is_tpu and not x.is_tpu
    assert x.tpu().type() == "torch.tpu.FloatTensor"
    assert torch.nn.Linear(2, 2).tpu().weight.device.type == "tpu"
    assert x.untyped_storage().tpu().is_tpu
    assert torch.ones(2).type("torch.tpu.FloatTensor").is_tpu
    assert str(torch.device("tpu:3")) == "tpu:3"
    assert x.tpu().get_device() == 0
    assert torch.tpu.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16


def test_exports():
    for name in torch.tpu.__all__:
        assert getattr(torch.tpu, name) is not None, name


def test_names_of_the_torchtpu_interface():
    names = """is_available device_count current_device set_device synchronize current_stream set_stream device initial_seed
    get_rng_state device_of is_initialized get_device_name get_device_properties get_amp_supported_dtype manual_seed
    manual_seed_all set_rng_state default_generators Stream Event stream default_stream EagerMode eager_mode set_eager_mode
    Precision precision allow_excess_precision"""
    for name in names.split():
        assert hasattr(torch.tpu, name), name
    assert torch.tpu.allow_excess_precision is False
    torch.tpu.allow_excess_precision = True
    assert torch.tpu.allow_excess_precision is True
    torch.tpu.allow_excess_precision = False
    with pytest.raises(TypeError, match="must be a bool"):
        torch.tpu.allow_excess_precision = 1


# --- streams and events ----------------------------------------------------------------------------------------------------


def heavy_work() -> torch.Tensor:
    """Tens of milliseconds of work."""
    x = torch.ones(1024, 1024, device="tpu")
    for _ in range(4):
        x = x @ x
        x = x / x.amax()
    return x


def test_streams():
    default = torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default
    stream = torch.tpu.Stream()
    assert isinstance(stream, torch.Stream) and stream != default
    with torch.tpu.stream(stream) as entered:
        assert entered == stream
        assert torch.tpu.current_stream() == torch.accelerator.current_stream() == stream
        x = torch.ones(3, device="tpu") + 1
    assert torch.tpu.current_stream() == default
    stream.wait_stream(default)
    stream.synchronize()
    assert stream.query()
    assert x.tolist() == [2, 2, 2]
    with torch.tpu.stream(None):
        assert torch.tpu.current_stream() == default
    x.record_stream(stream)
    assert torch.tpu.Stream.priority_range() == (0, 0)
    with pytest.raises(ValueError, match="pinned must be"):
        torch.tpu.Stream(pinned="somewhere")


def test_current_stream_belongs_to_a_thread():
    stream = torch.tpu.Stream()
    seen = []
    with torch.tpu.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream()]


def test_query_tells_the_truth():
    heavy_work()
    torch.tpu.synchronize()
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    assert start.query()  # never recorded: nothing to wait for
    start.record()
    heavy_work()
    end.record()
    answers = [end.query()]
    end.synchronize()
    answers.append(end.query())
    # If the work was still running at the first question, the answer was no; afterwards it is yes.
    assert answers[1] and torch.tpu.current_stream().query()
    assert start.elapsed_time(end) > 1.0
    assert not answers[0]


def test_elapsed_time_wants_timing_and_records():
    timed = torch.tpu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.tpu.Event().elapsed_time(torch.tpu.Event())
    with pytest.raises((ValueError, RuntimeError), match="must be recorded before"):
        timed.elapsed_time(torch.tpu.Event(enable_timing=True))
    with pytest.raises(NotImplementedError):
        torch.tpu.Event(interprocess=True)
    assert isinstance(timed, torch.tpu.Event) and not isinstance(torch.tpu.Stream(), torch.tpu.Event)


def test_event_wait_and_reuse():
    event = torch.tpu.Event()
    stream = torch.tpu.Stream()
    for _ in range(3):
        x = torch.ones(4, device="tpu") * 2
        event.record(torch.tpu.current_stream())
        event.wait(stream)
        stream.wait_event(event)
        event.synchronize()
        assert event.query()
    assert x.sum().item() == 8


# --- memory ----------------------------------------------------------------------------------------------------------------


def test_memory_statistics():
    torch.ones(1 << 18, device="tpu")  # leaves the number 1 on the device
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18, device="tpu")
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before + (1 << 20)
    assert torch.tpu.max_memory_allocated() >= before + (1 << 20)
    stats = torch.tpu.memory_stats()
    for key in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment", "active"):
        for number in ("current", "peak", "allocated", "freed"):
            assert f"{key}.all.{number}" in stats
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated() == torch.accelerator.memory.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == torch.tpu.max_memory_allocated() == torch.tpu.max_memory_reserved()
    assert torch.tpu.memory_reserved() == torch.accelerator.memory.memory_reserved()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total - (1 << 20)
    assert (free, total) == torch.accelerator.memory.get_memory_info()

    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() >= before + (1 << 20)
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated()
    torch.tpu.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocated_bytes.all.freed"] == 0
    assert str(torch.tpu.memory_allocated()) in torch.tpu.memory_summary().replace(",", "")


def test_memory_of_a_loop_is_flat():
    x = torch.ones(1000, device="tpu")
    for i in range(20):
        if i == 5:
            torch.tpu.synchronize()
            before = torch.tpu.memory_allocated()
        x.add_(1)
        (x[1:] * 2).sum()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before


# --- random state ----------------------------------------------------------------------------------------------------------


def test_random_state():
    torch.manual_seed(5)
    assert torch.tpu.initial_seed() == 5
    state = torch.tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    x = torch.rand(4, device="tpu")
    assert not torch.equal(state, torch.tpu.get_rng_state())
    torch.tpu.set_rng_state(state)
    assert torch.equal(x, torch.rand(4, device="tpu"))
    torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    torch.tpu.manual_seed(7)
    assert torch.tpu.initial_seed() == torch.tpu.default_generators[0].initial_seed() == 7
    torch.tpu.seed_all()
    first = torch.tpu.initial_seed()
    torch.tpu.seed()
    assert torch.tpu.initial_seed() != first
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.rand(2, device="tpu")
        inside = torch.tpu.get_rng_state()
    assert not torch.equal(inside, torch.tpu.get_rng_state())
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_generator():
    generator = torch.Generator("tpu").manual_seed(3)
    assert generator.device == torch.device("tpu:0")
    x = torch.randn(5, device="tpu", generator=generator)
    clone = generator.clone_state()
    y = torch.randn(5, device="tpu", generator=generator)
    assert torch.equal(y, torch.randn(5, device="tpu", generator=clone))
    assert torch.equal(x, torch.randn(5, device="tpu", generator=torch.Generator("tpu").manual_seed(3)))
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.randn(5, device="tpu", generator=torch.Generator())


# --- modes, counters -------------------------------------------------------------------------------------------------------


def test_eager_modes():
    modes = torch.tpu.EagerMode
    assert torch.tpu.eager_mode == modes.DEFER_NEVER
    with torch.tpu.set_eager_mode(modes.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        assert torch.tpu.eager_mode == modes.DEFER_NEVER_AND_LAUNCH_BLOCKING
        x = torch.ones(3, device="tpu") + 1
        assert torch.tpu.current_stream().query()
    assert torch.tpu.eager_mode == modes.DEFER_NEVER
    assert x.tolist() == [2, 2, 2]
    with torch.tpu.set_eager_mode(modes.DEFER_AND_FUSE):
        y = x + 1
        assert not torch.tpu.current_stream().query()  # it was still to run; asking starts it
    assert y.tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="EagerMode"):
        torch.tpu.set_eager_mode("fast")
    assert torch.tpu.eager_mode == modes.DEFER_NEVER
    code = "import torch; print(torch.tpu.eager_mode.name)"
    assert output_of(code, TORCH_TPU_LAUNCH_BLOCKING="1") == "DEFER_NEVER_AND_LAUNCH_BLOCKING"
    assert output_of(code, TORCH_TPU_DEFER_AND_FUSE="1") == "DEFER_AND_FUSE"


def test_counters():
    x = torch.ones(5, 7, device="tpu")
    (x * 3).add_(1)
    torch.tpu.synchronize()
    torch.tpu.reset_counters()
    assert set(torch.tpu.counters()) == {
        "compiles", "cache_hits", "disk_hits", "remote_hits", "plan_hits", "graph_hits", "executions", "fallbacks",
        "host_waits", "bytes_to_device", "bytes_from_device",
    }  # fmt: skip
    (x * 3).add_(1)
    counters = torch.tpu.counters()
    assert counters["compiles"] == counters["cache_hits"] == counters["host_waits"] == 0
    assert counters["executions"] == counters["plan_hits"] == 2
    assert counters["fallbacks"] == {}
    x.cpu()
    torch.ones(3).to("tpu")
    counters = torch.tpu.counters()
    assert counters["bytes_from_device"] == 140 and counters["bytes_to_device"] == 12
    torch.tpu.synchronize()
    assert torch.tpu.counters()["host_waits"] > counters["host_waits"]


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
    result = run_python(code, TORCH_TPU_VIRTUAL_DEVICES="")
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


def test_a_wrong_plugin_path_names_every_place():
    code = """
import torch
import torch_tpu
try:
    torch.ones(1, device="tpu")
except RuntimeError as error:
    print(error)
"""
    text = output_of(code, TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so")
    assert "TORCH_TPU_PJRT_PLUGIN" in text and "/nowhere/plugin.so" in text and "No such file" in text
    # A library that is no plugin.
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    text = output_of(code, TORCH_TPU_PJRT_PLUGIN=library)
    assert library in text and "GetPjrtApi" in text


def test_wrong_environment_values_are_named():
    code = """
import torch
import torch_tpu
try:
    torch.ones(1, device="tpu")
except ValueError as error:
    print(error)
"""
    assert "TORCH_TPU_VIRTUAL_DEVICES" in output_of(code, TORCH_TPU_VIRTUAL_DEVICES="many")
    assert "TORCH_TPU_FALLBACK" in output_of(code, TORCH_TPU_FALLBACK="maybe")


def test_plugin_from_the_environment():
    info = json.loads(run_python("", args=("-m", "torch_tpu", "info", "--json")).stdout)
    code = "import torch, json; from torch_tpu import _C; torch.tpu.init(); print(json.loads(_C._info())['plugin'])"
    assert output_of(code, TORCH_TPU_PJRT_PLUGIN=info["plugin"]) == info["plugin"]


# --- tools -----------------------------------------------------------------------------------------------------------------


def test_info():
    result = run_python("", args=("-m", "torch_tpu", "info"))
    assert result.returncode == 0, result.stderr
    name = torch.tpu.get_device_name()
    assert name != "cpu"
    for text in ("torch_tpu ", "plugin: ", "PJRT C API", f"tpu:0  {name}, plugin ", "looked for a plugin in:", "environment:"):
        assert text in result.stdout
    info = json.loads(run_python("", args=("-m", "torch_tpu", "info", "--json")).stdout)
    assert info["error"] in (None, "") and os.path.exists(info["plugin"]) and len(info["devices"]) >= 1 and info["probes"]
    broken = run_python("", args=("-m", "torch_tpu", "info"), TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so")
    assert broken.returncode == 1 and "/nowhere/plugin.so" in broken.stdout


def test_the_table_names_only_ops_that_torch_has():
    result = run_python("import torch_tpu", TORCH_CPP_LOG_LEVEL="WARNING")
    assert result.returncode == 0 and "the table of ops names" not in result.stderr, result.stderr


def test_ops_list():
    result = run_python("", args=("-m", "torch_tpu", "ops", "--json"))
    assert result.returncode == 0, result.stderr
    ops = json.loads(result.stdout)
    assert set(ops.values()) <= {"lowered", "composite", "decomposed", "CPU", "none"}
    assert ops["aten::add.Tensor"] == ops["aten::add.out"] == ops["aten::add_.Tensor"] == "lowered"
    assert ops["aten::reshape"] == "composite"
    assert ops["aten::_linalg_eigvals"] == "CPU"
    assert len(ops) > 2500
    text = run_python("", args=("-m", "torch_tpu", "ops")).stdout
    assert len(text.splitlines()) == len(ops)
