"""Where time goes: the log, reports on a call, and blocks in which compiles or host waits are forbidden.

An event is a compile, a hit of the compile cache, an execution, a transfer, a host wait or a fallback to the CPU. While nobody
listens they cost next to nothing. docs/diagnostics.md shows them at work.
"""

import contextlib
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch_tpu import _C, _graph_events
from torch_tpu._graph_events import ExactSizes, HostPart


class RecompilationWarning(UserWarning):
    """A line of the program has needed many programs for one op; given once for each line and op."""


def set_log(kinds: str | Iterable[str] | None) -> None:
    """Chooses the events that are written to stderr, a line each with the Python line, the milliseconds and what it was.

    Args:
        kinds: words out of ``compile``, ``cache``, ``execute``, ``transfer``, ``wait``, ``fallback`` or ``all``, in a list or
            in one string with commas; None or an empty string for silence. ``TORCH_TPU_LOG`` gives the first value.

    Raises:
        ValueError: a word is none of these.
    """
    _C._set_log("" if kinds is None else kinds if isinstance(kinds, str) else ",".join(kinds))


class Event(NamedTuple):
    """Something that took time."""

    kind: str  #: "compile", "cache", "transfer", "wait" or "fallback"
    name: str  #: the op, the program, or the kind of wait or transfer
    operands: str | None  #: dtypes and sizes, "Float [2, 3], Float []"
    detail: str | None  #: the reason of a compile, the tier of a cache hit
    site: str | None  #: "file.py:12"; None on threads without Python, as autograd's
    fallback: str | None  #: the op during whose run on the CPU it happened
    begin_ns: int  #: of ``time.perf_counter_ns``
    end_ns: int
    bytes: int
    thread: int  #: the system's number of the thread

    @property
    def milliseconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.begin_ns) / 1e6

    @property
    def what(self) -> str:
        """The name with its operands."""
        return f"{self.name}({self.operands})" if self.operands else self.name


class Capture(NamedTuple):
    """A function that torch.compile captured."""

    name: str  #: of the function
    site: str  #: "file.py:12", where it begins
    reason: str | None  #: the guard that failed, of one that was captured before; None for the first time
    milliseconds: float  #: with what the backend took
    calls: int  #: in its graph


class GraphBreak(NamedTuple):
    """Where torch.compile ended a graph early."""

    site: str | None  #: "file.py:12"
    reason: str


class _Dynamo:
    """What Dynamo kept between two moments: it is asked before and after the call, and does nothing more for that."""

    def __init__(self) -> None:
        self._breaks = len(self._utils().graph_break_reasons) if self._utils() else 0
        metrics = self._utils().get_compilation_metrics() if self._utils() else []
        self._last = metrics[-1] if metrics else None

    @staticmethod
    def _utils() -> Any:
        return sys.modules.get("torch._dynamo.utils")  # absent until somebody compiles

    def captures(self) -> list[Capture]:
        """Functions captured since, the last 64 at most, which is what Dynamo remembers."""
        found = []
        for metrics in reversed(self._utils().get_compilation_metrics() if self._utils() else []):
            if metrics is self._last:
                break
            if metrics.has_guarded_code and metrics.co_filename:
                site = f"{metrics.co_filename}:{metrics.co_firstlineno}"
                milliseconds = 1e3 * (metrics.entire_frame_compile_time_s or 0)
                reason = metrics.recompile_reason
                found.append(Capture(metrics.co_name or "?", site, reason, milliseconds, metrics.graph_op_count or 0))
        return found[::-1]

    def graph_breaks(self) -> list[GraphBreak]:
        """Breaks since; Dynamo notes one again each time that it starts a function over."""
        reasons = self._utils().graph_break_reasons if self._utils() else []
        found: dict[GraphBreak, None] = {}
        for each in reasons[self._breaks :] if len(reasons) >= self._breaks else reasons:
            frame = each.user_stack[-1] if each.user_stack else None
            found[GraphBreak(f"{frame.filename}:{frame.lineno}" if frame else None, each.reason)] = None
        return list(found)


@contextlib.contextmanager
def _graph_notes() -> Iterator[list[HostPart | ExactSizes]]:
    """What compiled graphs tell meanwhile."""
    notes: list[HostPart | ExactSizes] = []
    _graph_events.listeners.append(notes.append)
    try:
        yield notes
    finally:
        _graph_events.listeners.remove(notes.append)


# What a moment counts as when several things go on: a fallback is all that happens in it.
_SHARES = ("fallback", "compile", "wait", "transfer")
_SHARE_NAMES = {"fallback": "CPU fallback", "rest": "dispatch and the rest"}


