"""Special functions: values against scipy and float64 CPU torch, edges and dtypes against CPU torch, gradients."""

import importlib.util
import math
import pathlib
import re
import sys

import mpmath
import numpy
import pytest
import scipy.special
import torch

INF, NAN = math.inf, math.nan
ROOT = pathlib.Path(__file__).parents[2]
EDGES = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN]


@pytest.fixture(autouse=True)
def _on_the_device():
    torch.tpu.fallback = "error"
    yield
    torch.tpu.fallback = "warn"


def run(function, *args, **kwargs):
    """The value on the device, brought back."""
    return function(*(a.to("tpu") if isinstance(a, torch.Tensor) else a for a in args), **kwargs).cpu()


def same_kind(actual, expected):
    """Infinities, NaN and signs of infinity where they are expected."""
    finite = expected.isfinite()
    torch.testing.assert_close(actual[~finite], expected[~finite], equal_nan=True)
    assert actual[finite].isfinite().all()


def check_values(actual, expected, scale, epsilons):
    """Within `epsilons` roundings of the float64 values `expected`, beside their size or `scale` if that is more."""
    unit = torch.finfo(actual.dtype).eps * expected.abs().clamp_min(scale)
    error = ((actual.double() - expected).abs() / unit)[expected.isfinite()]
    assert error.max() <= epsilons, (error.max(), error.argmax())


# --- the tables ------------------------------------------------------------------------------------------------------------


