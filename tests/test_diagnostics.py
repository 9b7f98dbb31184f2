"""Where time goes: reports, reasons of compiles, warnings, forbidden compiles and waits, the log, the profiler, progress."""

import contextlib
import itertools
import json
import re
import sys
import threading
import warnings

import pytest
import torch
from helpers import run_python
from torch.profiler import ProfilerActivity, profile, record_function

from torch_tpu import _C
from torch_tpu.tpu import progress

MODES = torch.tpu.EagerMode


@pytest.fixture(
    params=[MODES.DEFER_NEVER, MODES.DEFER_NEVER_AND_LAUNCH_BLOCKING, MODES.DEFER_AND_FUSE], ids=lambda mode: mode.name
)
def mode(request):
    with torch.tpu.set_eager_mode(request.param):
        yield request.param


@pytest.fixture
def strict():
    with torch.tpu.set_eager_mode(MODES.DEFER_NEVER):
        yield


@pytest.fixture
def fresh():
    """No program is known."""
    torch.tpu.synchronize()
    _C._forget_programs()


def line_of(text: str) -> int:
    """The number of the only line of this file that ends in `# text`."""
    with open(__file__) as file:
        (found,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"  # {text}")]
    return found


def reasons(fn, *args) -> list[str]:
    return [event.detail for event in torch.tpu.explain(fn)(*args).compiles]


# --- reports ---------------------------------------------------------------------------------------------------------------


def test_explain(mode, fresh):
    w = torch.ones(4, 4, device="tpu")

    def step(n, *, scale):
        x = torch.ones(n, 4).to("tpu")
        y = (x @ w).relu() * scale
        return y.sum().item()  # the wait of a step

    report = torch.tpu.explain(step)(3, scale=2)
    assert report.result == 3 * 4 * 4 * 2
    assert report.programs == (1 if mode is MODES.DEFER_AND_FUSE else 4)
    assert len(report.compiles) >= 1 and all(event.detail for event in report.compiles)
    reads = [event for event in report.waits if event.name == "item"]
    assert len(reads) == 1 and reads[0].site == f"{__file__}:{line_of('the wait of a step')}"
    assert report.bytes_to_device == 3 * 4 * 4 and report.bytes_from_device == 4
    assert {event.name for event in report.transfers} == {"to the device", "from the device"}
    assert sum(report.time.values()) == pytest.approx(report.milliseconds)
    assert list(report.time) == ["fallback", "compile", "wait", "transfer", "rest"]
    again = torch.tpu.explain(step)(3, scale=2)
    assert not again.compiles and again.programs == report.programs
    text = str(report)
    assert "host wait" in text and "compile" in text and reads[0].site in text and "48 bytes to devices" in text


def test_explain_runs_what_is_pending(mode, fresh):
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    report = torch.tpu.explain(lambda: x * 2 + 1)()
    assert report.programs == (1 if mode is MODES.DEFER_AND_FUSE else 2)
    assert len(report.compiles) == report.programs
    assert report.result.tolist() == [3, 3, 3]


def test_explain_ends_when_the_call_fails(strict):
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch.tpu.explain(fail)()
    assert torch.tpu.explain(lambda: 1)().result == 1


def test_explain_names_fallbacks(strict, monkeypatch):
    monkeypatch.setattr(torch.tpu, "fallback", "allow")
    x = torch.eye(3, device="tpu")
    report = torch.tpu.explain(lambda: torch.linalg.eigvals(x))()  # a fallback
    assert [event.name for event in report.fallbacks] == ["aten::_linalg_eigvals"]
    assert report.fallbacks[0].site == f"{__file__}:{line_of('a fallback')}"
    inner = [event for event in report.transfers if event.fallback == "aten::_linalg_eigvals"]
    assert inner and report.time["transfer"] == 0  # they are the fallback's


def test_cache_hits_are_told(strict, fresh):
    x = torch.ones(5, device="tpu")
    x.add_(3)
    torch.tpu.synchronize()
    report = torch.tpu.explain(lambda: torch.add(x.view(5), 3, out=torch.empty(5, device="tpu")))()
    assert not report.compiles or not report.cache_hits  # one of both, as the texts are
    assert all(event.detail == "memory" for event in report.cache_hits)


# --- reasons ---------------------------------------------------------------------------------------------------------------


