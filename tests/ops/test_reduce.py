"""Sums, extremes, variances, norms, running reductions and histograms, against CPU torch."""

import math

import pytest
import torch
from helpers import LAYOUTS, flat, to_tpu

INF, NAN = math.inf, math.nan


def check(function, *args, rtol=None, atol=None):
    """Same values, dtypes and shapes on CPU and TPU."""
    for actual, expected in zip(flat(function(*to_tpu(args))), flat(function(*args)), strict=True):
        if rtol is None and expected.dtype in (torch.bfloat16, torch.float16):
            rtol, atol = 1e-2, 1e-2
        assert actual.device.type == "tpu"
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=rtol, atol=atol)


def check_gradient(function, x):
    """Gradients of a sum of the results, weighted so that no two elements have equal ones."""

    def gradient(x):
        result = flat(function(x))[0]
        weight = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).reshape(result.shape)
        (result * weight.to(result.dtype).to(x.device)).sum().backward()
        return x.grad

    actual, expected = gradient(to_tpu(x.requires_grad_())), gradient(x)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def check_raises(error, text, function, *args):
    with pytest.raises(error, match=text):
        flat(function(*to_tpu(args)))[0].cpu()


def numbers(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape).to(dtype)
    return torch.randn(shape, dtype=torch.float64 if dtype == torch.float64 else None).to(dtype) + (
        1j * torch.randn(shape) if dtype.is_complex else 0
    )


# --- sums, products, logic ------------------------------------------------------------------------------------------------

TOTALS = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum(1),
    "sum_dims_keepdim": lambda x: x.sum((0, -1), keepdim=True),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(-1, keepdim=True),
    "any": lambda x: x.any(),
    "any_dim": lambda x: x.any(0),
    "any_dims": lambda x: x.any((0, 2), keepdim=True),
    "all": lambda x: x.all(),
    "all_dim": lambda x: x.all(-1),
    "all_dims": lambda x: x.all((0, 1)),
    "count_nonzero": lambda x: x.count_nonzero(),
    "count_nonzero_dims": lambda x: x.count_nonzero((0, 2)),
}


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64], ids=str)
def test_totals(name, dtype):
    check(TOTALS[name], numbers(3, 4, 5, dtype=dtype))


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"empty"}))
def test_layouts(layout):
    function = LAYOUTS[layout]
    check(lambda x: (function(x).sum(0), function(x).mean((1, 2)), function(x).amax(-1), *function(x).max(1)), numbers(3, 4, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64], ids=str)
def test_mean(dtype):
    check(lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True)), numbers(3, 4, 5, dtype=dtype))


def test_nansum():
    x = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, -INF]])
    check(lambda x: (x.nansum(), x.nansum(1), x.nansum(0, keepdim=True), x.nansum(dtype=torch.float64)), x)
    check(lambda x: (x.nansum(), x.nansum(0)), torch.tensor([[1, 2], [3, 4]], dtype=torch.int16))
    check_raises(RuntimeError, "nansum .* does not support complex", torch.nansum, torch.ones(2, dtype=torch.complex64))


def test_dtype_argument():
    x = numbers(3, 4) * 3
    check(lambda x: (x.sum(dtype=torch.int32), x.sum(1, dtype=torch.float64), x.mean(0, dtype=torch.float64)), x)
    check(lambda x: (x.prod(dtype=torch.int64), x.prod(0, dtype=torch.bfloat16)), torch.tensor([[1, 2], [3, 4]]))
    check(lambda x: x.sum(dtype=torch.bool), torch.tensor([True, False]))


def test_integers_are_exact():
    check(lambda x: (x.sum(), x.sum(0), x.prod(1)), torch.tensor([[2**53 + 1, 2**40 + 3], [-5, 7]]))


def test_long_sums_are_accurate():
    x = torch.rand(300_000)
    exact = x.double().sum()
    assert abs(x.to("tpu").sum().cpu().double() - exact) < 1e-6 * exact
    y = x.bfloat16()  # accumulated in float32
    assert abs(y.to("tpu").sum().cpu().double() - y.double().sum()) < 5e-3 * exact
    assert torch.ones(49).to("tpu").mean().item() == 1.0


