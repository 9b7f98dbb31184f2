"""The examples, run as a user runs them."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error:.*is not lowered for TPU", str(ROOT / "examples" / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def test_digits_learns_and_reports():
    output = run_example("digits.py", "--epochs", "4")
    last = output.strip().splitlines()[-1]
    counts = r"compiles \d+ \| cache hits \d+ \| fallbacks 0"
    pattern = rf"test accuracy (0\.\d{{3}}|1\.000) \| {counts} \| first step [\d.]+ s \| step [\d.]+ s"
    match = re.fullmatch(pattern, last)
    assert match, last
    assert float(match[1]) >= 0.97
    assert re.search(r"checkpoint loaded on the CPU: test accuracy (0\.9[6-9]\d|1\.000)", output)


def test_digits_in_debug_mode_at_highest_precision():
    output = run_example("digits.py", "--epochs", "1", "--mode", "debug", "--precision", "highest")
    assert "eager mode debug, precision highest" in output


def test_mlp_learns():
    output = run_example("mlp.py", "--steps", "40")
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", output).groups())
    assert last < 0.5 * first


def test_transformer_learns_and_writes():
    output = run_example("transformer.py", "--steps", "40", "--sample", "20")
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", output).groups())
    assert last < 0.8 * first
    assert len(output.split("--- sample ---\n")[1].rstrip("\n")) >= len("A tensor ")
