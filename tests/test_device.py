"""The device module: devices, streams, events, random state, modes, counters."""

import threading

import pytest
import torch
from helpers import output_of

import torch_tpu

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