def test_sums_of_many():
    """Long enough for sums by matrix products, over the first, the last, other and all dimensions."""
    x = torch.randn(3, 70, 80)
    for dims in (0, 1, 2, (0, 1), (1, 2), (0, 2), None):
        check(lambda x: (x.var(dims), torch.linalg.vector_norm(x, dim=dims)), x, rtol=1e-5, atol=1e-5)
        check(lambda x: (x.mean(dims), x.sum(dims, dtype=torch.float64)), x.bfloat16())
    check(lambda x: (x.norm(), x.var(), x.nansum()), torch.randn(500), rtol=1e-5, atol=1e-5)
    special = torch.randn(4, 100)
    special[0, 3], special[1, 50], special[2, 7], special[2, 9] = NAN, INF, INF, -INF
    check(lambda x: (x.var(1), x.norm(dim=1), x.nansum(1), x.logsumexp(1)), special, rtol=1e-5, atol=1e-5)


def test_scalars_and_empty():
    check(lambda x: (x.sum(), x.sum(0), x.prod(-1), x.mean(0), x.amax(()), x.any(0), x.argmax(), *x.max(0)), torch.tensor(3.0))
    empty = torch.empty(0, 3)
    check(lambda x: (x.sum(0), x.sum(1), x.prod(0), x.prod(), x.mean(0), x.any(0), x.all(0), x.all(), x.nansum(0)), empty)
    check(lambda x: (x.amax(1), *x.max(1), x.argmax(1), x.sum((0, 1), keepdim=True)), empty)
    check(lambda x: (x.any(), x.all(0), x.sum()), torch.tensor([[1, 0], [2, 3]], dtype=torch.uint8))
    check(lambda x: (x.any(dim=()), torch.ops.aten.all.dims(x, None), torch.ops.aten.all.dims(x, [])), torch.eye(2))


def test_out_variants():
    def run(x):
        total = torch.empty(3, dtype=torch.float64, device=x.device)
        values, indices = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.long, device=x.device)
        torch.sum(x, 1, out=total)
        torch.max(x, 0, out=(values, indices))
        logical = torch.empty(0, dtype=torch.bool, device=x.device)
        torch.any(x, out=logical)
        running, where = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.long, device=x.device)
        torch.cummin(x, 1, out=(running, where))
        return total, values, indices, logical, running, where

    check(run, numbers(3, 4))


def test_trace():
    check(torch.trace, numbers(4, 3))
    check(torch.trace, numbers(3, 5, dtype=torch.int32))
    check_gradient(torch.trace, numbers(3, 3))
    check_raises(RuntimeError, "expected a matrix", torch.trace, torch.ones(3))


def test_mean_errors():
    check_raises(RuntimeError, "could not infer output dtype. Input dtype must be", torch.mean, torch.arange(3))
    check_raises(RuntimeError, "Optional dtype must be", lambda x: x.mean(dtype=torch.int32), torch.ones(3))
    check_raises(IndexError, "Dimension out of range", lambda x: x.var(3), torch.ones(3))
    check_raises(RuntimeError, "appears multiple times", lambda x: x.var((0, 0)), torch.ones(3))


# --- extremes -------------------------------------------------------------------------------------------------------------

EXTREMES = {
    "amax": lambda x: x.amax((0, 2)),
    "amin_keepdim": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(-1, keepdim=True),
    "aminmax": lambda x: x.aminmax(),
    "aminmax_dim": lambda x: x.aminmax(dim=1, keepdim=True),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_extremes(name, dtype):
    check(EXTREMES[name], numbers(3, 4, 5, dtype=dtype))


def test_extremes_of_special_values():
    rows = [[1.0, 3.0, 3.0, NAN, NAN], [-INF] * 5, [INF] * 5, [2.0, 2.0, 1.0, 1.0, 1.0], [NAN, 5.0, INF, -INF, 0.0]]
    check(lambda x: (x.amax(1), x.amin(1), *x.max(1), *x.min(1), x.argmax(1), x.argmin(1)), torch.tensor(rows))
    check(lambda x: (x.argmax(), x.argmin(), x.max(), *x.aminmax()), torch.tensor(rows[0]))
    check(lambda x: (x.argmax(), x.argmin(1), x.argmax(0, keepdim=True), x.argmax(keepdim=True)), numbers(4, 3))


@pytest.mark.parametrize("shape", [(32, 1024), (40, 1000), (64, 377), (9, 1021), (2, 70, 333), (40_000,)], ids=str)
@pytest.mark.parametrize("special", [NAN, INF, -INF])
def test_extremes_of_long_rows(shape, special):
    x = numbers(*shape)
    check(lambda x: (x.amax(-1), x.amin(-1), *x.max(-1), *x.min(-1), x.argmax(-1), x.max()), x)
    check(lambda x: x.unsqueeze(0).amax((-2, -1)), x)
    x.view(-1)[torch.randint(x.numel(), (3,))] = special
    check(lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.max(), x.min(), x.logsumexp(-1)), x)


