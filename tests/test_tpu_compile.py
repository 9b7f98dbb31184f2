"""Programs as a TPU gets them. libtpu's compiler judges a sample of them where libtpu is installed (`make test-tpu-compile`
judges all), and forms that only a TPU gets run on the virtual TPU against the CPU.
"""

import json
import pathlib
import random

import pytest
import torch
from helpers import output_of

from torch_tpu import _operators
from torch_tpu.aot import command, compiler, sweep

ROOT = pathlib.Path(__file__).resolve().parent.parent
needs_libtpu = pytest.mark.skipif(compiler.libtpu() is None, reason="libtpu is not installed: pip install libtpu")


# --- collecting ------------------------------------------------------------------------------------------------------------

COLLECT = """
import torch, sys
from torch_tpu import aot
x = torch.ones(3, 4, device="tpu")
with aot.collect(sys.argv[1] if len(sys.argv) > 1 else "."):
    x.half() @ x.half().t()
    torch.nn.functional.gelu(x)
    x[:, 1:3].add_(1)
torch.exp(x)
"""


def collect(folder):
    program = COLLECT.replace('sys.argv[1] if len(sys.argv) > 1 else "."', repr(str(folder)))
    output_of(program)
    return [compiler.Program(path) for path in sorted(folder.glob("*.mlir"))]


def test_collects_calls_as_a_tpu_gets_them(tmp_path):
    programs = {program.row: program for program in collect(tmp_path)}
    assert {"mm", "gelu", "add.Tensor"} <= programs.keys()
    assert "exp" not in programs  # after the end
    assert programs["mm"].call == "aten::mm.out(Half [3, 4], Half [4, 3], Half [3, 3])"
    assert "precision = [HIGH, HIGH]" in programs["mm"].text
    assert all(program.is_for(topology) for program in programs.values() for topology in compiler.TOPOLOGIES)
    assert not programs["mm"].is_for("v2:2x2")
    assert sweep.reached(tmp_path)["add.Tensor"] == 1


def test_refused_lowering_is_a_verdict(tmp_path):
    path = tmp_path / "mm-0.mlir"
    path.write_text("// row: mm\n// call: aten::mm(Float [1])\n// generations: 5 6\n// error: no such\n  thing\n")
    program = compiler.Program(path)
    assert program.refusal == "no such\n  thing"
    assert not program.is_for("tpu7x:2x2x1")
    summary = command.summarise([(program, "v5e:1x1", f"lowering: {program.refusal}"), (program, "v6e:1x1", "ok")])
    failure = {"programs": 1, "call": "aten::mm(Float [1])", "message": "lowering: no such thing"}
    assert summary == {"mm": {"programs": 1, "failed": {"v5e:1x1": failure}}}


def test_few_programs_of_a_row_differ_in_dtypes(tmp_path):
    def program(number, row, call, text):
        path = tmp_path / f"{row}-{number}.mlir"
        path.write_text(f"// row: {row}\n// call: {call}\n// generations: 5 6 7\n{text}")
        return compiler.Program(path)

    programs = [
        program(0, "add", "add(Float [2])", "a"),
        program(1, "add", "add(Float [3, 4])", "longer"),
        program(2, "add", "add(Long [2])", "b"),
        program(3, "mul", "mul(Float [2])", "c"),
    ]
    assert command.pick(programs, 1) == [programs[1], programs[3]]
    assert command.pick(programs, 2) == [programs[1], programs[2], programs[3]]
    assert command.pick(programs, 0) == programs


def test_sweep_collects_in_a_process_of_its_own(tmp_path):
    swept = sweep.Sweep(tmp_path, "^row _int_mm")
    swept.run()
    assert not swept.errors
    assert sweep.reached(tmp_path)["_int_mm"] == 1


def test_every_row_can_be_called_by_name():
    from torch_tpu.aot import calls

    for row in sweep.rows():
        assert calls.overload_of(row)._schema.name.startswith("aten::")


# --- the compiler ------------------------------------------------------------------------------------------------------------

# Samples of about 20 programs: the same on every run.
SAMPLE = """
import pathlib, random, sys
from torch_tpu import aot
from torch_tpu.aot import calls, sweep
random_rows = random.Random(7).sample(sorted(set(sweep.rows())), 60)
with aot.collect(sys.argv[1]):
    for name, call in calls.by_schema(random_rows):
        sweep.run_item(call)
"""


@needs_libtpu
def test_libtpu_compiles_a_sample(tmp_path):
    output_of(SAMPLE.replace("sys.argv[1]", repr(str(tmp_path))), TORCH_TPU_FALLBACK="allow")
    paths = sorted(tmp_path.glob("*.mlir"))
    assert len(paths) > 40
    programs = [compiler.Program(path) for path in random.Random(7).sample(paths, 20)]
    judge = compiler.Compiler(tmp_path / "verdicts.jsonl", time_limit=60)
    try:
        verdicts = judge.judge_all(programs, compiler.TOPOLOGIES)
        assert judge.compiled > 40
        known = command.read_verdicts(ROOT / "docs" / "tpu_verdicts.json")["rows"]
        assert not command.newly_failed(known, command.summarise(verdicts))
    finally:
        judge.close()
    again = compiler.Compiler(tmp_path / "verdicts.jsonl")  # all from the cache
    assert again.judge_all(programs, compiler.TOPOLOGIES) == verdicts
    assert again.compiled == 0