def _time_shares(events: list[Event], begin_ns: int, end_ns: int) -> dict[str, float]:
    """Milliseconds of the time from begin to end by what went on, each moment counted once; the rest is "rest"."""
    edges = []
    for event in events:
        if event.kind in _SHARES:
            edges += [(max(event.begin_ns, begin_ns), event.kind, 1), (min(event.end_ns, end_ns), event.kind, -1)]
    shares = dict.fromkeys((*_SHARES, "rest"), 0.0)
    running = dict.fromkeys(_SHARES, 0)
    at = begin_ns
    for edge, kind, change in [*sorted(edges, key=lambda edge: edge[0]), (end_ns, _SHARES[0], 0)]:
        shares[next((share for share in _SHARES if running[share]), "rest")] += (edge - at) / 1e6
        at = edge
        running[kind] += change
    return shares


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _line(event: Event) -> str:
    return f"  {event.milliseconds:9.2f} ms  {event.site or '(no Python line)'}  {event.what}"


def _section(title: str, lines: list[str], most: int = 20) -> list[str]:
    more = [f"  ... and {len(lines) - most} more"] if len(lines) > most else []
    return [title, *lines[:most], *more] if lines else [title]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a call did; ``str()`` is meant for reading."""

    #: What the call returned.
    result: Any = dataclasses.field(repr=False)
    #: Programs run on devices.
    programs: int
    #: Programs given to the compiler, each with its reason as ``detail``.
    compiles: list[Event]
    #: Programs found compiled, with the tier as ``detail``.
    cache_hits: list[Event]
    #: Times the host asked for a value or for the end of the device's work, whether it was there already or not.
    waits: list[Event]
    #: Ops that ran on the CPU.
    fallbacks: list[Event]
    #: Copies from and to the host and between devices.
    transfers: list[Event]
    bytes_to_device: int
    bytes_from_device: int
    #: Of the call, on the clock.
    milliseconds: float
    #: Where they went: "fallback", "compile", "wait", "transfer", "rest". Each moment counts once, the first of these first.
    time: dict[str, float]
    #: Functions that torch.compile captured during the call.
    captures: list[Capture]
    #: Where it broke their graphs.
    graph_breaks: list[GraphBreak]
    #: Ops of compiled graphs that ran between programs, once for each time.
    host_parts: list[HostPart]
    #: Compiled graphs whose sizes change and that have a program for each size, once for each call.
    exact_sizes: list[ExactSizes]

    def __str__(self) -> str:
        """Returns the text."""
        lines = [f"{self.milliseconds:.2f} ms, {_count(self.programs, 'program', 'programs')} run"]
        for share, milliseconds in self.time.items():
            lines.append(f"  {milliseconds:9.2f} ms  {_SHARE_NAMES.get(share, share)}")
        compiles = [line for event in self.compiles for line in (_line(event), f"{'':16}{event.detail}")]
        hits = _count(len(self.cache_hits), "hit", "hits")
        lines += _section(f"{_count(len(self.compiles), 'compile', 'compiles')}, {hits} of the compile cache", compiles, 40)
        lines += _section(_count(len(self.waits), "host wait", "host waits"), [_line(event) for event in self.waits])
        lines += _section(_count(len(self.fallbacks), "op", "ops") + " on the CPU", [_line(event) for event in self.fallbacks])
        lines += self._compiled_lines()
        lines.append(f"{self.bytes_to_device:,} bytes to devices, {self.bytes_from_device:,} bytes from devices")
        return "\n".join(lines)

    def _compiled_lines(self) -> list[str]:
        """What concerns torch.compile, if anything does."""
        lines = []
        if self.captures:
            captures = [line for each in self.captures for line in _capture_lines(each)]
            lines += _section(f"{_count(len(self.captures), 'function', 'functions')} captured by torch.compile", captures, 40)
        if self.graph_breaks:
            breaks = [line for each in self.graph_breaks for line in _break_lines(each)]
            lines += _section(_count(len(self.graph_breaks), "graph break", "graph breaks"), breaks, 40)
        if self.host_parts:
            times = Counter(self.host_parts)
            parts = [f"  {each.site or '(no Python line)'}  {each.op}: {each.reason}" for each in times]
            parts = [
                f"{line} ({count} times)" if count > 1 else line for line, count in zip(parts, times.values(), strict=True)
            ]
            lines += _section(f"{_count(len(self.host_parts), 'op', 'ops')} of compiled graphs between programs", parts)
        if self.exact_sizes:
            graphs = [f"  {each.graph}: {each.reason}" for each in dict.fromkeys(self.exact_sizes)]
            lines += _section(f"{_count(len(graphs), 'graph', 'graphs')} with a program for each size", graphs)
        return lines


def _capture_lines(capture: Capture) -> list[str]:
    """Its line, and the reason below."""
    reason = (capture.reason or "first time").splitlines()[0]
    return [
        f"  {capture.milliseconds:9.2f} ms  {capture.site}  {capture.name}, {_count(capture.calls, 'call', 'calls')}",
        f"{'':16}{reason}",
    ]


def _break_lines(found: GraphBreak) -> list[str]:
    """Its line, and Dynamo's explanation below."""
    first, *more = found.reason.splitlines()
    explained = [line.partition("Explanation:")[2].strip() for line in more if "Explanation:" in line]
    return [f"  {found.site or '(no Python line)'}  {first}", *(f"{'':16}{line}" for line in explained[:1])]