def test_extreme_errors():
    empty = torch.empty(0, 3)
    check_raises(RuntimeError, "Expected reduction dim to be specified", torch.max, empty)
    check_raises(RuntimeError, "Expected reduction dim to be specified", torch.min, empty)
    check_raises(IndexError, "Expected reduction dim 0 to have non-zero size", lambda x: x.amax(0), empty)
    check_raises(IndexError, "Expected reduction dim 0 to have non-zero size", lambda x: x.max(0), empty)


@pytest.mark.parametrize("name", ["sum_dims_keepdim", "prod_dim"])
def test_gradients_of_totals(name):
    check_gradient(TOTALS[name], numbers(2, 3, 4))


@pytest.mark.parametrize("name", ["amax", "max", "max_dim", "min_dim"])
def test_gradients_of_extremes(name):
    check_gradient(EXTREMES[name], numbers(2, 3, 4))


# --- variances, norms -----------------------------------------------------------------------------------------------------

MOMENTS = {
    "var": lambda x: x.var(),
    "std_dim": lambda x: x.std(1),
    "var_correction": lambda x: x.var((0, 2), correction=0, keepdim=True),
    "std_fraction": lambda x: x.std(-1, correction=0.5),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), keepdim=True),
}


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_moments(name, dtype):
    check(MOMENTS[name], numbers(3, 4, 5, dtype=dtype))


def test_moments_far_from_zero():
    check(lambda x: (x.var(), x.std(0)), torch.randn(50, 3) * 0.1 + 1e4, rtol=1e-3, atol=1e-6)


def test_moments_of_few():
    check(lambda x: (x.var(), x.var(correction=0), x.var(correction=-1), x.std(0)), torch.tensor([2.0]))
    check(lambda x: (x.var(correction=5), x.var(correction=2)), torch.tensor([2.0, 3.0]))
    check(lambda x: (x.var(), x.var(0)), torch.tensor(2.0))
    check(lambda x: (x.var(0), x.var(1), *torch.var_mean(x, 0)), torch.empty(0, 3))
    check_raises(RuntimeError, "std and var only support floating point", torch.var, torch.arange(3))
    check_gradient(lambda x: x.std(0), numbers(4, 3))


@pytest.mark.parametrize("order", [INF, -INF, 0, 1, 2, 0.5, -2])
def test_vector_norm(order):
    norm = torch.linalg.vector_norm
    check(lambda x: (norm(x, order), norm(x, order, (0, -1), keepdim=True)), numbers(3, 4, 5))
    check(lambda x: norm(x, order, 0), torch.tensor([[1.0, NAN, INF, 0.0], [-2.0, 1.0, 2.0, 0.0]]))
    check(lambda x: norm(x, order), numbers(6, dtype=torch.complex64))
    if order != 0:
        check_gradient(lambda x: norm(x, order, 1), numbers(3, 4))


def test_norm_overloads():
    norm = torch.ops.aten.norm
    check(lambda x: (norm.Scalar(x), norm.Scalar(x, INF), norm.ScalarOpt_dtype(x, 2, dtype=torch.float64)), numbers(3, 4))
    check(lambda x: (norm.ScalarOpt_dim(x, None, [1]), norm.ScalarOpt_dim(x, 1, [0], True)), numbers(3, 4))
    check(lambda x: norm.ScalarOpt_dim_dtype(x, 2, [1], False, dtype=torch.float64), numbers(3, 4))
    check(lambda x: (x.norm(), x.norm(dim=1), x.norm(p="fro")), torch.tensor([[300.0, 300.0]], dtype=torch.float16))
    check(lambda x: torch.linalg.vector_norm(x, dim=1), torch.full((2, 1), 1e30))
    check(lambda x, y: (torch.dist(x, y), torch.dist(x, y, 1), torch.dist(x, y[0], INF)), numbers(3, 4), numbers(3, 4))
    check_gradient(lambda x: torch.dist(x, torch.ones(4, device=x.device)), numbers(3, 4))