def test_reasons_of_calls(strict, fresh):
    def call(x, *args):
        return torch.roll(x, *args)

    x = torch.zeros(4, 6, device="tpu")
    assert reasons(call, x, 1, 0) == ["first call"]
    assert reasons(call, torch.zeros(4, 9, device="tpu"), 1, 0) == ["sizes of argument 1: [4, 6] before, [4, 9] now"]
    assert reasons(call, x.int(), 1, 0)[-1:] == ["dtype of argument 1: Float before, Int now"]
    assert reasons(call, x, 2, 0) == ["argument 2, which is compiled in: [1] before, [2] now"]
    (layout,) = reasons(call, torch.zeros(6, 4, device="tpu").t(), 1, 0)
    assert layout.startswith("layout of argument 1: ")
    assert reasons(call, x, 1, 0) == []


def test_precision_is_a_reason(strict, fresh):
    a = torch.ones(3, 3, device="tpu")

    def call():
        return a @ a

    call()
    with torch.tpu.precision("highest"):
        assert reasons(call) == ["matmul precision"]


def test_another_line_calls_for_the_first_time(strict, fresh):
    x, y = torch.ones(3, device="tpu"), torch.ones(4, device="tpu")
    assert reasons(lambda: x.cos()) == ["first call"]
    assert reasons(lambda: y.cos()) == ["first call"]


def test_reasons_of_graphs(fresh):
    def work(n, twice=False):
        x = torch.ones(n, device="tpu")
        y = x * 3
        z = (y + 1) * 2 if twice else y + 1
        return z.sum().item()

    def fewer_live():
        x = torch.ones(4, device="tpu")
        z = x * 3 + 1
        return z.sum().item()

    with torch.tpu.set_eager_mode(MODES.DEFER_AND_FUSE):
        assert reasons(work, 3) == ["first time"]
        (sizes,) = reasons(work, 4)
        assert re.fullmatch(r"other calls: call 1, \S+, gives Float \[3\] before, Float \[4\] now", sizes)
        (calls,) = reasons(work, 4, True)
        assert re.fullmatch(r"other calls: call 4 is mul\S*, was sum\S* \(4 calls before, 5 now\)", calls)
        assert reasons(work, 4) == []
        (live,) = reasons(fewer_live)
        assert re.fullmatch(r"other live results: \d before, \d now", live)


# --- warnings --------------------------------------------------------------------------------------------------------------


def recompilations(caught) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, torch.tpu.RecompilationWarning)]


def test_many_programs_for_a_line_warn_once(strict, fresh):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 8):
            torch.ones(n, device="tpu").sin()
        assert recompilations(caught) == []
        for n in range(1, 20):
            torch.ones(n, device="tpu").sin()  # many sizes
    sines = [w for w in caught if "aten::sin" in str(w.message)]
    assert len(sines) == 1
    assert sines[0].filename == __file__ and sines[0].lineno == line_of("many sizes")
    text = str(sines[0].message)
    assert "8 programs made for aten::sin" in text and "[8]" in text and "pad" in text