def load(path, name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_series_tables():
    """Each table of series_tables.c is the function that build_tools/series.py says it is."""
    series = load("build_tools/series.py", "series")
    text = (ROOT / "core" / "op" / "series_tables.c").read_text()
    rows = re.findall(r"tt_series tt_series_(\w+) = \{(.*?)\{(.*?)\}\};", text, re.DOTALL)
    assert [name for name, _, _ in rows] == list(series.SERIES)
    for name, head, body in rows:
        low, high, wide, narrow = (float(n) for n in head.split(",")[:4])
        terms = [mpmath.mpf(t.strip()) for t in body.split(",") if t.strip()]
        function, start, end = series.SERIES[name]
        assert (low, high) == (float(start), float(end))
        assert wide == len(terms) >= narrow
        for fraction in (0.013, 0.31, 0.52, 0.77, 0.991):
            t = start + (end - start) * mpmath.mpf(fraction)
            value = mpmath.fsum(c * mpmath.chebyt(k, 2 * (t - start) / (end - start) - 1) for k, c in enumerate(terms))
            bound = 1e-8 if name == "ndtri_tail" else 4e-16
            assert abs(value - function(t)) < bound * max(1, abs(function(t))), name
    rows = re.findall(r"tt_polynomial tt_polynomial_(\w+) = \{(.*?)\{(.*?)\}\};", text, re.DOTALL)
    assert [name for name, _, _ in rows] == list(series.POLYNOMIALS)
    for name, head, body in rows:
        terms = [mpmath.mpf(t.strip()) for t in body.split(",") if t.strip()]
        function, start, end, center, bits = series.POLYNOMIALS[name]
        assert [float(n) for n in head.split(",")[:2]] == [float(center), len(terms)]
        for fraction in (0.013, 0.31, 0.52, 0.77, 0.991):
            t = start + (end - start) * mpmath.mpf(fraction)
            assert abs(mpmath.polyval(terms[::-1], t - center) - function(t)) < 2.0**-bits, name


# --- Bessel functions ------------------------------------------------------------------------------------------------------


def airy_ai(x):
    """scipy's is wrong in the last two digits around -2."""
    return numpy.array([float(mpmath.airyai(float(v))) for v in x])


# name: (reference, smallest and greatest argument, size beside which errors count where the function has zeros)
BESSEL = {
    "bessel_j0": (scipy.special.j0, -60, 60, 0.1),
    "bessel_j1": (scipy.special.j1, -60, 60, 0.1),
    "bessel_y0": (scipy.special.y0, 0, 60, 0.1),
    "bessel_y1": (scipy.special.y1, 0, 60, 0.1),
    "modified_bessel_i0": (scipy.special.i0, -80, 80, 0),
    "modified_bessel_i1": (scipy.special.i1, -80, 80, 0),
    "modified_bessel_k0": (scipy.special.k0, 0, 80, 0),
    "modified_bessel_k1": (scipy.special.k1, 0, 80, 0),
    "scaled_modified_bessel_k0": (scipy.special.k0e, 0, 1000, 0),
    "scaled_modified_bessel_k1": (scipy.special.k1e, 0, 1000, 0),
    "spherical_bessel_j0": (lambda x: scipy.special.spherical_jn(0, x), -60, 60, 0.02),
    "airy_ai": (airy_ai, -20, 15, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BESSEL)
def test_bessel(name, dtype):
    reference, low, high, scale = BESSEL[name]
    x = torch.cat([torch.linspace(low, high, 4001), torch.linspace(max(low, -6), 6, 4001)]).to(dtype)
    expected = torch.from_numpy(reference(x.double().numpy()))
    actual = run(getattr(torch.special, name), x)
    assert actual.dtype == dtype
    same_kind(actual.double(), expected)
    if name == "airy_ai":  # the phase is rounded to begin with
        check_values(actual[x < 0], expected[x < 0], 0.3, 60)
        check_values(actual[x >= 0], expected[x >= 0], 0, 80)
    else:
        check_values(actual, expected, scale, 60)


@pytest.mark.parametrize("name", BESSEL)
def test_bessel_edges(name):
    function = getattr(torch.special, name)
    x = torch.tensor([*EDGES, 1e-20, -1e-20, 1e4, 2.0, 5.0, 8.0])
    torch.testing.assert_close(run(function, x), function(x), equal_nan=True, rtol=1e-5, atol=1e-5)
    for integers in (torch.arange(-3, 4), torch.tensor([True, False])):
        torch.testing.assert_close(run(function, integers), function(integers), equal_nan=True, rtol=1e-5, atol=1e-6)
    narrow = run(function, torch.tensor([0.5, 3.0], dtype=torch.bfloat16))
    torch.testing.assert_close(narrow, function(torch.tensor([0.5, 3.0])).bfloat16())


def test_bessel_near_its_zeros():
    """J0 and J1 are right to a few digits beside their first zeros, which are no floats."""
    for name, zeros in (("bessel_j0", [2.404825557695773]), ("bessel_j1", [3.8317059702075125])):
        x = torch.tensor(zeros, dtype=torch.float32)
        expected = torch.from_numpy(BESSEL[name][0](x.double().numpy()))
        check_values(run(getattr(torch.special, name), x), expected, 0, 8)


# --- orthogonal polynomials ------------------------------------------------------------------------------------------------

CHEBYSHEV = [s + "chebyshev_polynomial_" + k for s in ("", "shifted_") for k in "tuvw"]
ORTHOGONAL = [*CHEBYSHEV, "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ORTHOGONAL)
def test_orthogonal_polynomials(name, dtype):
    """Every degree and argument in one call, as torch's CPU kernels give them."""
    function = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-2, 2, 81), torch.tensor([*EDGES[:-1], 1 - 6e-8, 1e-9, 0.5, 100.0, -1e10])]).to(dtype)[
        :, None
    ]
    n = torch.tensor([-3, -0.5, *range(13), 11.7, 31, 127, 128, 129, 513, INF, -INF, NAN], dtype=dtype)
    # The closed form multiplies the rounding of the angle by n.
    tolerance = (2e-4 if "chebyshev" in name else 2e-5) if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(run(function, x, n), function(x, n), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_orthogonal_polynomials_of_numbers(name):
    function = getattr(torch.special, name)
    x, n = torch.tensor([0.3, -0.7, 1.5, 1.0, -1.0]), torch.tensor([0, 1, 5, 3, 2])
    for args in ((x, n), (x, 5), (x, 0), (0.4, n), (torch.tensor([1, 2, -1, 0]), 4), (torch.tensor([True, False]), 3)):
        expected = function(*args)
        actual = run(function, *args)
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    out = torch.empty(5, device="tpu")
    function(x.to("tpu"), n.to("tpu"), out=out)
    torch.testing.assert_close(out.cpu(), function(x, n), rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_orthogonal_polynomials_of_nan(name):
    """NaN from degree 1 on. (CPU torch returns an uninitialized number for most degrees above 1.)"""
    n = torch.arange(-1, 12)
    actual = run(getattr(torch.special, name), torch.tensor(NAN), n)
    torch.testing.assert_close(actual, torch.tensor([0.0, 1.0] + [NAN] * 11), equal_nan=True)


def test_degrees_share_a_program():
    """Another degree is another number, not another program."""
    x = torch.linspace(-1, 1, 50, device="tpu")
    torch.special.legendre_polynomial_p(x, 3)
    compiles = torch.tpu.counters()["compiles"]
    for n in (4, 10, 40):
        torch.special.legendre_polynomial_p(x, n)
    assert torch.tpu.counters()["compiles"] == compiles


# --- incomplete gamma functions --------------------------------------------------------------------------------------------


def gamma_points(count):
    """(a, x), 6 decades of a, x near a and far from it."""
    a = 10 ** torch.empty(count, dtype=torch.float64).uniform_(-3, 3)
    near = (a + 3 * torch.randn(count, dtype=torch.float64) * a.sqrt()).abs()
    x = torch.where(torch.rand(count) < 0.5, near, a * torch.empty(count, dtype=torch.float64).uniform_(0.3, 2))
    x[::3] = 10 ** torch.empty(count, dtype=torch.float64).uniform_(-4, 3)[::3]
    return a, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma(name, dtype):
    a, x = (t.to(dtype) for t in gamma_points(3000))
    reference = {"igamma": scipy.special.gammainc, "igammac": scipy.special.gammaincc}[name]
    expected = torch.from_numpy(reference(a.double().numpy(), x.double().numpy()))
    actual = run(getattr(torch, name), a, x)
    # exp(-e) is no better than e, so small values have fewer digits.
    # For float64, most of the difference is scipy's (against mpmath).
    check_values(actual, expected, 1e-3, 60 if dtype == torch.float32 else 300)
    seen = expected > 1e-15
    check_values(actual[seen], expected[seen], 0, 400 if dtype == torch.float32 else 4000)


def test_incomplete_gamma_edges():
    edges = torch.tensor([*EDGES, 0.5, 2.0, 250.0, 1e10, 1e-30])
    a, x = torch.meshgrid(edges, edges, indexing="ij")
    for name in ("igamma", "igammac"):
        function = getattr(torch, name)
        torch.testing.assert_close(run(function, a, x), function(a, x), equal_nan=True)
        narrow = torch.tensor([0.5, 3.0], dtype=torch.bfloat16)
        torch.testing.assert_close(run(function, narrow, narrow), function(narrow, narrow))
        with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
            run(function, torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))


def test_incomplete_gamma_gradient():
    a, x = torch.tensor([0.5, 2.0, 30.0]), torch.tensor([0.3, 4.0, 28.0])
    for name in ("igamma", "igammac"):
        on_cpu, on_tpu = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
        getattr(torch, name)(a, on_cpu).sum().backward()
        getattr(torch, name)(a.to("tpu"), on_tpu).sum().backward()
        torch.testing.assert_close(on_tpu.grad.cpu(), on_cpu.grad, rtol=1e-4, atol=1e-6)


def test_mvlgamma():
    x = torch.tensor([2.0, 0.3, -1.0, 7.5, 0.5, NAN])
    for n in (1, 2, 5):
        torch.testing.assert_close(run(torch.mvlgamma, x, n), torch.mvlgamma(x, n), equal_nan=True, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run(torch.mvlgamma, torch.tensor([2, 3]), 2), torch.mvlgamma(torch.tensor([2, 3]), 2))
    out = torch.empty(6, device="tpu")
    torch.mvlgamma(x.to("tpu"), 2, out=out)
    torch.testing.assert_close(out.cpu(), torch.mvlgamma(x, 2), equal_nan=True, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="p has to be greater than or equal to 1"):
        run(torch.mvlgamma, x, 0)
    with pytest.raises(RuntimeError, match="may not be a boolean tensor"):
        run(torch.mvlgamma, x > 0, 2)


def gamma_grad(a, x):
    """dx/da at constant P(a, x), from the power series, with as many digits as its terms cancel and more."""
    with mpmath.workdps(100 + int(x)):
        a, x = mpmath.mpf(a), mpmath.mpf(x)
        term, n, factor = mpmath.mpf(1), 0, mpmath.digamma(a + 1) - mpmath.log(x)
        total = factor
        while n <= x or term > mpmath.mpf(10) ** -60:
            n += 1
            term, factor = term * x / (a + n), factor + 1 / (a + n)
            total += term * factor
        return float(total * x / a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_gradient(dtype):
    """CPU torch, whose formula is good for 3 digits, is no reference."""
    a, x = gamma_points(150)
    inside = (a < 100) | ((x - a).abs() < 4 * a.sqrt())
    a, x = a[inside].to(dtype), x[inside].to(dtype)
    expected = torch.tensor([gamma_grad(*p) for p in zip(a.tolist(), x.tolist(), strict=True)], dtype=torch.float64)
    check_values(run(torch.ops.aten._standard_gamma_grad, a, x), expected, 0, 400)


def test_gamma_sample_gradient():
    """A sample's gradient goes through the same op."""
    a = torch.tensor([0.3, 2.0, 50.0], device="tpu", requires_grad=True)
    sample = torch.distributions.Gamma(a, 1.0).rsample()
    sample.sum().backward()
    expected = torch.ops.aten._standard_gamma_grad(a.detach().cpu(), sample.detach().cpu())
    torch.testing.assert_close(a.grad.cpu(), expected, rtol=2e-3, atol=0)


def dirichlet_grad(x, a, total):
    """-(dI_x(a, b)/da) / density / (1 - x), b = total - a, by a difference with 60 digits."""
    with mpmath.workdps(60):
        x, a, b = mpmath.mpf(x), mpmath.mpf(a), mpmath.mpf(total) - mpmath.mpf(a)
        step = a * mpmath.mpf(10) ** -20
        if x < a / (a + b):
            slope = mpmath.betainc(a + step, b, 0, x, True) - mpmath.betainc(a - step, b, 0, x, True)
        else:
            slope = mpmath.betainc(b, a - step, 0, 1 - x, True) - mpmath.betainc(b, a + step, 0, 1 - x, True)
        return float(-slope / (2 * step) / (x ** (a - 1) * (1 - x) ** b / mpmath.beta(a, b)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dirichlet_gradient(dtype):
    a, b = (10 ** torch.empty(60, dtype=torch.float64).uniform_(-2, 3) for _ in range(2))
    x = torch.distributions.Beta(a, b).sample().clamp(1e-20, 1 - 1e-6).to(dtype)
    a, total = a.to(dtype), (a + b).to(dtype)
    points = zip(x.tolist(), a.tolist(), total.tolist(), strict=True)
    expected = torch.tensor([dirichlet_grad(*p) for p in points], dtype=torch.float64)
    check_values(run(torch.ops.aten._dirichlet_grad, x, a, total), expected, 0, 2000)
    edges = torch.tensor([0.0, 1.0, NAN])
    for a, total in ((0.5, 1.2), (2.0, 5.0)):
        args = edges, torch.full((3,), a), torch.full((3,), total)
        on_cpu = torch.ops.aten._dirichlet_grad(*args)
        torch.testing.assert_close(run(torch.ops.aten._dirichlet_grad, *args), on_cpu, equal_nan=True, rtol=1e-3, atol=0)


# --- accuracy ----------------------------------------------------------------------------------------------------------------


accuracy = load("bench/accuracy.py", "accuracy")
BELOW_ZERO = {"lgamma, x < 0": 1, "digamma, x < 0": 1}  # CPU torch has few digits left beside their zeros


@pytest.mark.parametrize("row", accuracy.ROWS, ids=lambda r: r.name)
def test_accuracy(row, monkeypatch):
    """No function of one number is more than 3 ulp off, or else no more than twice as far as CPU torch (docs/accuracy.md)."""
    monkeypatch.setattr(accuracy, "COUNT", 4000)
    ours, where, theirs = accuracy.measure(row, torch.float32)
    assert ours <= BELOW_ZERO.get(row.name, max(6 if row.y else 3, 2 * theirs)), where
    ours, where, theirs = accuracy.measure(row, torch.bfloat16)
    assert ours <= max(0.52, 2 * (theirs or 0)), where
