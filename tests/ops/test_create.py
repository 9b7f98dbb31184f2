"""Tensors made from numbers, against CPU torch."""

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


def check(function, rtol=0, atol=0):
    """Same values, dtypes and shapes on CPU and TPU."""
    actual, expected = function(device="tpu"), function(device="cpu")
    assert actual.device.type == "tpu"
    torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


def check_error(function, match):
    with pytest.raises(Exception, match=match) as expected:
        function(device="cpu")
    with pytest.raises(type(expected.value), match=match):
        function(device="tpu")


# The CPU kernels form some values from the first of a SIMD vector, so that the last digit may differ.
ULPS = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", DTYPES)
def test_arange(dtype):
    for args in ((5,), (0,), (2, 9, 3), (100, 20, -7), (3, 3)):
        if args[-1] > 0 or dtype.is_signed:
            check(lambda **k: torch.arange(*args, dtype=dtype, **k))
    if dtype.is_floating_point:
        for args in ((0, 1, 0.1), (-3.7, 9.1, 0.37), (0.3, 30, 0.7)):
            check(lambda **k: torch.arange(*args, dtype=dtype, **k), rtol=ULPS[dtype], atol=ULPS[dtype])


def test_arange_edges():
    check(lambda **k: torch.arange(5, **k))
    check(lambda **k: torch.arange(0.5, 5, **k))
    check(lambda **k: torch.arange(0.5, 5, 1.5, dtype=torch.int64, **k))
    check(lambda **k: torch.arange(2**40, 2**40 + 3, **k))
    check(lambda device: torch.arange(6, out=torch.empty(2, 3, dtype=torch.int64, device=device)))
    check(lambda device: torch.arange(6, out=torch.empty(0, dtype=torch.int64, device=device)))
    check(lambda device: torch.arange(3, out=torch.empty(6, dtype=torch.int64, device=device)[::2]))
    check(lambda **k: torch.range(0, 1, 0.3, **k), rtol=1e-6)
    check(lambda **k: torch.range(1, 9, 2, dtype=torch.int32, **k))
    check_error(lambda **k: torch.arange(0, 1, 0, **k), match="step must be nonzero")
    check_error(lambda **k: torch.arange(0, 1, -1, **k), match="inconsistent with step sign")


def test_arange_compiles_once():
    def compiles(start):
        torch.arange(start, start + 4, device="tpu")
        return torch.tpu.counters()["compiles"] if hasattr(torch.tpu, "counters") else None

    before = compiles(17)
    if before is None:
        pytest.skip("torch.tpu.counters is not there yet")
    assert [compiles(start) for start in range(20, 30)] == [before] * 10


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_linspace(dtype):
    tolerance = ULPS.get(dtype, 1e-6 if dtype.is_complex else 0)
    for args in ((0, 1, 11), (3, 90, 7), (5, 2, 4), (1, 9, 1), (1, 9, 0), (2, 7, 2)):
        check(lambda **k: torch.linspace(*args, dtype=dtype, **k), rtol=tolerance, atol=tolerance)
    if dtype.is_floating_point or dtype.is_complex:
        check(lambda **k: torch.logspace(-1, 1.5, 8, dtype=dtype, **k), rtol=10 * tolerance, atol=tolerance)
        check(lambda **k: torch.logspace(0, 3, 4, base=2, dtype=dtype, **k), rtol=10 * tolerance)


def test_linspace_edges():
    check(lambda **k: torch.linspace(-3.7, 9.1, 101, **k), rtol=1e-6, atol=1e-6)
    check(lambda **k: torch.linspace(0, 1j, 3, **k))
    check(lambda device: torch.linspace(torch.tensor(1.0, device=device), 5, 3, device=device))
    check(lambda device: torch.linspace(0, 1, 5, out=torch.empty(0, device=device)))
    check(lambda **k: torch.logspace(0, 2, 5, dtype=torch.int32, **k))
    check_error(lambda **k: torch.linspace(0, 1, -1, **k), match="number of steps must be non-negative")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_eye(dtype):
    for args in ((3,), (2, 4), (4, 2), (0,), (3, 0)):
        check(lambda **k: torch.eye(*args, dtype=dtype, **k))


def test_eye_edges():
    check(lambda **k: torch.eye(3, **k))
    check(lambda device: torch.eye(3, out=torch.empty(0, device=device)))
    check_error(lambda **k: torch.eye(-1, **k), match="n must be greater or equal to 0, got -1")
    check_error(lambda **k: torch.eye(2, -1, **k), match="m must be greater or equal to 0, got -1")


def test_composites():
    for function in (
        lambda **k: torch.full((2, 3), 1.5, **k),
        lambda **k: torch.full((2,), 7, **k),
        lambda **k: torch.zeros(0, 3, **k),
        lambda **k: torch.ones(2, dtype=torch.bool, **k),
        lambda **k: torch.scalar_tensor(3.5, **k),
        lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
    ):
        check(function)
    for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window"):
        check(lambda **k: getattr(torch, name)(9, **k), rtol=1e-5, atol=1e-6)
    check(lambda **k: torch.kaiser_window(8, False, 3.0, **k), rtol=1e-5)
    check(lambda **k: torch.kaiser_window(1, dtype=torch.bfloat16, **k))
    check(lambda device: torch.vander(torch.arange(1.0, 4, device=device)))
    check(lambda device: torch.cartesian_prod(torch.arange(3, device=device), torch.arange(2, device=device)))
    check(lambda device: torch.meshgrid(torch.arange(3, device=device), torch.arange(2, device=device), indexing="ij")[1])
    check(lambda device: torch.kron(torch.eye(2, device=device), torch.ones(1, 2, device=device)))
