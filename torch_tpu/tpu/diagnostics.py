"""Where time goes: the log, reports on a call, and blocks in which compiles or host waits are forbidden.

An event is a compile, a hit of the compile cache, an execution, a transfer, a host wait or a fallback to the CPU. While nobody
listens they cost next to nothing. docs/diagnostics.md shows them at work.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch_tpu import _C


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
        lines.append(f"{self.bytes_to_device:,} bytes to devices, {self.bytes_from_device:,} bytes from devices")
        return "\n".join(lines)


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
        before = _counts()
        collector = _C._collect_events()
        begin_ns = time.perf_counter_ns()
        try:
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
