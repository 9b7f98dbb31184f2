"""The line that says that a compilation takes long: tqdm's on a terminal, plain lines elsewhere."""

import sys
from typing import Any

_bars: dict[int, Any] = {}  # by compilation
_told: set[int] = set()


def _bar(program: str) -> Any:
    """A line of tqdm, or None without tqdm or without a terminal."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(desc=f"compiling {program}", bar_format="{desc}", leave=False, file=sys.stderr)


def report(compilation: int, program: str, seconds: float, done: bool) -> None:
    """Says how long a compilation has been running.

    The core calls it after two seconds, each second after that, and at the end.

    Args:
        compilation: tells compilations apart.
        program: the op with its operands.
        seconds: since the compiler got it.
        done: it has ended.
    """
    if compilation not in _told:
        _told.add(compilation)
        bar = _bar(program)
        if bar is not None:
            _bars[compilation] = bar
        else:
            print(f"torch_tpu: compiling {program} for {seconds:.0f} s so far", file=sys.stderr, flush=True)
    bar = _bars.get(compilation)
    if bar is not None:
        bar.set_description_str(f"compiling {program}: {seconds:.0f} s")
    if not done:
        return
    _told.discard(compilation)
    if bar is not None:
        _bars.pop(compilation).close()
    else:
        print(f"torch_tpu: compiled {program} in {seconds:.1f} s", file=sys.stderr, flush=True)
