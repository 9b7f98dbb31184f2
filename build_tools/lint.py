"""Runs the project's checks: include order, clang-format, clang-tidy, ruff, mypy. ``python build_tools/lint.py [--fix]``.

Exit status 1 if any of them finds something.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A folder of the core may include its own files and those of folders of a lower rank (docs/architecture.md).
RANKS = {"base": 0, "pjrt": 1, "hlo": 1, "op": 2, "graph": 3, "cache": 4, "run": 5, "dist": 6, "aot": 6}
# op/ works on values, never on buffers.
FORBIDDEN = {("op", "pjrt")}
INCLUDE = re.compile(r'^#include "(\w+)/')


def include_order() -> list[str]:
    """Returns one line per include that breaks the order of layers."""
    found = []
    for path in sorted(ROOT.glob("core/*/*.[ch]")):
        folder = path.parent.name
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or match[1] == folder:
                continue
            if RANKS.get(match[1], 99) >= RANKS[folder] or (folder, match[1]) in FORBIDDEN:
                found.append(f"{path.relative_to(ROOT)}:{number}: {folder}/ may not include {match[1]}/")
            if "torch" in line or "Python.h" in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: the core knows neither torch nor Python")
    return found


def tool(name: str) -> str:
    """Path of a tool installed beside this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)


def run(title: str, command: Sequence[str]) -> bool:
    """Runs a command in the root; prints its output if it fails."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{title}: {'ok' if result.returncode == 0 else 'FAILED'}")
    if result.returncode:
        print(result.stdout + result.stderr)
    return result.returncode == 0


def clang_tidy() -> bool:
    """clang-tidy over the core, two processes at a time."""
    spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    include = f"{next(iter(spec.submodule_search_locations or []))}/include" if spec else ""
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("core/*/*.c"))
    halves = [files[0::2], files[1::2]]
    flags = ["-std=c17", "-D_GNU_SOURCE", "-Icore", "-isystem", include]
    jobs = [
        subprocess.Popen(
            [tool("clang-tidy"), "--quiet", *half, "--", *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for half in halves
    ]
    outputs = [job.communicate()[0] for job in jobs]
    ok = all(job.returncode == 0 for job in jobs)
    print(f"clang-tidy: {'ok' if ok else 'FAILED'}")
    if not ok:
        print("\n".join(line for output in outputs for line in output.splitlines() if "warnings generated" not in line))
    return ok


def main() -> int:
    """Runs all checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="let clang-format and ruff rewrite files")
    options = parser.parse_args()
    sources = [
        str(path)
        for pattern in ("core/*/*.[ch]", "bridge/*.[ch]*", "tests/c/*.[ch]", "bench/*.c")
        for path in sorted(ROOT.glob(pattern))
    ]
    broken = include_order()
    print("\n".join([f"include order: {'FAILED' if broken else 'ok'}", *broken]))
    checks = [
        not broken,
        run("clang-format", [tool("clang-format"), *(["-i"] if options.fix else ["--dry-run", "--Werror"]), *sources]),
        run("ruff check", [tool("ruff"), "check", *(["--fix"] if options.fix else [])]),
        run("ruff format", [tool("ruff"), "format", *([] if options.fix else ["--check"])]),
        run("mypy", [tool("mypy")]),
        clang_tidy(),
    ]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
