"""Command line: ``python -m torch_tpu info``, ``ops``, ``cache`` and ``tpu-compile``."""

import argparse
import collections
import json
import sys
from typing import Any

import torch

import torch_tpu
from torch_tpu import _C, _cache_command, _operators
from torch_tpu.aot import command


def _memory_text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _print_info(info: dict[str, Any]) -> None:
    print(f"torch_tpu {torch_tpu.__version__}, torch {torch.__version__}")
    print(f"TPU attached to this machine: {'yes' if info.get('tpu_attached') else 'no'}")
    if info["error"]:
        print(f"no device: {info['error']}")
    if "plugin" in info:
        print(f"plugin: {info['plugin']}")
        print(f"  PJRT C API {info['pjrt_api']}, platform {info['platform']} ({info['platform_version'].strip()})")
    source = next((probe["source"] for probe in info.get("probes", []) if not probe["reason"]), "none")
    for device in info.get("devices", []):
        plugin = f"plugin {source}, PJRT {info['pjrt_api']}"
        print(f"tpu:{device['index']}  {device['name']}, {plugin}, {_memory_text(device['memory'])}")
    print("looked for a plugin in:")
    for probe in info.get("probes", []):
        outcome = probe["reason"] or "taken"
        print(f"  {probe['source']}: {probe['path'] or '-'}: {outcome}")
    print("environment:")
    for name, value in info.get("environment", {}).items():
        print(f"  {name}={value}")


def _info(options: argparse.Namespace) -> int:
    info = json.loads(_C._info())
    if options.json:
        print(json.dumps(info, indent=2))
    else:
        _print_info(info)
    return 1 if info["error"] else 0


def _ops(options: argparse.Namespace) -> int:
    if options.markdown:
        print(_operators.markdown(), end="")
        return 0
    ops = {name: how for name, how, _ in sorted(_C._ops())}
    if options.json:
        print(json.dumps(ops, indent=2))
        return 0
    for name, how in ops.items():
        print(f"{how:<10} {name}")
    counts = collections.Counter(ops.values())
    print(", ".join(f"{count} {how}" for how, count in counts.most_common()), file=sys.stderr)
    return 0


def main() -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description="Looks into torch_tpu.")
    commands = parser.add_subparsers(required=True)
    info = commands.add_parser("info", help="devices, plugin, versions, what was probed and why it failed")
    info.set_defaults(run=_info)
    ops = commands.add_parser(
        "ops",
        help="every aten overload: lowered (one program), composite (several lowered ops), decomposed (torch's "
        "decomposition as one program), CPU (counted fallback), none (no kernel in CPU torch either)",
    )
    ops.set_defaults(run=_ops)
    ops.add_argument("--markdown", action="store_true", help="print the page docs/operators.md")
    for subcommand in (info, ops):
        subcommand.add_argument("--json", action="store_true", help="print JSON")
    _cache_command.add_to(commands)
    command.add_to(commands)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