def test_layers_of_one_model_are_no_recompilations(strict, fresh):
    sizes = range(2, 16)
    model = torch.nn.Sequential(*(torch.nn.Linear(n, n + 1) for n in sizes)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model(torch.ones(3, 2, device="tpu")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert recompilations(caught) == []


def test_a_warning_may_be_an_error(strict, fresh):
    def work(n):
        return torch.ones(n, device="tpu").cosh()

    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.tpu.RecompilationWarning)
        with pytest.raises(torch.tpu.RecompilationWarning, match=r"aten::\w+"):
            for n in range(1, 30):
                work(n)
    assert work(29).tolist() == pytest.approx([torch.ones(1).cosh().item()] * 29, rel=1e-3)


# --- forbidding ------------------------------------------------------------------------------------------------------------


def test_forbid_compiles(mode, fresh):
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()

    def work():
        return (x * 5).tolist()  # the forbidden call

    with torch.tpu.forbid_compiles(), pytest.raises(RuntimeError, match=r"torch\.tpu\.forbid_compiles: ") as caught:
        work()
    assert "mul" in str(caught.value) and "first" in str(caught.value)
    assert f"test_diagnostics.py:{line_of('the forbidden call')}" in str(caught.value)
    assert work() == [5, 5, 5]
    with torch.tpu.forbid_compiles():
        assert work() == [5, 5, 5]


def test_forbid_compiles_loses_nothing(mode, fresh):
    x = torch.ones(3, device="tpu")
    y = x + 1  # deferred, or its program is on its way
    with torch.tpu.forbid_compiles(), contextlib.suppress(RuntimeError):
        x.mul_(7)
        x.sum().item()
    assert y.tolist() == [2, 2, 2]
    assert x.tolist() in ([1, 1, 1], [7, 7, 7])  # refused at the call, or deferred and done now
    assert (x.tolist() == [7, 7, 7]) == (mode is MODES.DEFER_AND_FUSE)


def test_forbid_compiles_reaches_decompositions_and_autograd(strict, fresh):
    x = torch.ones(3, 3, device="tpu", requires_grad=True)
    with torch.tpu.forbid_compiles(), pytest.raises(RuntimeError, match="forbid_compiles"):
        torch.nn.functional.multilabel_margin_loss(x, torch.zeros(3, 3, dtype=torch.int64).to("tpu"))
    loss = (x.exp() * 2).sum()
    torch.tpu.synchronize()
    with torch.tpu.forbid_compiles(), pytest.raises(RuntimeError, match="forbid_compiles"):
        loss.backward()


def test_forbid_waits(mode):
    x = torch.arange(3.0, device="tpu")
    torch.tpu.synchronize()
    for wait, name in [
        (lambda: x[1].item(), "item"),
        (lambda: x.cpu(), "copy to the host"),
        (lambda: repr(x), "makes the host wait"),
        (lambda: bool(x.sum() > 1), "item"),
        (lambda: x.nonzero(), "copy to the host"),
        (lambda: torch.tpu.synchronize(), "synchronize"),
    ]:
        with torch.tpu.forbid_waits(), pytest.raises(RuntimeError, match=f"torch.tpu.forbid_waits: .*{name}") as caught:
            wait()
        assert "test_diagnostics.py:" in str(caught.value)
        wait()
    with torch.tpu.forbid_waits():
        y = x * 2
    assert y.tolist() == [0, 2, 4]


def test_forbidding_decorates_and_nests():
    x = torch.ones(2, device="tpu")

    @torch.tpu.forbid_waits()
    def read():
        return x.tolist()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="forbid_waits"):
            read()
    with torch.tpu.forbid_waits():
        with torch.tpu.forbid_waits():
            pass
        with pytest.raises(RuntimeError, match="forbid_waits"):
            x.tolist()
    assert x.tolist() == [1, 1]


def test_forbidding_is_of_the_process():
    x, failures = torch.ones(2, device="tpu"), []

    def read():
        try:
            x.tolist()
        except RuntimeError as e:
            failures.append(str(e))

    with torch.tpu.forbid_waits():
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert len(failures) == 1 and "forbid_waits" in failures[0]


def test_forbidden_waits_of_a_fallback_name_its_op(strict, monkeypatch):
    monkeypatch.setattr(torch.tpu, "fallback", "allow")
    x = torch.eye(3, device="tpu")
    with torch.tpu.forbid_waits(), pytest.raises(RuntimeError, match=r"for aten::_linalg_eigvals, which runs on the CPU"):
        torch.linalg.eigvals(x)


# --- the log ---------------------------------------------------------------------------------------------------------------


def test_log(strict, fresh, capfd):
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.set_log("compile,wait")
    try:
        x.tan().cpu()  # logged
    finally:
        torch.tpu.set_log(None)
    x.sinh().cpu()
    lines = capfd.readouterr().err.splitlines()
    here = re.escape(f"torch_tpu {__file__}:{line_of('logged')}: ")
    number = r"\d+\.\d{3} ms, "
    assert [
        line for line in lines if re.fullmatch(here + "compile: " + number + r"aten::tan\S*\(Float \[3\].*\): first call", line)
    ]
    assert [line for line in lines if re.fullmatch(here + "wait: " + number + "copy to the host", line)]
    assert len(lines) == 2
    with pytest.raises(ValueError, match='"wiat" is none of compile'):
        torch.tpu.set_log(["compile", "wiat"])


def test_log_by_environment():
    code = "import torch; x = torch.ones(2, device='tpu'); x.tolist()"
    result = run_python("-c", code, TORCH_TPU_LOG="transfer")
    assert result.returncode == 0 and "from the device, 8 bytes" in result.stderr
    assert "compile" not in result.stderr
    result = run_python("-c", code, TORCH_TPU_LOG="transfers")
    assert result.returncode != 0 and "TORCH_TPU_LOG" in result.stderr and "none of compile" in result.stderr


# --- the profiler ----------------------------------------------------------------------------------------------------------


