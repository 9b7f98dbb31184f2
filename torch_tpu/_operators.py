"""The page docs/operators.md, written by ``python -m torch_tpu ops --markdown``: how every overload of aten runs.

Made of torch's dispatcher, the table of lowered operators, and the TPU compiler's verdicts in docs/tpu_verdicts.json, which
``make test-tpu-compile`` writes; neither libtpu nor a device is needed.
"""

import collections
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from torch_tpu import _C
from torch_tpu.aot import command

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Why an overload without a lowering or decomposition is left to the CPU; the first that matches.
_CPU_REASONS = (
    (r"^_(test|foobar)|^_make_dep_token|functorch", "torch's own tests and tools"),
    (r"quant|^dequantize|_fq_", "quantized tensors: not supported"),
    (
        r"^_nested_tensor_from_mask$",
        "nested tensors of the strided layout are made of lists or of padded tensors with their sizes",
    ),
    (r"nested", "sizes and strides of nested tensors, which are CPU tensors"),
    (r"mkldnn|for_cpu|_dyn_quant|int[48]pack|_add_relu|transformer|multi_head|rescale_qkv", "kernels made for the CPU"),
    (r"assert_async|from_file|validate", "needs values or files on the host"),
    (r"sparse|^sspaddmm|^_spdiags", "make or take sparse tensors by loops over memory"),
    (
        r"slow_conv|adaptive_avg_pool|^_compute_linear_combination|^_ctc_loss",
        "inner kernels of the CPU, which another overload stands for on the device",
    ),
    (
        r"^_?linalg_eig",
        "eigenvalues of matrices without symmetry: LAPACK's iteration takes as many steps as the data wants; no lowering yet",
    ),
    (r"scaled_mm", "matrices with scales per block, of float8 and float4: no lowering yet"),
    (r"", "no lowering yet, and torch has no decomposition"),
)
_SPARSE_LAYOUTS = {
    "COO": "sparse tensors of the COO layout",
    "compressed": "sparse tensors of the CSR, CSC, BSR and BSC layouts",
}
_HOW = {
    "lowered": "one StableHLO program by a row of the table, or the bridge itself",
    "composite": "several calls that torch makes of other overloads",
    "decomposed": "torch's decomposition as one program",
    "CPU": "on the CPU, counted and announced",
    "none": "in no backend of ordinary tensors: CPU torch has no kernel either",
}


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _short(overload: str) -> str:
    return overload.removeprefix("aten::")


def _verdict(entry: dict[str, Any] | None, topology: str) -> str:
    if entry is None:
        return "not tried"
    failure = entry["failed"].get(topology)
    if failure is None:
        return "compiles"
    message = failure["message"].replace("|", "\\|")
    return f"{failure['programs']} of {entry['programs']} fail: {message}"


def _lines_per_overload(lowered: int) -> int:
    sources = [path for pattern in ("*.c", "*.h", "*.def") for path in (_ROOT / "core" / "op").glob(pattern)]
    return round(sum(len(path.read_text().splitlines()) for path in sources) / lowered)


def _summary(ops: list[tuple[str, str, str]], verdicts: dict[str, Any], rows: list[str]) -> list[str]:
    counts = collections.Counter(how for _, how, _ in ops)
    lowered = sum(1 for _, _, row in ops if row)
    lines = ["| how | overloads | |", "|---|---|---|"]
    lines += [f"| {how} | {counts[how]} | {meaning} |" for how, meaning in _HOW.items()]
    lines += [
        "",
        f"{len(rows)} rows serve {lowered} overloads, in about {_lines_per_overload(lowered)} lines of core/op each.",
    ]
    if verdicts["topologies"]:
        counts_by_topology = [
            f"{sum(_verdict(verdicts['rows'].get(row), topology) == 'compiles' for row in rows)} for {topology}"
            for topology in verdicts["topologies"]
        ]
        lines += [
            f"Rows of which libtpu {verdicts['libtpu']} compiled every collected program: {', '.join(counts_by_topology)}.",
            "That says that the TPU's compiler takes the program, no more: nothing here has run on a TPU.",
            "[How it is done](tpu-compiler.md).",
        ]
    return lines


def _family(name: str, rows: list[str], overloads: dict[str, list[str]], verdicts: dict[str, Any]) -> list[str]:
    topologies = verdicts["topologies"]
    lines = [f"### {name}", "", f"| row | overloads | programs | {' | '.join(topologies)} |"]
    lines += ["|---|---|---" + "|---" * len(topologies) + "|"]
    for row in rows:
        entry = verdicts["rows"].get(row)
        cells = [f"`{row}`", _code(map(_short, overloads[row])), str(entry["programs"]) if entry else "0"]
        lines.append(f"| {' | '.join(cells + [_verdict(entry, topology) for topology in topologies])} |")
    return [*lines, ""]


def _lowered(ops: list[tuple[str, str, str]], verdicts: dict[str, Any]) -> list[str]:
    overloads: dict[str, list[str]] = collections.defaultdict(list)
    for name, _, row in ops:
        if row:
            overloads[row].append(name)
    families: dict[str, list[str]] = collections.defaultdict(list)
    for row, file in _C._op_rows():
        families[pathlib.PurePath(file).stem].append(row)
    lines = [
        "## Lowered",
        "",
        "Families are the files core/op/*.def. `programs` is the number of different programs that were compiled for the row.",
        "",
    ]
    for name, rows in families.items():
        lines += _family(name, rows, overloads, verdicts)
    bridge = [_short(name) for name, how, row in ops if how == "lowered" and not row]
    return [*lines, "### The bridge", "", "Metadata, copies and results as long as the data says.", "", _code(bridge), ""]


def _cpu(ops: list[tuple[str, str, str]]) -> list[str]:
    groups: dict[str, list[str]] = {reason: [] for _, reason in _CPU_REASONS}
    for name, how, _ in ops:
        if how == "CPU":
            groups[next(reason for pattern, reason in _CPU_REASONS if re.search(pattern, _short(name)))].append(_short(name))
    for layout, meaning in _SPARSE_LAYOUTS.items():
        reason = f"{meaning}, for torch's kernel loops over memory"
        groups[reason] = [_short(name) for name, its in _C._sparse_ops_on_cpu() if its == layout]
    lines = ["## On the CPU", ""]
    lines += ["A dtype that no TPU has, as the complex32 that `chalf` makes, is refused and not moved to the CPU.", ""]
    for reason, names in groups.items():
        if names:
            lines += [f"**{reason[0].upper()}{reason[1:]}.** {_code(names)}", ""]
    return lines


def markdown() -> str:
    """The page."""
    ops = sorted(_C._ops())
    verdicts = command.read_verdicts(_ROOT / "docs" / "tpu_verdicts.json")
    rows = [row for row, _ in _C._op_rows()]
    lines = [
        "# Operators",
        "",
        "Written by `python -m torch_tpu ops --markdown`; do not edit. How every overload of aten in torch 2.13 runs on device",
        '"tpu".',
        "",
        *_summary(ops, verdicts, rows),
        "",
        *_lowered(ops, verdicts),
    ]
    for how, title in (("decomposed", "Decomposed"), ("composite", "Composite"), ("none", "In no backend")):
        if how == "none":
            lines += _cpu(ops)
        lines += [f"## {title}", "", _code(_short(name) for name, kind, _ in ops if kind == how), ""]
    return "\n".join(lines).rstrip() + "\n"