def _counts() -> dict[str, int]:
    counters = _C._counters()
    return {name: counters[name] for name in ("executions", "bytes_to_device", "bytes_from_device")}


def explain(fn: Callable[..., Any]) -> Callable[..., Report]:
    """Returns a function that calls ``fn`` and returns a ``Report`` on what that took.

    ``torch.tpu.explain(step)(batch)`` runs ``step(batch)`` once; its result is the report's ``result``. What is deferred at its
    end, because of ``EagerMode.DEFER_AND_FUSE`` or because a program is still being compiled, is started as a part of it; what
    was deferred before is started before. The device may still be at work when the report comes: waiting for it is no part of
    the call unless the call does it. Events of other threads count too.
    """

    def explained(*args: Any, **kwargs: Any) -> Report:
        _C._run_deferred()
        before, dynamo = _counts(), _Dynamo()
        collector = _C._collect_events()
        begin_ns = time.perf_counter_ns()
        try:
            with _graph_notes() as notes:
                result = fn(*args, **kwargs)
                _C._run_deferred()
            end_ns = time.perf_counter_ns()
        finally:
            events = sorted((Event(*fields) for fields in _C._stop_events(collector)), key=lambda event: event.begin_ns)
        after = _counts()
        kinds: dict[str, list[Event]] = {kind: [] for kind in ("compile", "cache", "wait", "fallback", "transfer")}
        for event in events:
            kinds[event.kind].append(event)
        return Report(
            result=result,
            programs=after["executions"] - before["executions"],
            compiles=kinds["compile"],
            cache_hits=kinds["cache"],
            waits=kinds["wait"],
            fallbacks=kinds["fallback"],
            transfers=kinds["transfer"],
            bytes_to_device=after["bytes_to_device"] - before["bytes_to_device"],
            bytes_from_device=after["bytes_from_device"] - before["bytes_from_device"],
            milliseconds=(end_ns - begin_ns) / 1e6,
            time=_time_shares(events, begin_ns, end_ns),
            captures=dynamo.captures(),
            graph_breaks=dynamo.graph_breaks(),
            host_parts=[note for note in notes if isinstance(note, HostPart)],
            exact_sizes=[note for note in notes if isinstance(note, ExactSizes)],
        )

    return explained


class _Forbid(contextlib.ContextDecorator):
    _kind: str

    def __enter__(self) -> "_Forbid":
        if self._kind == "compile":
            _C._run_deferred()  # calls made before are none of the block's
        _C._forbid(self._kind, True)
        return self

    def __exit__(self, *exc: object) -> None:
        _C._forbid(self._kind, False)


class forbid_compiles(_Forbid):  # noqa: N801  (named like torch.no_grad)
    """Context manager or decorator: a program that is not compiled yet raises a RuntimeError instead of being compiled.

    Calls made before it are started first. The error names the op or program, why it is new, and the line. Nothing has changed
    then: outside, the same call works. It holds for the process, since autograd has threads of its own. Hits of the compile
    cache are fine.
    """

    _kind = "compile"


class forbid_waits(_Forbid):  # noqa: N801
    """Context manager or decorator: what makes the host wait for a device raises a RuntimeError instead.

    That is reading values (``.item()``, ``.cpu()``, ``print``, ``if tensor:``), ``synchronize``, and ops whose results are as
    long as the data says (``nonzero``). It holds whether or not the value happens to be there, and for the process. The waits
    of ``EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING``, which belong to the mode, go on.
    """

    _kind = "wait"