def test_profiler(mode, fresh, tmp_path):
    x = torch.ones(8, 8)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof, record_function("my block"):
        y = (x.to("tpu") @ x.to("tpu")).relu()
        assert y.sum().item() == 8 * 64
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    with open(tmp_path / "trace.json") as file:
        events = json.load(file)["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    kinds = {name: [e for e in complete if e.get("cat") == name] for name in ("kernel", "gpu_memcpy", "privateuse1_runtime")}
    assert len(kinds["kernel"]) == (1 if mode is MODES.DEFER_AND_FUSE else 3)
    assert {e["name"] for e in kinds["gpu_memcpy"]} == {"transfer to the device", "transfer from the device"}
    host = [e["name"] for e in kinds["privateuse1_runtime"]]
    assert "wait item" in host and any(name.startswith("compile ") for name in host)
    compiles = [e for e in kinds["privateuse1_runtime"] if e["name"].startswith("compile ")]
    assert all(e["args"]["detail"] for e in compiles)
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert {names[e["pid"]] for e in kinds["kernel"] + kinds["gpu_memcpy"]} == {"tpu:0"}
    device = sorted(kinds["kernel"], key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in itertools.pairwise(device))  # one after the other
    (block,) = [e for e in complete if e["name"] == "my block" and e.get("cat") == "user_annotation"]
    assert all(block["ts"] <= e["ts"] for e in kinds["kernel"])
    rows = prof.key_averages()
    assert sum(row.self_device_time_total for row in rows) > 0
    assert "TPU total" in rows.table()


def test_profiler_again_and_without_the_device(strict):
    x = torch.ones(4, device="tpu")
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
            (x + 1).tolist()
        assert sum(event.name == "wait copy to the host" for event in prof.events()) == 1
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        (x + 1).tolist()
    assert not [event for event in prof.events() if event.name == "transfer from the device"]


# --- long compiles ---------------------------------------------------------------------------------------------------------


class Stream:
    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return self.terminal


def report_two(monkeypatch, terminal):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    progress.report(1, "aten::mm(Float [2, 2])", 2.0, False)
    progress.report(2, "aten::sin(Float [2])", 2.0, False)
    progress.report(1, "aten::mm(Float [2, 2])", 3.0, False)
    progress.report(2, "aten::sin(Float [2])", 3.5, True)
    progress.report(1, "aten::mm(Float [2, 2])", 4.25, True)
    assert not progress._bars and not progress._told
    return stream.text


PLAIN = """\
torch_tpu: compiling aten::mm(Float [2, 2]) for 2 s so far
torch_tpu: compiling aten::sin(Float [2]) for 2 s so far
torch_tpu: compiled aten::sin(Float [2]) in 3.5 s
torch_tpu: compiled aten::mm(Float [2, 2]) in 4.2 s
"""


def test_progress_in_a_log(monkeypatch):
    assert report_two(monkeypatch, terminal=False) == PLAIN


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert report_two(monkeypatch, terminal=True) == PLAIN


def test_progress_on_a_terminal(monkeypatch):
    pytest.importorskip("tqdm")
    text = report_two(monkeypatch, terminal=True)
    assert "compiling aten::mm(Float [2, 2]): 3 s" in text and "torch_tpu:" not in text


SLOW = """
import sys, torch
from torch_tpu import _C
from torch_tpu.tpu import progress
_C._set_progress_callback(progress.report, 0)
def work():
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        x = torch.ones(64, 64, device="tpu")
        for i in range(300):
            x = (x @ x).softmax(-1) + i
        return x.sum().item()
"""


def test_progress_of_a_compile():
    result = run_python("-c", SLOW + "work()")
    assert result.returncode == 0, result.stderr
    assert "torch_tpu: compiling graph of" in result.stderr and "torch_tpu: compiled graph of" in result.stderr
    assert run_python("-c", SLOW + "work()", TORCH_TPU_PROGRESS="0").stderr == ""


INTERRUPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
sent = []
def interrupt(*args):
    if not sent:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGINT)
_C._set_progress_callback(interrupt, 0)
try:
    work()
    for _ in range(10**9): pass  # the interpreter notices here at the latest
except KeyboardInterrupt:
    print("interrupted", flush=True)
torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER)
print(torch.ones(3, device="tpu").mul(2).tolist())
"""


def test_interrupt_during_a_compile():
    """Ctrl-C arrives when the compiler is at work: KeyboardInterrupt comes after it, and nothing is broken."""
    result = run_python("-c", SLOW + INTERRUPT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["interrupted", "[2.0, 2.0, 2.0]"]
