"""Runs the calls of ``calls`` in processes of their own and collects their programs.

A call may take a process down or hang; the next process goes on behind it. ``python -m torch_tpu.aot.sweep`` is that process.
"""

import collections
import functools
import itertools
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

import torch

from torch_tpu import _C

# Seconds that one item (an operator with a dtype) may take.
TIME_LIMIT = 120.0


def rows() -> list[str]:
    """Names of all rows of the table of lowered operators."""
    return [name for name, _ in _C._op_rows()]


def row_of(path: pathlib.Path) -> str:
    """The row that a collected program belongs to, from its file's name."""
    return path.name.rsplit("-", 1)[0]


def reached(folder: pathlib.Path) -> collections.Counter[str]:
    """How many programs of each row are in the folder."""
    return collections.Counter(row_of(path) for path in folder.glob("*.mlir"))


def _unless_reached(folder: pathlib.Path, row: str, call: Callable[[], object]) -> None:
    if not any(folder.glob(f"{row}-*.mlir")):
        call()


def _items(folder: pathlib.Path, pattern: str, dtypes: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls, in an order that does not depend on what has been reached: a later process counts them too."""
    from torch_tpu.aot import calls

    samples = calls.from_samples([getattr(torch, name) for name in dtypes.split(",")] if dtypes else calls.DTYPES)
    made_up = (
        (name, functools.partial(_unless_reached, folder, row, call)) for row in rows() for name, call in calls.by_schema([row])
    )
    wanted = re.compile(pattern)
    items: Iterator[tuple[str, Callable[[], object]]] = itertools.chain(samples, calls.by_hand(), made_up)
    yield from ((name, call) for name, call in items if wanted.search(name))


def run_item(call: Callable[[], object]) -> str | None:
    """Runs one item; returns what it raised as text. A call that torch itself refuses is nothing to worry about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:  # samples fail in many ways, and none of them matters here
            return f"{type(error).__name__}: {error}"
    return None


def _work(folder: str, pattern: str, dtypes: str, start: int) -> None:
    from torch_tpu import aot

    with aot.collect(folder):
        for number, (name, call) in enumerate(_items(pathlib.Path(folder), pattern, dtypes)):
            if number < start:
                continue
            print(json.dumps({"number": number, "name": name}), flush=True)
            error = run_item(call)
            if error:
                print(json.dumps({"number": number, "name": name, "error": error[:300]}), flush=True)


class Sweep:
    """One run over the items whose names match ``pattern``. ``dtypes`` are those of the samples: "float64,complex64".

    ``errors`` maps an item to what it raised or how its process ended.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        pattern: str = "",
        dtypes: str = "",
        progress: Callable[[str], None] = lambda text: None,
    ):
        self.folder, self.pattern, self.dtypes, self.progress = folder, pattern, dtypes, progress
        self.errors: dict[str, str] = {}

    def _follow(self, process: subprocess.Popen[str]) -> dict[str, object]:
        """Reads a process's reports until it ends; returns the last, {} if there was none."""
        item: dict[str, object] = {}
        assert process.stdout is not None
        while True:
            ready, _, _ = select.select([process.stdout], [], [], TIME_LIMIT)
            if not ready:
                process.kill()
            line = process.stdout.readline()
            if not line:
                return item
            item = json.loads(line)
            if "error" in item:
                self.errors[str(item["name"])] = str(item["error"])
            elif int(str(item["number"])) % 100 == 0:
                self.progress(f"{item['number']} {item['name']}")

    def _run_from(self, start: int) -> int | None:
        """Runs the items from number ``start`` on; returns where to go on after a process died, None at the end."""
        command = [sys.executable, "-m", "torch_tpu.aot.sweep", str(self.folder), self.pattern, self.dtypes, str(start)]
        environment = {**os.environ, "TORCH_TPU_FALLBACK": "allow"}
        with tempfile.TemporaryFile("w+") as words:
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=words, text=True, bufsize=1, env=environment
            ) as process:
                last = self._follow(process)
            if process.returncode == 0:
                return None
            if not last:
                words.seek(0)
                raise RuntimeError(f"the sweep's process ended with {process.returncode}: {words.read()[-1000:]}")
        self.errors[str(last["name"])] = f"the process ended with {process.returncode}"
        return int(str(last["number"])) + 1

    def run(self) -> None:
        """Runs all items."""
        self.folder.mkdir(parents=True, exist_ok=True)
        start: int | None = 0
        while start is not None:
            start = self._run_from(start)


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
