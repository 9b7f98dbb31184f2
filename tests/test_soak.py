"""Hundreds of training steps leave nothing behind; ``python bench/soak.py`` does 10,000."""

import pathlib
import subprocess
import sys

import pytest

SOAK = pathlib.Path(__file__).resolve().parent.parent / "bench" / "soak.py"


@pytest.mark.parametrize("mode", ["strict", "deferred"])
def test_training_is_flat(mode):
    """In a process of its own, so that its memory is that of the steps."""
    command = [sys.executable, str(SOAK), "--steps", "400", "--mode", mode]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
