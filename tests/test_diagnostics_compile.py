"""Reports and logs on torch.compile: captures, graph breaks, recompiles, what runs between programs."""

import logging
import warnings

import pytest
import torch
from helpers import run_python

from torch_tpu import _graph_events


@pytest.fixture(autouse=True)
def _fresh_dynamo(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch.tpu, "fallback", "allow")
    yield
    torch._dynamo.reset()


def compiled(function, **keywords):
    return torch.compile(function, backend="tpu", **keywords)


def line_of(text: str) -> str:
    """The only line of this file that ends in `# text`, as reports name it."""
    with open(__file__) as file:
        (found,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"  # {text}")]
    return f"{__file__}:{found}"


def test_a_capture_and_nothing_else():
    function = compiled(lambda x: (x * 2).sum())  # one graph
    x = torch.ones(3, device="tpu")
    report = torch.tpu.explain(function)(x)
    (capture,) = report.captures
    assert (capture.name, capture.site, capture.reason) == ("<lambda>", line_of("one graph"), None)
    assert capture.calls == 2 and 0 < capture.milliseconds <= report.milliseconds
    assert not report.graph_breaks and not report.host_parts
    text = str(report)
    assert "1 function captured by torch.compile" in text and "first time" in text
    assert "graph break" not in text and "between programs" not in text
    again = torch.tpu.explain(function)(x)
    assert not again.captures and "torch.compile" not in str(again)


def test_graph_breaks_with_their_lines():
    def function(x):
        y = x * 2
        print("so far")  # a break
        z = y + 1
        return z if z.sum() > 0 else -z  # another

    report = torch.tpu.explain(compiled(function))(torch.ones(3, device="tpu"))
    assert [each.site for each in report.graph_breaks] == [line_of("a break"), line_of("another")]
    assert "print" in report.graph_breaks[0].reason and "generic_jump" in report.graph_breaks[1].reason
    assert len(report.captures) == 3
    text = str(report)
    assert "2 graph breaks" in text and line_of("a break") in text and line_of("another") in text


def test_recompiles_with_the_guard_that_failed():
    function = compiled(lambda x, n: x * n, dynamic=False)
    torch.tpu.explain(function)(torch.ones(3, device="tpu"), 2)
    (capture,) = torch.tpu.explain(function)(torch.ones(4, device="tpu"), 2).captures
    assert "size mismatch at index 0. expected 3, actual 4" in capture.reason
    (capture,) = torch.tpu.explain(function)(torch.ones(4, device="tpu", dtype=torch.float64), 2).captures
    assert "dtype mismatch" in capture.reason
    report = torch.tpu.explain(function)(torch.ones(4, device="tpu"), 7)
    assert "n == 2" in report.captures[0].reason
    assert report.captures[0].reason.splitlines()[0] in str(report)


def test_what_runs_between_programs():
    def function(x, host):
        y = torch.linalg.eigvals(x @ x.t()).abs().sum()  # on the CPU
        z = host.to("tpu") * y  # from the CPU
        return z + torch.linspace(x[0, 0], x[0, 1], 3, device=x.device)  # reads values

    whole = compiled(function)
    x, host = torch.rand(3, 3).to("tpu"), torch.ones(3)
    whole(x, host)  # captured before: the report does not depend on that
    report = torch.tpu.explain(whole)(x, host)
    parts = {each.op: each for each in report.host_parts}
    assert len(report.host_parts) == len(parts) == 3 and not report.captures
    assert parts["aten.linalg_eig.default"].site == line_of("on the CPU")
    assert "runs on the CPU" in parts["aten.linalg_eig.default"].reason
    assert parts["aten._to_copy.default"].site == line_of("from the CPU")
    assert "tensors of the CPU" in parts["aten._to_copy.default"].reason
    assert parts["aten.linspace.Tensor_Tensor"].site == line_of("reads values")
    assert "does not exist yet" in parts["aten.linspace.Tensor_Tensor"].reason
    assert [each.name for each in report.fallbacks] == ["aten::linalg_eig"]
    assert report.fallbacks[0].site.startswith(__file__)  # the line of the call, not of code that torch made
    text = str(report)
    assert "3 ops of compiled graphs between programs" in text and line_of("reads values") in text
    assert not _graph_events.listeners


def test_repeated_parts_share_a_line():
    function = compiled(lambda x: torch.linalg.eigvals(x).abs())
    x = torch.eye(2, device="tpu")

    def twice():
        return function(x), function(x)

    report = torch.tpu.explain(twice)()
    assert len(report.host_parts) == 2
    assert "2 ops of compiled graphs" in str(report) and "(2 times)" in str(report)


def test_a_call_that_fails_stops_listening():
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch.tpu.explain(function)(1)
    assert not _graph_events.listeners


# --- the log ------------------------------------------------------------------------------------------------------------


def test_the_log_tells_programs_and_why(caplog):
    function = compiled(lambda x: torch.linalg.eigvals(x @ x).abs(), dynamic=False)
    with caplog.at_level(logging.INFO, logger="torch_tpu.compiler"):
        function(torch.eye(3, device="tpu"))
        function(torch.eye(3, device="tpu").double())
    own = [record for record in caplog.records if record.name.startswith("torch_tpu.compiler")]
    assert {record.levelno for record in own} == {logging.INFO}
    texts = [record.getMessage() for record in own]
    assert any("aten.linalg_eig.default" in text and "runs between programs: it runs on the CPU" in text for text in texts)
    assert sum("program 1, of" in text and "a new graph" in text for text in texts) >= 4


def test_the_log_tells_further_programs_of_a_graph(caplog):
    function = compiled(lambda x: x @ x)
    base = torch.ones(4, 4, device="tpu")
    with caplog.at_level(logging.INFO, logger="torch_tpu.compiler"):
        function(base)
        with torch.tpu.precision("highest"):
            function(base)
    texts = [record.getMessage() for record in caplog.records if record.name == "torch_tpu.compiler.backend"]
    assert len(texts) == 2
    assert "program 1, of 1 calls, with 1 inputs: a new graph" in texts[0]
    assert "program 2, of 1 calls, with 1 inputs: other sizes, dtypes or layouts of inputs, numbers or modes" in texts[1]


def test_nothing_is_logged_unasked(recwarn, capfd):
    warnings.simplefilter("always")
    compiled(lambda x: torch.linalg.eigvals(x).abs())(torch.eye(2, device="tpu"))
    assert "torch_tpu" not in capfd.readouterr().err
    assert not [each for each in recwarn if "between programs" in str(each.message)]


def test_torch_logs_names_it():
    code = """
import torch
torch.compile(lambda x: x * 2, backend="tpu")(torch.ones(3, device="tpu"))
"""
    result = run_python("-c", code, TORCH_LOGS="torch_tpu.compiler")
    assert result.returncode == 0, result.stderr
    assert "compiled graph 1: program 1, of 1 calls, with 1 inputs: a new graph" in result.stderr
