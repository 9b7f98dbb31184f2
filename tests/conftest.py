"""Shared set-up: a fixed seed for every test, and random programs that are the same on every run."""

import os

# Before torch: a user's cache is no business of the tests, and what it holds must not change their counts.
os.environ["TORCH_TPU_CACHE_DIR"] = "off"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
os.environ["TORCH_TPU_CACHE_MODE"] = os.environ["TORCH_TPU_REMOTE_CACHE"] = ""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    yield
    torch.tpu.synchronize()  # a failure that nobody waited for belongs to the test that caused it


@pytest.fixture
def no_fallback(monkeypatch):
    """Nothing may run on the CPU, gradients included."""
    monkeypatch.setattr(torch.tpu, "fallback", "error")


@pytest.fixture
def fresh_dynamo():
    """No compiled function of an earlier test, and none left for later ones."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def full_float32():
    """Products of float32 in full, as the CPU multiplies."""
    with torch.tpu.precision("highest"):
        yield