def test_norm_errors():
    norm = torch.ops.aten.norm
    check_raises(RuntimeError, "should be either floating point or complex", norm.Scalar, torch.arange(3))
    check_raises(RuntimeError, "Expected a floating point or complex", lambda x: x.norm(), torch.arange(3))
    check_raises(RuntimeError, "cannot compute the inf norm on an empty", lambda x: norm.Scalar(x, INF), torch.empty(0))
    check_raises(RuntimeError, "without narrowing", lambda x: norm.ScalarOpt_dtype(x, 2, dtype=torch.float16), torch.ones(3))


def test_logsumexp():
    check(lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)), numbers(3, 4, 5) * 50)
    rows = [[INF, 1.0], [-INF, -INF], [NAN, -INF], [INF, -INF], [1000.0, 1000.0]]
    check(lambda x: x.logsumexp(1), torch.tensor(rows))
    check(lambda x: x.logsumexp(0), torch.tensor([1, 2]))
    check(lambda x: x.logsumexp(0), torch.tensor(2.0))
    check(lambda x: (x.logsumexp(0), x.logsumexp(1)), torch.empty(0, 2))
    check(lambda x: x.logsumexp(1), numbers(3, 4, dtype=torch.bfloat16))
    check(lambda x: x.logsumexp(0), numbers(4, dtype=torch.complex64))
    check_gradient(lambda x: x.logsumexp(1), numbers(3, 4))


# --- running reductions ---------------------------------------------------------------------------------------------------

