"""``python -m torch_tpu cache``: what the compile cache holds, clearing it and filling it. docs/cache.md explains."""

import argparse
import json
import runpy
import sys
import time
from typing import Any

from torch_tpu import _C

_AGES = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def _size(size: int) -> str:
    unit, scale = next((row for row in _SIZES if size >= row[1]), _SIZES[-1])
    return f"{size / scale:.1f} {unit}" if scale > 1 else f"{size} {unit}"


def _age(seconds: float) -> str:
    unit, scale = next((row for row in _AGES if seconds >= row[1]), _AGES[-1])
    return f"{max(seconds, 0) / scale:.0f} {unit}"


def _seconds(text: str) -> float:
    """Reads an age: ``90`` or ``90s``, ``5min``, ``12h``, ``30d``."""
    for unit, scale in _AGES:
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * scale
    return float(text)


def _info(options: argparse.Namespace) -> int:
    unstarted = None
    try:
        _C._cache_probe()
    except RuntimeError as error:
        unstarted = str(error)  # no device: the folder can be looked at all the same
        _C._cache_configure()
    info = _C._cache_info()
    environment = json.loads(_C._info())["environment"]
    info["mode"] = environment["TORCH_TPU_CACHE_MODE"]
    info["remote"] = environment["TORCH_TPU_REMOTE_CACHE"]
    if options.json:
        print(json.dumps(info, indent=2))
        return 0
    print(f"folder:  {info['folder'] or 'none'}")
    if info["off_reason"]:
        print(f"off:     {info['off_reason']}")
    if unstarted:
        print(f"no device: {unstarted}")
    print(f"entries: {info['entries']}")
    print(f"size:    {_size(info['bytes'])} of at most {_size(info['limit'])}")
    print(f"hits:    {info['hits']} in all processes")
    print(f"mode:    {info['mode']}")
    print(f"remote:  {info['remote'] or 'none'}")
    return 0


def _ls(options: argparse.Namespace) -> int:
    _C._cache_configure()
    entries = sorted(_C._cache_entries(), key=lambda entry: (-entry["created"], entry["name"]))
    if options.json:
        print(json.dumps(entries, indent=2))
        return 0
    now = time.time()
    print(f"{'size':>10} {'age':>7} {'last use':>9} {'compile':>9}  program")
    for entry in entries:
        compile_ms = f"{entry['compile_seconds'] * 1e3:.0f} ms"
        created, used = _age(now - entry["created"]), _age(now - entry["used"])
        print(
            f"{_size(entry['bytes']):>10} {created:>7} {used:>9} {compile_ms:>9}  {entry['name'][:12]} {entry['description']}"
        )
    return 0


def _clear(options: argparse.Namespace) -> int:
    _C._cache_configure()
    entries, size = _C._cache_clear(options.older_than)
    print(f"removed {entries} entries, {_size(size)}")
    return 0


def _fetch_all() -> int:
    from torch_tpu import _remote_cache

    remote = _remote_cache.installed()
    if remote is None:
        print("warm without a script loads the remote cache: set TORCH_TPU_REMOTE_CACHE, or name a script", file=sys.stderr)
        return 2
    _C._cache_configure()
    if not _C._cache_info()["folder"]:
        print(f"there is no folder to load into: {_C._cache_info()['off_reason']}", file=sys.stderr)
        return 2
    known = {entry["name"] for entry in _C._cache_entries()}
    kept = refused = 0
    names = remote.names()
    for name in names:
        if name in known:
            continue
        entry = remote.fetch(name)
        if entry is not None and _C._cache_import(name, entry):
            kept += 1
        else:
            refused += 1
    print(f"{len(names)} entries at {remote.url}: {kept} loaded, {len(names) - kept - refused} known, {refused} not usable")
    return 1 if refused else 0


def _warm(options: argparse.Namespace) -> int:
    if options.script is None:
        return _fetch_all()
    sys.argv = [options.script, *options.arguments]
    try:
        runpy.run_path(options.script, run_name="__main__")
    finally:
        counts = _C._counters()
        loaded = counts["disk_hits"] + counts["remote_hits"]
        print(f"{counts['compiles']} programs compiled, {loaded} were in the cache", file=sys.stderr)
    return 0


def add_to(commands: Any) -> None:
    """Adds the command to an argparse subparsers object."""
    cache = commands.add_parser("cache", help="the compile cache on disk: info, ls, clear, warm")
    actions = cache.add_subparsers(required=True)
    info = actions.add_parser("info", help="folder, entries, bytes, limit, hits, and why it is off if it is")
    info.set_defaults(run=_info)
    ls = actions.add_parser("ls", help="the entries, newest first: size, age, last use, seconds of compilation, program")
    ls.set_defaults(run=_ls)
    for action in (info, ls):
        action.add_argument("--json", action="store_true", help="print JSON")
    clear = actions.add_parser("clear", help="removes the entries and the texts in misses/")
    clear.add_argument("--older-than", type=_seconds, metavar="AGE", help="only entries last used before: 90s, 12h, 30d")
    clear.set_defaults(run=_clear)
    warm = actions.add_parser(
        "warm", help="runs a script, whose programs are then in the cache; without one, loads all of the remote cache"
    )
    warm.add_argument("script", nargs="?", help="a Python file")
    warm.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    warm.set_defaults(run=_warm)
