"""``python -m torch_tpu tpu-compile``: collects, compiles, reports, and writes docs/tpu_verdicts.json."""

import argparse
import collections
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch

from torch_tpu.aot import compiler, sweep

# Messages are kept up to this length; the cache has them whole.
_MESSAGE_SIZE = 300


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summarise(verdicts: Iterable[tuple[compiler.Program, str, str]]) -> dict[str, dict[str, Any]]:
    """Verdicts by row: {"programs": 4, "failed": {topology: {"programs": 1, "call": call, "message": message}}}.

    Where several programs of a row fail, the first is told of.
    """
    programs: dict[str, set[str]] = collections.defaultdict(set)
    failed: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for program, topology, verdict in verdicts:
        programs[program.row].add(program.hash)
        if verdict != "ok":
            first = {"programs": 0, "call": program.call, "message": " ".join(verdict.split())[:_MESSAGE_SIZE]}
            failed[program.row].setdefault(topology, first)["programs"] += 1
    return {row: {"programs": len(programs[row]), "failed": failed[row]} for row in sorted(programs)}


def read_verdicts(path: pathlib.Path) -> dict[str, Any]:
    """What ``_write_verdicts`` wrote; no rows where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {"libtpu": "none", "topologies": [], "rows": {}}


def _write_verdicts(path: pathlib.Path, judge: compiler.Compiler, topologies: list[str], rows: dict[str, Any]) -> None:
    """One row a line, so that a change of one shows as one."""
    head = {"libtpu": judge.version, "torch": torch.__version__.partition("+")[0], "topologies": topologies}
    lines = [f"  {json.dumps(row)}: {json.dumps(rows[row])}" for row in sweep.rows() if row in rows]
    text = json.dumps(head)[:-1] + ', "rows": {\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text)


def newly_failed(old: dict[str, Any], summary: dict[str, dict[str, Any]]) -> list[str]:
    """Rows and topologies that compiled when ``old`` was written, or were not known then, and now do not."""
    known = {row: entry["failed"] for row, entry in old.items()}
    return [f"{row} {t}" for row, entry in summary.items() for t in entry["failed"] if t not in known.get(row, {})]


def _report(summary: dict[str, dict[str, Any]], topologies: list[str], missing: list[str]) -> None:
    for row, entry in summary.items():
        by_message = collections.defaultdict(list)
        for topology, failure in entry["failed"].items():
            by_message[failure["message"], failure["call"]].append(topology)
        for (message, call), failed in by_message.items():
            print(f"{row} ({', '.join(failed)}): {message}\n  {call}")
    for topology in topologies:
        compiled = sum(topology not in entry["failed"] for entry in summary.values())
        print(f"{topology}: every program of {compiled} of {len(summary)} rows compiled by libtpu")
    if missing:
        print(f"not reached by any call ({len(missing)}): {', '.join(missing)}")


def pick(programs: Iterable[compiler.Program], per_row: int) -> list[compiler.Program]:
    """Up to ``per_row`` programs of each row (0: all): of each combination of dtypes one, then a second, and so on.

    Of equal dtypes the longest texts come first, since they hold most.
    """
    by_row: dict[str, dict[str, list[compiler.Program]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for program in sorted(programs, key=lambda program: (-len(program.text), program.hash)):
        by_row[program.row][re.sub(r"\[.*?\]", "", program.call)].append(program)
    picked = []
    for groups in by_row.values():
        turns = itertools.chain.from_iterable(itertools.zip_longest(*groups.values()))
        picked += list(itertools.islice((program for program in turns if program is not None), per_row or None))
    return sorted(picked, key=lambda program: program.path)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 if a row does not compile that did when --verdicts was written."""
    if compiler.libtpu() is None:
        _say("libtpu is not installed: pip install libtpu")
        return 2
    folder: pathlib.Path = options.folder
    programs_folder = folder / "programs"
    if not options.keep:
        for old in programs_folder.glob("*.mlir*"):
            old.unlink()
        swept = sweep.Sweep(programs_folder, options.ops, options.dtypes, lambda text: _say(f"calls: {text}"))
        swept.run()
        (folder / "calls.json").write_text(json.dumps(swept.errors, indent=1))
    found = sweep.reached(programs_folder)
    judge = compiler.Compiler(folder / "verdicts.jsonl", options.time_limit)
    try:
        programs = pick(map(compiler.Program, programs_folder.glob("*.mlir")), options.per_row)
        verdicts = judge.judge_all(programs, options.topologies, lambda text: _say(f"compiler: {text}"))
    finally:
        judge.close()
    summary = summarise(verdicts)
    _report(summary, options.topologies, [row for row in sweep.rows() if not found[row]] if not options.ops else [])
    _say(f"{len(programs)} programs, {judge.compiled} compilations; the others were known")
    old = read_verdicts(options.verdicts)["rows"] if options.verdicts else {}
    failed = newly_failed(old, summary)
    if failed:
        _say(f"{len(failed)} that did compile, or were never tried: {', '.join(failed[:20])}{' ...' * (len(failed) > 20)}")
    if options.verdicts:
        # A part of the calls says less of a row than all of them do, so it only adds what is missing.
        rows = {**summary, **old} if options.ops or options.dtypes else summary
        _write_verdicts(options.verdicts, judge, options.topologies, rows)
    return 1 if failed else 0


def add_to(commands: Any) -> None:
    """Adds the command to an argparse subparsers object."""
    parser = commands.add_parser(
        "tpu-compile",
        help="lets libtpu compile what calls of every lowered operator would be on a TPU (no TPU is needed)",
    )
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/tpu-compile"), help="working folder")
    parser.add_argument("--ops", default="", metavar="REGEX", help="only calls with such names, e.g. '^add float32'")
    parser.add_argument("--dtypes", default="", help="of torch's samples (default float32,bfloat16,int64,bool)")
    parser.add_argument("--keep", action="store_true", help="compile the programs in the folder; make no calls")
    parser.add_argument("--topologies", nargs="+", default=list(compiler.TOPOLOGIES), metavar="TOPOLOGY")
    parser.add_argument("--per-row", type=int, default=4, metavar="N", help="programs of each row to compile; 0: all")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="SECONDS", help="for each program")
    parser.add_argument(
        "--verdicts", type=pathlib.Path, metavar="FILE", help="the verdicts by row: read to compare, and written"
    )
    parser.set_defaults(run=run)
