"""torch.tpu.export: programs that run again without what made them, compared with the modules on the CPU."""

import builtins
import json
import os
import pathlib
import subprocess

import pytest
import torch
from helpers import ROOT
from torch import nn
from torch.nn import functional as F

pytestmark = [
    pytest.mark.usefixtures("full_float32"),
    pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning"),  # torch.export's own
]


class Attention(nn.Module):
    """Embedding, attention with a mask, tied weights: parameters, a buffer and index checks in one module."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril(), persistent=False)

    def forward(self, tokens, scale=2.0, *, bias=None):
        x = self.tokens(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask) * scale
        logits = self.head(x + y)
        return {"logits": logits if bias is None else logits + bias, "pair": (y.transpose(1, 2), None, 3)}


def compare(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
        assert got.is_contiguous()
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        compare(list(got.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(got, expected, strict=True):
            compare(one, other)
    else:
        assert got == expected


@pytest.fixture
def attention():
    return Attention().eval()


TOKENS = torch.tensor([[1, 2, 3, 4, 5, 15], [6, 7, 8, 9, 0, 1]])


# --- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["text", "bytecode", "portable"])
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_module_runs_again(attention, tmp_path, format, device, no_fallback):
    if format != "text":
        pytest.importorskip("jaxlib")
    bias = torch.randn(16)
    expected = attention(TOKENS, 1.5, bias=bias)
    where = attention.to(device)
    torch.tpu.export(where, (TOKENS.to(device), 1.5), {"bias": bias.to(device)}, format=format, path=tmp_path)
    program = torch.tpu.load_exported(tmp_path)
    compare(program(TOKENS.to("tpu"), 1.5, bias=bias.to("tpu")), expected)
    compare(program(TOKENS, 1.5, bias=bias), expected)
    others = TOKENS.flip(1)
    compare(program(others, 1.5, bias=bias * 2), attention.cpu()(others, 1.5, bias=bias * 2))


def test_a_function_and_what_it_closes_over(tmp_path):
    weight = torch.randn(4, 3)

    def function(x, unused, y):
        return x @ weight, [y, y.t()], x

    arguments = torch.randn(2, 4), torch.randn(5), torch.randn(2, 2)
    exported = torch.tpu.export(function, arguments, path=tmp_path)
    assert exported.manifest["name"] == "function"
    assert exported.manifest["arguments"] == ["x", "unused", "y"]
    assert {each["name"] for each in exported.manifest["inputs"] if each["kind"] == "user_input"} == {"x", "y"}
    program = torch.tpu.load_exported(tmp_path)
    compare(program(*arguments), function(*arguments))
    results = program(*arguments)
    results[1][0].zero_()  # outputs share nothing
    assert results[1][1].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_dtypes_of_inputs_weights_and_outputs(dtype, tmp_path):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.tensor([[1, 0], [3, 4]]).to(dtype))

        def forward(self, x):
            return torch.where(x == self.held, self.held, x), (x != x).sum()

    x = torch.tensor([[1, 1], [0, 4]]).to(dtype)
    torch.tpu.export(Module(), (x,), path=tmp_path)
    compare(torch.tpu.load_exported(tmp_path)(x), Module()(x))


def test_scalars_empty_tensors_and_views(tmp_path):
    def function(x, empty, scalar):
        return x.t() * scalar, empty.sum(0), empty

    x, empty, scalar = torch.randn(3, 4), torch.zeros(0, 3), torch.tensor(2.0)
    torch.tpu.export(function, (x, empty, scalar), path=tmp_path)
    program = torch.tpu.load_exported(tmp_path)
    compare(program(x, empty, scalar), tuple(each.contiguous() for each in function(x, empty, scalar)))
    wide = torch.randn(4, 8).to("tpu")
    view = wide[:, 1:4].t()  # dense neither before nor after
    compare(program(view, empty, scalar)[0], (view.t() * 2).cpu())


def test_buffers_that_change_are_outputs(tmp_path):
    norm = nn.BatchNorm1d(3).train()
    x = torch.randn(4, 3)
    exported = torch.tpu.export(norm, (x,), path=tmp_path)
    program = torch.tpu.load_exported(tmp_path)
    results = dict(zip([each["name"] for each in exported.manifest["outputs"]], program.run([x]), strict=True))
    expected = norm(x)
    torch.testing.assert_close(program(x).cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(results[name].cpu(), norm.get_buffer(name), rtol=1e-5, atol=1e-5)


def test_the_precision_is_the_one_in_force(tmp_path):
    x = torch.randn(16, 64)
    with torch.tpu.precision("medium"):
        exported = torch.tpu.export(lambda x: x @ x.t(), (x,), path=tmp_path / "medium")
        expected = x.to("tpu") @ x.to("tpu").t()
    assert exported.manifest["matmul_precision"] == "medium"
    assert torch.equal(torch.tpu.load_exported(tmp_path / "medium")(x), expected)
    exported = torch.tpu.export(lambda x: x @ x.t(), (x,), path=tmp_path / "highest")
    assert exported.manifest["matmul_precision"] == "highest"
    torch.testing.assert_close(torch.tpu.load_exported(tmp_path / "highest")(x).cpu(), x @ x.t(), rtol=1e-5, atol=1e-5)


def test_nan_goes_through_maxima_of_bytecode(tmp_path):
    pytest.importorskip("jaxlib")
    x = torch.zeros(200, 300)
    x[7, 5] = torch.nan
    torch.tpu.export(lambda x: x.amax(1), (x,), format="bytecode", path=tmp_path)
    assert torch.tpu.load_exported(tmp_path)(x).isnan().nonzero().flatten().tolist() == [7]


def test_checks_of_the_program_are_errors(attention, tmp_path):
    torch.tpu.export(attention, (TOKENS,), path=tmp_path)
    program = torch.tpu.load_exported(tmp_path)
    with pytest.raises(IndexError, match="index out of range in self"):
        program(TOKENS + 10)["logits"].cpu()
        torch.tpu.synchronize()


# --- the folder -----------------------------------------------------------------------------------------------------------


def test_the_manifest_tells_all(attention, tmp_path):
    exported = torch.tpu.export(attention, (TOKENS,), path=tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest == exported.manifest
    assert (tmp_path / "program.mlir").read_bytes() == exported.program
    inputs = {each["name"]: each for each in manifest["inputs"]}
    assert {name: each["kind"] for name, each in inputs.items()} == {
        "head.weight": "parameter",  # tied
        "qkv.weight": "parameter",
        "qkv.bias": "parameter",
        "mask": "buffer",
        "tokens": "user_input",
    }
    assert (inputs["tokens"]["dtype"], inputs["tokens"]["shape"], inputs["tokens"]["position"]) == ("i64", [2, 6], 0)
    weights = (tmp_path / "weights.bin").read_bytes()
    assert len(weights) == manifest["weights"]["bytes"]
    for name in ("head.weight", "qkv.weight", "qkv.bias"):
        entry = inputs[name]
        assert entry["offset"] % 64 == 0
        data = bytearray(weights[entry["offset"] : entry["offset"] + entry["bytes"]])
        stored = torch.frombuffer(data, dtype=torch.float32).reshape(entry["shape"])
        assert torch.equal(stored, attention.get_parameter(name).detach())
    kinds = [(each["kind"], each["dtype"]) for each in manifest["outputs"]]
    assert kinds[:2] == [("user_output", "f32")] * 2 and set(kinds[2:]) == {("check", "i1")}
    assert manifest["versions"]["torch"] == torch.__version__
    assert "module @torch_tpu" in exported.program.decode()


def test_portable_artifacts_of_older_versions(tmp_path):
    pytest.importorskip("jaxlib")
    x = torch.randn(3, 4)
    exported = torch.tpu.export(lambda x: F.gelu(x), (x,), format="portable", stablehlo_version="1.0.0", path=tmp_path)
    assert exported.manifest["program"]["stablehlo_version"] == "1.0.0"
    assert b"StableHLO_v1.0.0" in exported.program
    compare(torch.tpu.load_exported(tmp_path)(x), F.gelu(x))
    with pytest.raises(ValueError, match="no portable artifact of StableHLO 99"):
        torch.tpu.export(lambda x: x + 1, (x,), format="portable", stablehlo_version="99.0.0")


def break_it(folder: pathlib.Path, what: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    if what == "weights.bin":
        (folder / what).unlink()
    elif what == "short weights":
        (folder / "weights.bin").write_bytes(b"12")
    elif what == "no JSON":
        (folder / "manifest.json").write_text('{"format": "torch_tpu.export", "version": 1,}')
    elif what == "program":
        (folder / "program.mlir").write_text("module { nonsense }")
    elif what == "outputs":
        manifest["outputs"].append(manifest["outputs"][0])
    elif what == "escape":
        manifest["program"]["file"] = "../program.mlir"
    else:
        manifest |= {"version": 2} if what == "version" else {}
        entry = next(each for each in manifest["inputs"] if each["kind"] == "parameter")
        entry |= {"dtype": {"dtype": "f33"}, "shape": {"shape": [-1]}, "offset": {"offset": -64}}.get(what, {})
    if what not in ("no JSON",):
        (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("weights.bin", "weights.bin: No such file"),
        ("short weights", '"weight" lies outside of the weights'),
        ("no JSON", "manifest.json: line 1: a member without a name"),
        ("program", "nonsense|parse|expected"),
        ("outputs", "the program has 1 outputs, the manifest 2"),
        ("escape", "not the name of a file"),
        ("version", "version 2 of the format"),
        ("dtype", r"inputs, entry \d: unknown dtype"),
        ("shape", '"shape" is not a list of sizes'),
        ("offset", "lies outside of the weights"),
    ],
)
def test_damaged_folders_are_refused(what, error, tmp_path):
    torch.tpu.export(nn.Linear(2, 3), (torch.ones(1, 2),), path=tmp_path)
    break_it(tmp_path, what)
    with pytest.raises((ValueError, RuntimeError), match=error):
        torch.tpu.load_exported(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere/manifest.json: No such file or directory"):
        torch.tpu.load_exported(tmp_path / "nowhere")


# --- what cannot be exported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (
            lambda x: torch.linalg.eigvals(x),
            "linalg_eigvals.default cannot be a part of a program: aten::_linalg_eigvals is not lowered",
        ),
        (lambda x: x.nonzero(), "nonzero.default depends on the data"),
        (lambda x: F.dropout(x, 0.5), r"draws random numbers .* \(aten.native_dropout.default\)"),
        (lambda x: x.add_(1), "it writes its input x in place"),
    ],
    ids=["fallback", "data-dependent", "random", "in place"],
)
def test_what_no_program_holds_is_refused_by_name(function, error):
    with pytest.raises(RuntimeError, match=error):
        torch.tpu.export(function, (torch.ones(3, 3),))


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="format must be"):
        torch.tpu.export(nn.Linear(2, 2), (torch.ones(1, 2),), format="onnx")
    with pytest.raises(ValueError, match="is for the format 'portable'"):
        torch.tpu.export(nn.Linear(2, 2), (torch.ones(1, 2),), stablehlo_version="1.0.0")
    with pytest.raises(ValueError, match="expected a tpu device"):
        torch.tpu.load_exported(tmp_path, "cpu")
    usual = builtins.__import__

    def without_jaxlib(name, *rest):
        if name.split(".")[0] == "jaxlib":
            raise ImportError(name)
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_jaxlib)
    with pytest.raises(ImportError, match=r"need jaxlib: pip install 'torch_tpu\[export\]'"):
        torch.tpu.export(nn.Linear(2, 2), (torch.ones(1, 2),), format="bytecode")


def test_inputs_that_do_not_fit(tmp_path):
    torch.tpu.export(nn.Linear(2, 3), (torch.ones(1, 2),), path=tmp_path)
    program = torch.tpu.load_exported(tmp_path)
    with pytest.raises(RuntimeError, match=r'input "input": expected Float \[1, 2\], but got Float \[2, 2\]'):
        program(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match=r"expected Float \[1, 2\], but got Double \[1, 2\]"):
        program(torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match="Linear takes 1 arguments, but got 2"):
        program(torch.ones(1, 2), 3)
    with pytest.raises(TypeError, match="expected tensors, but got int"):
        program(3)
    compare(program(torch.zeros(1, 2)), program(torch.zeros(1, 2)).cpu())


# --- without Python -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """The example in C."""
    library = ROOT / "build" / "core" / "libtt.a"
    if not library.exists():
        pytest.skip("no libtt.a: the package was not built here")
    program = tmp_path_factory.mktemp("c") / "run_exported"
    subprocess.run(["make", "-C", str(ROOT / "examples" / "c"), f"OUT={program}"], check=True, capture_output=True)
    return program


def run_c(runner, *arguments):
    from torch_tpu import _C

    environment = {**os.environ, "TORCH_TPU_PJRT_PLUGIN": json.loads(_C._info())["plugin"]}
    return subprocess.run([str(runner), *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300)


def test_a_c_program_runs_it(attention, runner, tmp_path):
    torch.tpu.export(attention, (TOKENS,), path=tmp_path / "program")
    (tmp_path / "tokens.bin").write_bytes(TOKENS.numpy().tobytes())
    result = run_c(runner, tmp_path / "program", tmp_path, tmp_path / "tokens.bin")
    assert result.returncode == 0, result.stderr
    expected = attention(TOKENS)
    lines = result.stdout.splitlines()
    assert [line.split(" ", 1)[1].rsplit(" ", 1)[0] for line in lines] == ["f32 [2, 6, 16]", "f32 [2, 8, 6]"]
    for line, tensor in zip(lines, (expected["logits"], expected["pair"][0]), strict=True):
        data = bytearray(pathlib.Path(line.rsplit(" ", 1)[1]).read_bytes())
        got = torch.frombuffer(data, dtype=torch.float32).reshape(tensor.shape)
        torch.testing.assert_close(got, tensor.detach(), rtol=1e-5, atol=1e-5)


def test_the_c_program_tells_what_is_wrong(attention, runner, tmp_path):
    torch.tpu.export(attention, (TOKENS,), path=tmp_path / "program")
    result = run_c(runner, tmp_path / "program", tmp_path)
    assert result.returncode != 0 and "1 inputs are needed" in result.stderr and "tokens" in result.stderr
    (tmp_path / "tokens.bin").write_bytes(b"1234")
    result = run_c(runner, tmp_path / "program", tmp_path, tmp_path / "tokens.bin")
    assert result.returncode != 0 and 'does not hold the 96 bytes of input "tokens"' in result.stderr
    (tmp_path / "tokens.bin").write_bytes((TOKENS + 10).numpy().tobytes())
    result = run_c(runner, tmp_path / "program", tmp_path, tmp_path / "tokens.bin")
    assert result.returncode != 0 and "index out of range in self" in result.stderr
    result = run_c(runner, tmp_path / "nowhere", tmp_path)
    assert result.returncode != 0 and "nowhere/manifest.json: No such file" in result.stderr
