"""libtpu's compiler in child processes: texts in, verdicts out, each remembered in a file.

A child compiles many programs. When it dies or takes too long, that program's verdict says so and a new child goes on. A
verdict is "ok" or the compiler's message; it is kept under the hash of the text, libtpu's version and the topology.
``python -m torch_tpu.aot.compiler`` is the child.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

TOPOLOGIES = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1")
_GENERATIONS = {"v5e": "5", "v5p": "5", "v6e": "6", "tpu7x": "7"}
_ERROR = "// error: "


def libtpu() -> tuple[str, str] | None:
    """Path and version of the installed libtpu; None without one. Nothing is loaded."""
    spec = importlib.util.find_spec("libtpu")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(place, "libtpu.so")
        if os.path.isfile(path):
            return path, importlib.metadata.version("libtpu")
    return None


class Program:
    """A collected program: ``core/aot/aot.h`` describes its file."""

    def __init__(self, path: pathlib.Path):
        lines = path.read_text().splitlines(keepends=True)
        head = dict(line[3:].rstrip().split(": ", 1) for line in lines[:3])
        self.path, self.row, self.call = path, head["row"], head["call"]
        self.generations = head["generations"].split()
        self.text = "".join(lines[3:])
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()
        self.refusal = self.text[len(_ERROR) :].strip() if self.text.startswith(_ERROR) else None

    def is_for(self, topology: str) -> bool:
        """Is this what the call would be on a TPU of this topology?"""
        return _GENERATIONS.get(topology.partition(":")[0], "") in self.generations


class _Child:
    """One process of libtpu."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu.aot.compiler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            # No search for a TPU in Google's cloud, which would hang; and no lock against other processes that compile.
            env={**os.environ, "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
        )

    def ask(self, question: dict[str, str], limit: float) -> dict[str, Any]:
        """The answer, or one that says how the child ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            ready, _, _ = select.select([self.process.stdout], [], [], limit)
        except BrokenPipeError:
            ready = [self.process.stdout]
        if not ready:
            self.close()
            return {"verdict": f"timed out after {limit:g} s"}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        return {"verdict": f"crashed ({self.process.returncode}): {self._last_words()}"}

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines()]
        telling = [line for line in lines if "Check fail" in line or "F0000" in line or "LLVM ERROR" in line]
        return (telling or lines or [""])[-1][:400]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()

    def is_alive(self) -> bool:
        return self.process.poll() is None


class Compiler:
    """Verdicts of one libtpu. ``cache`` is a file of JSON lines; ``time_limit`` is in seconds for each program."""

    def __init__(self, cache: pathlib.Path, time_limit: float = 120.0):
        found = libtpu()
        if found is None:
            raise RuntimeError("libtpu is not installed: pip install libtpu")
        self.path, self.version = found
        self.cache, self.time_limit = cache, time_limit
        self.compiled = 0
        self._verdicts: dict[tuple[str, str], dict[str, Any]] = {}
        self._child: _Child | None = None
        if cache.exists():
            for line in cache.read_text().splitlines():
                entry = json.loads(line)
                if entry["libtpu"] == self.version:
                    self._verdicts[entry["text"], entry["topology"]] = entry

    def _compile(self, program: Program, topology: str) -> dict[str, Any]:
        if self._child is None or not self._child.is_alive():
            self.close()
            self._child = _Child()
            self._child.ask({}, self.time_limit)  # until torch is imported, which is not the program's time
        start = time.monotonic()
        answer = self._child.ask({"plugin": self.path, "topology": topology, "text": program.text}, self.time_limit)
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        self.compiled += 1
        return {
            "text": program.hash,
            "libtpu": self.version,
            "topology": topology,
            **answer,
            "seconds": round(time.monotonic() - start, 3),
        }

    def judge(self, program: Program, topology: str) -> str:
        """Returns "ok", or why the program does not compile.

        Raises:
            RuntimeError: libtpu cannot be asked at all, or does not know the topology.
        """
        if program.refusal is not None:
            return f"lowering: {program.refusal}"
        entry = self._verdicts.get((program.hash, topology))
        if entry is None:
            entry = self._verdicts[program.hash, topology] = self._compile(program, topology)
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return str(entry["verdict"])

    def judge_all(
        self, programs: Sequence[Program], topologies: Iterable[str], progress: Callable[[str], None] = lambda text: None
    ) -> list[tuple[Program, str, str]]:
        """(program, topology, verdict) for each program and topology that it is for, topology by topology."""
        pairs = [(program, topology) for topology in topologies for program in programs if program.is_for(topology)]
        found = []
        for number, (program, topology) in enumerate(pairs):
            if number % 100 == 0:
                progress(f"{topology}, {number} of {len(pairs)} programs, {self.compiled} compiled")
            found.append((program, topology, self.judge(program, topology)))
        return found

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


def _questions() -> "queue.SimpleQueue[dict[str, str]]":
    """What comes in, read on another thread: a compilation must not outlive whoever asked for it."""
    questions: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            questions.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return questions


def _answer(question: dict[str, str]) -> dict[str, Any]:
    from torch_tpu import _C

    if not question:
        return {}
    try:
        return {"verdict": "ok", **_C._aot_compile(question["plugin"], question["topology"], question["text"])}
    except (RuntimeError, NotImplementedError) as error:
        # What is not the compiler's is no verdict: no such topology, no such file.
        return {"verdict" if "PJRT_Compile: " in str(error) else "fault": str(error)}


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libtpu prints to both
    questions = _questions()
    while True:
        answers.write(json.dumps(_answer(questions.get())) + "\n")


if __name__ == "__main__":
    _serve()
