"""torch.fft, stft and istft, against CPU torch."""

import pytest
import torch

REAL = torch.randn(3, 4, 5, 6, 7)
COMPLEX = torch.randn(3, 4, 5, 6, dtype=torch.complex64)
NORMS = [None, "ortho", "forward"]


pytestmark = pytest.mark.usefixtures("no_fallback")


def check(function, *args):
    actual, expected = function(*(x.detach().to("tpu") for x in args)), function(*args)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(y)).sum().backward()
    return x.grad


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_dim(name, norm):
    function = getattr(torch.fft, name)
    x = REAL[0, 0] if name in ("fft", "rfft", "ihfft") else COMPLEX[0]
    for options in ({}, {"dim": 0}, {"n": 9, "dim": 1}, {"n": 4}):
        check(lambda x, options=options: function(x, norm=norm, **options), x)
        check(lambda x, options=options: gradient(lambda x: function(x, norm=norm, **options), x), x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_many_dims(name, norm):
    function = getattr(torch.fft, name)
    x = REAL if name in ("fftn", "rfftn", "ihfftn") else COMPLEX
    for options in ({}, {"dim": (2, 0)}, {"s": (4, 6), "dim": (1, 3)}):
        check(lambda x, options=options: function(x, norm=norm, **options), x)
    check(lambda x: gradient(lambda x: function(x, norm=norm, dim=(0, -1)), x), x)


def test_layouts_and_dtypes():
    check(lambda x: torch.fft.fft(x.transpose(0, 2)), REAL[0])
    check(lambda x: torch.fft.rfft2(x[1:, ::2]), REAL[0])
    check(lambda x: torch.fft.fft(x.conj()), COMPLEX)
    check(torch.fft.fft2, REAL.double())
    check(torch.fft.irfftn, COMPLEX.to(torch.complex128))
    check(torch.fft.fft, torch.arange(12).reshape(3, 4))
    check(lambda x: torch.fft.fft(x, n=1), torch.randn(3, 4))


def test_empty():
    # CPU torch raises an error of its library here; CUDA gives empty results.
    assert torch.fft.fft(torch.empty(0, 4, device="tpu")).shape == (0, 4)
    assert torch.fft.rfft(torch.empty(0, 4, device="tpu")).shape == (0, 3)
    assert torch.fft.irfft(torch.empty(0, 4, dtype=torch.complex64, device="tpu")).shape == (0, 6)


def test_signals():
    window, wave = torch.hann_window(16), torch.randn(2, 100)
    check(lambda x, w: torch.stft(x, 16, window=w, return_complex=True), wave, window)
    spectrum = torch.stft(wave, 16, window=window, return_complex=True)
    check(lambda x, w: torch.istft(x, 16, window=w, length=100), spectrum, window)
    check(torch.fft.fftshift, REAL)
    check(lambda x: torch.fft.fftfreq(8, device=x.device), wave)


def test_infinite_elements_stay_apart():
    x = torch.zeros(2, 4)
    x[0, 0] = torch.inf
    check(lambda x: torch.view_as_real(torch.fft.ifft(x, norm="ortho"))[1], x.to(torch.complex64))


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_errors(device):
    x = torch.randn(3, 4, device=device)
    with pytest.raises(RuntimeError, match=r"Invalid number of data points \(0\) specified"):
        torch.fft.fft(x, n=0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.fft.fft(x, dim=2)
    with pytest.raises(RuntimeError, match="rfft expects a real input tensor"):
        torch.fft.rfft(x.to(torch.complex64))