SCANS = [torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax, torch.cummin]


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("shape, dim", [((5,), 0), ((3, 33, 2), 1), ((600,), -1), ((0, 3), 0), ((3, 0), 0), ((), 0)])
def test_scans(scan, shape, dim):
    check(lambda x: scan(x, dim), numbers(*shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scan", SCANS)
def test_scan_dtypes(scan):
    check(lambda x: scan(x, 1), numbers(2, 9, dtype=torch.bfloat16))
    check(lambda x: scan(x, 1), numbers(2, 9, dtype=torch.float64))
    if scan is not torch.logcumsumexp:
        check(lambda x: scan(x, 0), numbers(40, dtype=torch.int32))
        check(lambda x: scan(x, 0), numbers(9, dtype=torch.bool))
    if scan not in (torch.cummax, torch.cummin):
        check(lambda x: scan(x, 0), numbers(6, dtype=torch.complex64), rtol=1e-4, atol=1e-4)
        check_gradient(lambda x: scan(x, 1), numbers(2, 6))


def test_scan_of_special_values():
    rows = [[1.0, 3.0, 3.0, 2.0, NAN, 5.0, NAN], [-INF, -INF, 1.0, INF, INF, -INF, 0.0], [NAN, -INF, 0.0, -0.0, 0.0, INF, 1.0]]
    check(lambda x: (*x.cummax(1), *x.cummin(1), x.logcumsumexp(1), x.cumsum(1)), torch.tensor(rows))
    check_gradient(lambda x: x.cummax(1), numbers(3, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(300, 1000), (4, 300, 256), (500, 641), (300_000,)], ids=str)
def test_sums_along_long_rows(shape, dtype):
    x = numbers(*shape).to(dtype)
    check(lambda x: (x.cumsum(-1), x.cumsum(-1, dtype=torch.float64)), x, rtol=1e-5, atol=1e-4)
    for special in (NAN, INF, -INF):  # what stands before it in its row does not see it
        y = x.clone()
        y.view(-1)[[5, 700, 39_000]] = special
        check(lambda x: x.cumsum(-1), y, rtol=1e-5, atol=1e-4)
    huge = torch.finfo(dtype).max / 49.5
    check(lambda x: x.cumsum(-1), torch.full(shape, huge, dtype=dtype), rtol=1e-5, atol=0)


def test_scan_arguments():
    check(lambda x: (x.cumsum(0, dtype=torch.float16), x.cumprod(0, dtype=torch.int32)), torch.tensor([True, True]))
    check(lambda x: x.clone().cumsum_(0), torch.tensor([100, 100, 100], dtype=torch.int8))
    check(lambda x: x.t().cumsum(0), numbers(3, 40))
    check_raises(IndexError, "Dimension out of range", lambda x: x.cummax(2), torch.ones(3))
    check_raises(NotImplementedError, "not implemented for 'Long'", lambda x: x.logcumsumexp(0), torch.arange(3))


def test_long_scan_is_accurate():
    x = torch.rand(100_000)
    torch.testing.assert_close(x.to("tpu").cumsum(0).cpu().double(), x.double().cumsum(0), rtol=1e-6, atol=1e-4)


# --- histograms -----------------------------------------------------------------------------------------------------------


def test_histc():
    x = torch.tensor([0.1 * i for i in range(11)] + [NAN, 5.0, -1.0])
    check(lambda x: (torch.histc(x, 10, 0, 1), torch.histc(x, 3, 0, 5), torch.histc(x, 1, -2, 0.5)), x)
    check(lambda x: (torch.histc(x), torch.histc(x, 4), torch.histc(x, 4, 2, 2)), numbers(5, 6))
    check(lambda x: torch.histc(x, 4), torch.full((3,), 2.0))
    check(lambda x: torch.histc(x, 4), torch.empty(0))
    check(lambda x: torch.histc(x, 4), torch.arange(5.0).half())
    check_raises(RuntimeError, "bins must be > 0", lambda x: torch.histc(x, 0), x)
    check_raises(RuntimeError, "max must be larger than min", lambda x: torch.histc(x, 4, 5, 1), x)
    check_raises(RuntimeError, "is not finite", lambda x: torch.histc(x, 4, -INF, 1), x)
    check_raises(RuntimeError, "is not finite", lambda x: torch.histc(x, 4), x)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("bins", [1, 7, 100])
def test_histogram(bins):
    x, weight, density = numbers(40, 25), torch.rand(40, 25), {"density": True}
    check(lambda x: torch.histogram(x, bins), x)
    check(lambda x: torch.histogram(x.double(), bins, range=(-1, 0.5)), x)
    check(lambda x, weight: torch.histogram(x, bins, weight=weight, **density), x, weight)
    check(lambda x, weight: torch.histogram(x.t(), bins, weight=weight.t(), range=(-2, 1)), x, weight)
    check(lambda x, edges: torch.histogram(x, edges, **density), x, numbers(bins + 1).sort().values)
    check(lambda x, edges, weight: torch.histogram(x, edges, weight=weight), x, numbers(bins + 1).sort().values, weight)


@pytest.mark.usefixtures("no_fallback")
def test_histogram_at_its_ends():
    x = torch.tensor([0.0, 1, 2, 3, 4, 4, NAN, -1, 5, INF])
    check(lambda x: torch.histogram(x, 4, range=(0, 4)), x)
    check(lambda x: torch.histogram(x, 3, range=(2, 2)), x)
    check(lambda x, edges: torch.histogram(x, edges), x, torch.tensor([0.0, 0, 1, 4]))
    check(lambda x: torch.histogram(x, 4), torch.full((3,), 2.0))
    check(lambda x: torch.histogram(x, 4), torch.tensor(3.0))
    check(lambda x: torch.histogram(x, 4), torch.empty(0))
    check(lambda x, *out: torch.histogram(x, 4, range=(0, 4), out=out), x, torch.empty(0), torch.empty(0))


@pytest.mark.usefixtures("no_fallback")
def test_histogramdd():
    def flatter(function):
        return lambda *args: [(result := function(*args)).hist, *result.bin_edges]

    x, weight = numbers(20, 5, 3), torch.rand(20, 5)
    check(flatter(lambda x: torch.histogramdd(x, [2, 3, 70])), x)
    check(flatter(lambda x: torch.histogramdd(x, 4)), x.double())
    ends = [-1.0, 1, 0, 0, -2, 0.5]
    check(flatter(lambda x, w: torch.histogramdd(x, [5, 1, 3], range=ends, weight=w, density=True)), x, weight)
    edges = [numbers(n).sort().values for n in (3, 70, 5)]
    check(flatter(lambda x, edges: torch.histogramdd(x, edges)), x, edges)
    check(flatter(lambda x, edges, w: torch.histogramdd(x, edges, weight=w, density=True)), x, edges, weight)
    check(flatter(lambda x: torch.histogramdd(x, [2, 3, 4])), x[:0])
    check(flatter(lambda x: torch.histogramdd(x[..., :0], [])), x)


HISTOGRAM_ERRORS = {
    "no bins": lambda x: torch.histogram(x, 0),
    "one edge": lambda x: torch.histogram(x, x[0, :1]),
    "no edge": lambda x: torch.histogram(x, x[0, :0]),
    "edges of two dimensions": lambda x: torch.histogram(x, x),
    "edges of another dtype": lambda x: torch.histogram(x, x[0].double()),
    "range": lambda x: torch.histogram(x, 3, range=(2, 1)),
    "infinite range": lambda x: torch.histogram(x, 3, range=(2, INF)),
    "range of three": lambda x: torch.histogram(x, 3, range=(0, 1, 2)),
    "weight's shape": lambda x: torch.histogram(x, 3, weight=x[0]),
    "weight's dtype": lambda x: torch.histogram(x, 3, weight=x.double()),
    "integers": lambda x: torch.histogram(x.int(), 3),
    "float16": lambda x: torch.histogram(x.half(), 3),
    "number of dims": lambda x: torch.histogramdd(x, [3, 4]),
    "no bins in a dim": lambda x: torch.histogramdd(x, [3, 0, 2]),
    "one dimension": lambda x: torch.histogramdd(x[0], [3]),
    "number of edges": lambda x: torch.histogramdd(x, [x[0], x[0]]),
    "edges in a dim": lambda x: torch.histogramdd(x, [x[0], x[0], x]),
    "range of a dim": lambda x: torch.histogramdd(x, [1, 1, 1], range=[0, 1, 0, 1, 1, 0]),
    "weights of points": lambda x: torch.histogramdd(x, [1, 1, 1], weight=x[0]),
}


@pytest.mark.parametrize("call", HISTOGRAM_ERRORS.values(), ids=HISTOGRAM_ERRORS)
def test_histogram_errors(call):
    x = torch.arange(6.0).reshape(2, 3)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        call(x)
    with pytest.raises(expected.type) as got:
        call(x.to("tpu"))
    assert str(got.value) == str(expected.value)


def test_histogram_of_data_without_a_range():
    check_raises(RuntimeError, "is not finite", lambda x: torch.histogram(x, 4), torch.tensor([1, NAN]))
    check_raises(RuntimeError, "is not finite", lambda x: torch.histogramdd(x, [1, 2])[0], torch.tensor([[1, 2], [1, INF]]))


def test_hash_tensor():
    """The exclusive or of the elements' 64-bit patterns."""
    torch.tpu.fallback = "error"
    for x in (torch.randn(3, 4, 5), torch.randn(3, 4, 5).bfloat16(), torch.randint(-9, 9, (3, 4, 5)), torch.ones(3, 4, 5) > 0):
        for args in ((), (1,), ((0, 2), True)):
            kwargs = {"keepdim": True} if len(args) == 2 else {}
            expected = torch.hash_tensor(x, *args[:1], **kwargs)
            actual = torch.hash_tensor(x.to("tpu"), *args[:1], **kwargs)
            assert actual.dtype == torch.uint64
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)
    small = torch.tensor([200, 100, 3], dtype=torch.uint8)
    assert torch.hash_tensor(small.to("tpu")).item() == 200 ^ 100 ^ 3
    with pytest.raises(RuntimeError, match="Unknown hash_tensor mode: 1"):
        torch.hash_tensor(small.to("tpu"), mode=1)
    with pytest.raises(RuntimeError, match="Expected reduction dim to be specified"):
        torch.hash_tensor(torch.empty(0, 3, device="tpu"))
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        torch.hash_tensor(torch.ones(3, dtype=torch.complex64, device="tpu"))
    torch.tpu.fallback = "warn"
