"""Draws a trace of torch.profiler as an SVG: ``python build_tools/trace_svg.py trace.json docs/trace.svg [--width 1200]``.

Lanes are the trace's threads and the device's rows, from top to bottom as Perfetto has them; nested events stand under what
holds them. Made for the picture in docs/diagnostics.md.
"""

import argparse
import html
import json
import pathlib
from typing import Any

LINE, MARGIN, LABELS = 16, 8, 110
COLOURS = {
    "user_annotation": "#c9b3e6",
    "cpu_op": "#a9cdf0",
    "kernel": "#9fd6a5",
    "gpu_memcpy": "#f2c58e",
    "privateuse1_runtime": "#ef9a9a",
}

Event = dict[str, Any]


def lanes_of(trace: list[Event]) -> list[tuple[str, list[Event]]]:
    """Name and events of each lane that has any, those of threads first."""
    names: dict[tuple[Any, Any], str] = {}
    processes: dict[Any, str] = {}
    lanes: dict[tuple[Any, Any], list[Event]] = {}
    for event in trace:
        lane = (event.get("pid"), event.get("tid"))
        if event.get("ph") == "M" and event["name"] == "thread_name":
            names[lane] = names.get(lane, "") + event["args"]["name"]  # a thread may be named twice
        elif event.get("ph") == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event.get("ph") == "X" and event.get("cat") in COLOURS:
            lanes.setdefault(lane, []).append(event)

    def name(lane: tuple[Any, Any]) -> str:
        text = names.get(lane, "")
        return "autograd" if "autograd" in text else "python" if "thread" in text else f"{processes.get(lane[0], '')} {text}"

    def order(lane: tuple[Any, Any]) -> tuple[bool, float]:
        return str(processes.get(lane[0], "")).startswith("tpu"), min(event["ts"] for event in lanes[lane])

    return [(name(lane), sorted(lanes[lane], key=lambda e: (e["ts"], -e["dur"]))) for lane in sorted(lanes, key=order)]


def draw(trace: list[Event], width: int) -> str:
    """The picture as SVG text."""
    lanes = lanes_of(trace)
    begin = min(event["ts"] for _, events in lanes for event in events)
    end = max(event["ts"] + event["dur"] for _, events in lanes for event in events)
    scale = (width - LABELS - 2 * MARGIN) / (end - begin)
    parts, top = [], MARGIN
    for name, events in lanes:
        open_until: list[float] = []  # ends of the events that the next may be nested in
        depth = 0
        for event in events:
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            left, size = LABELS + MARGIN + (event["ts"] - begin) * scale, max(event["dur"] * scale, 0.7)
            y, label = top + len(open_until) * LINE, html.escape(event["name"])
            parts.append(f"<g><title>{label}: {event['dur']:.0f} µs</title>")
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{size:.1f}" height="{LINE - 2}" fill="{COLOURS[event["cat"]]}"/>'
            )
            if size > 40:
                shown = html.escape(event["name"][: int(size / 6.2)])
                parts.append(f'<text x="{left + 3:.1f}" y="{y + 10}">{shown}</text>')
            parts.append("</g>")
            open_until.append(event["ts"] + event["dur"])
            depth = max(depth, len(open_until))
        parts.append(f'<text x="{MARGIN}" y="{top + 10}">{html.escape(name)}</text>')
        top += depth * LINE + MARGIN
    milliseconds = (end - begin) / 1000
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 14}" font-family="sans-serif" font-size="10">'
    foot = f'<text x="{LABELS + MARGIN}" y="{top + 8}">{milliseconds:.1f} ms in all</text>'
    return "\n".join([head, f'<rect width="{width}" height="{top + 14}" fill="white"/>', *parts, foot, "</svg>", ""])


def main() -> None:
    """Reads the trace, writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=1200)
    options = parser.parse_args()
    options.picture.write_text(draw(json.loads(options.trace.read_text())["traceEvents"], options.width))


if __name__ == "__main__":
    main()