@needs_libtpu
def test_a_dying_compiler_is_a_verdict(tmp_path):
    def program(name, text):
        path = tmp_path / f"{name}-0.mlir"
        path.write_text(f"// row: {name}\n// call: {name}()\n// generations: 5\n{text}")
        return compiler.Program(path)

    main = "func.func public @main(%0: {0}) -> ({0}) {{ %1 = stablehlo.add %0, %0 : {0} return %1 : {0} }}"
    dying = program("dying", main.format("tensor<?xf32>"))  # libtpu ends the process at an unbounded size
    refused = program("refused", "no program")
    good = program("good", main.format("tensor<4xf32>"))
    judge = compiler.Compiler(tmp_path / "verdicts.jsonl", time_limit=60)
    try:
        assert judge.judge(dying, "v5e:1x1").startswith("crashed (-6)")
        assert "PJRT_Compile" in judge.judge(refused, "v5e:1x1")
        assert judge.judge(good, "v5e:1x1") == "ok"
    finally:
        judge.close()
    entries = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert entries[-1]["code_bytes"] > 0 and entries[-1]["optimal_seconds"] > 0


# --- forms that only a TPU gets, run on the virtual TPU --------------------------------------------------------------------

TPU_FORMS = """
import torch
torch.manual_seed(0)
wide = lambda *sizes: torch.randint(-2**63, 2**63 - 1, sizes)
def check(f, *operands, **tolerance):
    actual, expected = f(*(x.to("tpu") for x in operands)).cpu(), f(*operands)
    torch.testing.assert_close(actual, expected, **tolerance)
check(torch.mm, wide(5, 7), wide(7, 3))
check(torch.mm, wide(2, 600), wide(600, 2))
check(torch.bmm, wide(4, 1, 2), wide(4, 2, 3))
check(torch.dot, wide(9), wide(9))
edges = torch.tensor([0, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1])
edges = torch.cat([edges, -edges, torch.tensor([-2**63]), wide(40), wide(40) >> 20, wide(40) >> 40, wide(40) >> 58])
divisors = edges[(edges != 0) & (edges != -1)]  # the CPU of torch dies of -2**63 by -1
for mode in ("trunc", "floor"):
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), edges[:, None], divisors)
check(torch.remainder, edges[:, None], divisors)
check(torch.fmod, edges[:, None], divisors)
check(torch.nn.functional.conv2d, wide(2, 3, 6, 5), wide(4, 3, 3, 2))
x, w = torch.randn(2, 4, 9, 9), torch.randn(4, 2, 3, 3)
conv = lambda x, w: torch.nn.functional.conv2d(x, w, stride=2, padding=1, groups=2)
check(conv, x, w, rtol=1e-4, atol=1e-4)
def gradients(x, w):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    conv(x, w).square().sum().backward()
    return torch.cat([x.grad.flatten(), w.grad.flatten()])
check(gradients, x, w, rtol=1e-3, atol=1e-3)
check(torch.mm, torch.randn(8, 6, dtype=torch.bfloat16), torch.randn(6, 4, dtype=torch.bfloat16), rtol=2e-2, atol=2e-2)
fft, real = torch.fft, lambda *sizes: torch.randn(sizes, dtype=torch.float64)
exact = {"rtol": 1e-12, "atol": 1e-12}
for n in (1, 2, 7, 64, 134, 360):
    check(fft.fft, torch.complex(real(2, n), real(2, n)), **exact)
    check(fft.rfft, real(2, n), **exact)
    check(lambda x: fft.irfft(x, n=n), torch.complex(real(2, n // 2 + 1), real(2, n // 2 + 1)), **exact)
check(lambda x: fft.ifftn(x, norm="ortho"), torch.complex(real(2, 3, 4, 5), real(2, 3, 4, 5)), **exact)
check(fft.rfftn, real(4, 6, 9, 7), **exact)
check(fft.irfftn, torch.complex(real(2, 3, 4, 6), real(2, 3, 4, 6)), **exact)
check(lambda x: fft.fft(x, dim=0), torch.complex(real(6, 5), real(6, 5)), **exact)
try:
    fft.fft(torch.ones(4099, dtype=torch.float64, device="tpu"))
except NotImplementedError as error:
    assert "the prime factor 4099" in str(error), error
else:
    raise AssertionError("a matrix of 4099 x 4099")
"""


def test_forms_of_a_tpu_are_right():
    output_of(TPU_FORMS, TORCH_TPU_TARGET_GENERATION="5", TORCH_TPU_FALLBACK="error")


# A part of the operators' tests, drawn by seed, and those of forms that differ for values that are not finite.
SOME_TESTS = """
import random, sys, pytest
ALWAYS = ("test_adaptive[", "test_values_that_are_not_finite_stay_local")
class Sample:
    def pytest_collection_modifyitems(self, items):
        always = [item for item in items if item.name.startswith(ALWAYS)]
        assert len(always) > 4
        items[:] = always + random.Random(5).sample(items, 20)
sys.exit(pytest.main(["tests/ops", "-p", "no:cacheprovider", "--tb=short"], plugins=[Sample()]))
"""


def test_tests_of_operators_hold_for_a_tpu():
    print(output_of(SOME_TESTS, TORCH_TPU_TARGET_GENERATION="5"))


# --- the page of operators --------------------------------------------------------------------------------------------------


def test_operators_page_is_current():
    page = (ROOT / "docs" / "operators.md").read_text()
    assert page == _operators.markdown(), "run: python -m torch_tpu ops --markdown > docs/operators.md"


def test_operators_page_has_every_overload():
    page = _operators.markdown()
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    assert all(f"`{name}`" in page for name in names)
