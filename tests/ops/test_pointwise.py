"""Arithmetic, elementary functions, comparisons, logic, bits, selection and filling, against CPU torch."""

import math

import pytest
import torch
from helpers import flat, to_tpu

INF, NAN = math.inf, math.nan
FLOATS = [torch.float32, torch.bfloat16]
SPECIAL = [0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, -3.5, 7.0, 0.001, INF, -INF, NAN]


def check(function, *args, rtol=None, atol=None, **kwargs):
    """Same values, dtypes and shapes on CPU and TPU. bfloat16 may differ by one rounding."""
    expected = function(*args, **kwargs)
    actual = function(*to_tpu(args), **kwargs)
    for e, a in zip(flat(expected), flat(actual), strict=True):
        narrow = e.dtype in (torch.bfloat16, torch.float16)
        tolerance = {"rtol": 2e-2 if narrow else rtol, "atol": 1e-2 if narrow else atol}
        if rtol is None and not narrow:
            tolerance = {}
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, **tolerance)


def check_raises(error, text, function, *args, **kwargs):
    with pytest.raises(error, match=text):
        function(*to_tpu(args), **kwargs)


def sample(dtype, values=SPECIAL):
    if dtype.is_floating_point:
        return torch.tensor(values, dtype=dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    if dtype.is_complex:
        return torch.complex(torch.tensor([0.3, -1.2, 2.0, 0.0]), torch.tensor([1.1, 0.0, -0.4, -2.0])).to(dtype)
    low = 0 if dtype == torch.uint8 else -5
    return torch.arange(low, low + 12, dtype=dtype)


# --- unary -----------------------------------------------------------------------------------------------------------------

EXACT = ["neg", "abs", "sgn", "sign", "floor", "ceil", "trunc", "round", "frac", "isnan", "isinf", "isposinf", "isneginf"]
EXACT += ["signbit", "logical_not", "nan_to_num", "positive", "square"]
SMOOTH = ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"]
SMOOTH += ["asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sinc", "erf", "erfc", "erfinv"]
SMOOTH += ["lgamma", "digamma", "sigmoid", "logit", "angle"]
SMOOTH += ["special.entr", "special.i0", "special.i0e", "special.i1", "special.i1e", "special.erfcx", "special.ndtri"]
SMOOTH += ["special.log_ndtr"]


def find(name):
    module = torch.special if name.startswith("special.") else torch
    return getattr(module, name.removeprefix("special."))


@pytest.mark.parametrize("name", EXACT + SMOOTH)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_floats(name, dtype):
    if dtype == torch.bfloat16 and name in ("special.erfcx", "special.ndtri", "special.log_ndtr"):
        pytest.skip("no CPU kernel")
    check(find(name), sample(dtype), rtol=1e-5, atol=1e-6)


DOUBLE = ["exp", "log2", "log1p", "sqrt", "tanh", "erf", "lgamma", "special.i0", "special.erfcx", "special.log_ndtr"]


@pytest.mark.parametrize("name", DOUBLE)
def test_unary_double(name):
    check(find(name), sample(torch.float64), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in EXACT + SMOOTH if n != "frac"])
def test_unary_integers(name):
    for dtype in (torch.int64, torch.uint8) if name in EXACT else (torch.int64,):
        check(find(name), sample(dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf", "erfinv"]
)
def test_zeros_keep_their_sign(name):
    check(lambda x: find(name)(x).signbit(), torch.tensor([0.0, -0.0]))


@pytest.mark.parametrize("name", ["sgn", "sign", "isnan", "isinf", "signbit", "logical_not", "exp", "sqrt", "sigmoid", "angle"])
def test_unary_bool(name):
    check(find(name), sample(torch.bool))


COMPLEX = ["neg", "abs", "sgn", "isnan", "isinf", "logical_not", "exp", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"]
COMPLEX += ["sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sigmoid", "angle"]
COMPLEX += ["expm1", "log1p", "nan_to_num", "conj_physical", "square"]


@pytest.mark.parametrize("name", COMPLEX)
def test_unary_complex(name):
    check(find(name), sample(torch.complex64), rtol=1e-4, atol=1e-5)


def test_unary_wide_range():
    x = torch.cat([torch.linspace(-30, 30, 257), torch.logspace(-8, 8, 33), -torch.logspace(-8, 8, 33)])
    names = "exp expm1 log1p tanh sigmoid erf erfc asinh lgamma digamma special.i0e sinc"
    for name in names.split():
        check(find(name), x, rtol=3e-5 if name in ("erfc", "digamma", "lgamma") else 1e-5, atol=2e-6)
    check(torch.special.erfcx, x.clamp(-5), rtol=1e-5, atol=0)
    check(torch.special.log_ndtr, x, rtol=1e-5, atol=1e-6)
    p = torch.cat([torch.logspace(-300, -1, 50, dtype=torch.float64), torch.linspace(0, 1, 33, dtype=torch.float64)])
    check(torch.special.ndtri, p, rtol=1e-12, atol=1e-14)
    check(torch.erfinv, p * 2 - 1, rtol=1e-10, atol=1e-14)


def test_log2_of_powers_is_whole():
    x = torch.exp2(torch.arange(-20, 20).float())
    assert torch.equal(torch.log2(x.to("tpu")).cpu(), torch.log2(x))


def test_round():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 1.2345, 126.5])
    for decimals in (0, 1, 2, -1):
        check(torch.round, x, decimals=decimals)
    check_raises(NotImplementedError, "round", torch.round, torch.ones(2, dtype=torch.long), decimals=1)


def test_nan_to_num():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.tensor([NAN, INF, -INF, 2.0], dtype=dtype)
        check(torch.nan_to_num, x)
        check(torch.nan_to_num, x, nan=1.5, posinf=3.0)
        check(torch.nan_to_num, x, neginf=-4.0)


def test_frexp():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        check(torch.frexp, torch.tensor([0.0, 1.0, -5.3, 1e-30, 1e30, 0.5], dtype=dtype))
    mantissa, _ = torch.frexp(torch.tensor([INF, NAN], device="tpu"))
    assert mantissa.cpu()[0] == INF and mantissa.cpu()[1].isnan()


def test_polygamma_and_logit():
    x = torch.tensor([0.2, 1.0, 3.7, 12.0])
    for n in range(4):
        check(lambda t, n=n: torch.polygamma(n, t), x, rtol=1e-5, atol=1e-6)
    x = torch.tensor([0.0, 1e-4, 0.3, 0.9999, 1.0])
    for eps in (None, 1e-3, -1.0):
        check(torch.logit, x, eps=eps, rtol=1e-5, atol=1e-5)


# --- binary ----------------------------------------------------------------------------------------------------------------

X = [3.0, -3.0, 7.5, -7.5, 0.0, -0.0, 1.0, INF, -INF, NAN, 2.0, 1.0]
Y = [2.0, 2.0, -2.0, -2.0, 3.0, 3.0, -INF, 1.0, 2.0, 1.0, NAN, 0.1]
BINARY = ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2", "hypot", "copysign", "xlogy"]
BINARY += ["maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]
BINARY += ["heaviside", "nextafter", "logaddexp", "logaddexp2", "special.xlog1py", "special.zeta"]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_binary_floats(name, dtype):
    x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
    if name == "special.zeta" and dtype == torch.bfloat16:
        pytest.skip("no CPU kernel")
    if name == "special.zeta":
        x, y = x.abs() + 1.5, y.abs() + 0.5
        x, y = x[:7], y[:7]
    check(find(name), x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["div", "floor_divide", "remainder", "pow", "hypot", "logaddexp", "copysign"])
def test_binary_double(name):
    check(find(name), torch.tensor(X, dtype=torch.float64), torch.tensor(Y, dtype=torch.float64), rtol=1e-12, atol=1e-13)


INTEGER = ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum", "fmax", "eq", "lt"]
INTEGER += ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm", "atan2"]


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=str)
def test_binary_integers(name, dtype):
    x = torch.tensor([7, 100, 3, 1, 0, 12, 127], dtype=dtype)
    y = torch.tensor([2, 7, 3, 5, 6, 8, 1], dtype=dtype)
    if dtype != torch.uint8:
        x = torch.cat([x, -x, x])
        y = torch.cat([y, y, -y])
    check(find(name), x, y, rtol=1e-6, atol=1e-6)


def test_integers_are_exact():
    x = torch.tensor([2**53 + 1, -(2**53) - 1, 2**62 + 3, -616, -7, 7])
    y = torch.tensor([2, 2, 3, 28, 2, -2])
    for mode in ("trunc", "floor"):
        check(lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), x, y)
    for function in (torch.remainder, torch.fmod, torch.floor_divide, torch.mul, torch.add):
        check(function, x, y)
    check(torch.pow, torch.tensor([1, -1, -1, 0, 2, 3, -3]), torch.tensor([-3, -3, -2, -1, -1, 39, 3]))
    check(lambda t: t**5, torch.tensor([-7, 11, 6000]))
    check_raises(RuntimeError, "Integers to negative integer powers", lambda t: t**-2, torch.ones(2, dtype=torch.long))


def test_shifts_out_of_range():
    for dtype in (torch.int32, torch.uint8, torch.int64):
        x = torch.tensor([1, 5, 100, 127], dtype=dtype)
        x = torch.cat([x, -x]) if dtype != torch.uint8 else x
        for by in (0, 1, 7, 8, 31, 63):
            check(lambda t, n=by: t << n, x)
            check(lambda t, n=by: t >> n, x)
    check(lambda t: t.clone().__ilshift__(1), torch.arange(4))
    check(lambda t: t.clone().__irshift__(torch.tensor(1)), torch.arange(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_division_modes(dtype):
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(500, generator=generator) * 10).to(dtype)
    y = torch.randn(500, generator=generator).to(dtype)
    for mode in (None, "trunc", "floor"):
        expected = torch.div(x, y, rounding_mode=mode)
        actual = torch.div(x.to("tpu"), y.to("tpu"), rounding_mode=mode).cpu()
        torch.testing.assert_close(actual, expected, rtol=1e-6 if mode is None else 0, atol=0)
    assert torch.equal(torch.remainder(x.to("tpu"), y.to("tpu")).cpu(), torch.remainder(x, y))
    assert torch.equal(torch.fmod(x.to("tpu"), y.to("tpu")).cpu(), torch.fmod(x, y))
    check_raises(RuntimeError, "rounding_mode", torch.div, x, y, rounding_mode="up")


def test_promotion():
    half, single = torch.ones(3, dtype=torch.bfloat16), torch.ones(3)
    long, byte, flag = torch.arange(3), torch.arange(3, dtype=torch.uint8), torch.tensor([True, False, True])
    values = [half, single, long, byte, flag, torch.tensor(2.5), torch.tensor(3), 2, 2.5]
    for i, x in enumerate(values):
        for y in values[i:]:
            if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
                check(torch.mul, *((x, y) if isinstance(x, torch.Tensor) else (y, x)))
    check(torch.add, long, single.to(torch.complex64))
    check(torch.div, long, byte)
    check(torch.eq, long, 1.5)
    check(torch.add, flag, flag)
    with pytest.raises(RuntimeError, match="can't be cast"):
        long.to("tpu").add_(1.5)
    torch.set_default_dtype(torch.float64)
    try:
        check(torch.exp, long)
        check(torch.div, long, 2)
    finally:
        torch.set_default_dtype(torch.float32)


def test_alpha_and_numbers():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for alpha in (1, 2, -0.5, 1.0, 3):
        check(torch.add, x, y, alpha=alpha)
        check(torch.sub, x, y, alpha=alpha)
        check(torch.rsub, x, y, alpha=alpha)
        check(torch.rsub, x, 2.5, alpha=alpha)
        check(lambda a, b, v=alpha: torch.addcmul(a, b, b, value=v), x, y)
        check(lambda a, b, v=alpha: torch.addcdiv(a, b, b, value=v), x, y, rtol=1e-5, atol=1e-5)
    check(torch.add, torch.arange(3), torch.arange(3), alpha=3)
    check_raises(RuntimeError, "bool tensor", torch.rsub, torch.ones(2), torch.tensor([True, False]))
    check_raises(RuntimeError, "must not be a floating", torch.rsub, torch.arange(2), torch.arange(2), alpha=1.5)
    check_raises(RuntimeError, r"The size of tensor a \(2\) must match", torch.rsub, torch.ones(3), torch.ones(2))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 2.0, -1.5, INF])
def test_pow_number(exponent):
    x = torch.tensor([0.0, 0.5, 2.0, -1.5, 1.0, INF, NAN])
    check(torch.pow, x, exponent)
    check(torch.pow, x.to(torch.bfloat16), exponent)
    check(lambda t, e=exponent: torch.pow(e, t), x, rtol=1e-5, atol=1e-6)
    if isinstance(exponent, int) and exponent >= 0:
        check(torch.pow, torch.arange(-3, 4), exponent)


def test_scalar_first_and_second():
    x, flags = torch.tensor([1.5, -2.0, 4.0]), torch.tensor([1, 2, 3, 12])
    check(lambda t: torch.remainder(7.0, t), x)
    check(lambda t: torch.remainder(t, 2.5), x)
    check(lambda t: torch.fmod(t, -2.5), x)
    check(lambda t: torch.floor_divide(t, 0.7), x)
    check(lambda t: torch.xlogy(2.0, t), x)
    check(lambda t: torch.xlogy(t, 2.0), x)
    check(lambda t: torch.copysign(t, -2.0), x)
    check(lambda t: torch.bitwise_and(t, 6), flags)
    check(lambda t: torch.bitwise_or(5, t), flags)
    check(lambda t: t ^ 3, flags)
    check(lambda t: 1 << t, flags)
    check_raises(NotImplementedError, "bitwise_and", torch.bitwise_and, x, x)


def test_lerp():
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    for weight in (0.0, 0.3, 0.7, 1.0, -2.0):
        check(torch.lerp, x, y, weight)
        check(torch.lerp, x.to(torch.bfloat16), y.to(torch.bfloat16), weight)
    check(torch.lerp, x, y, torch.rand(5))


def test_complex():
    x, y = torch.randn(3), torch.randn(3)
    check(torch.complex, x, y)
    check(torch.polar, x.abs(), y)
    check_raises(RuntimeError, "Expected both inputs to be Half, Float or Double", torch.complex, x, torch.arange(3))
    check_raises(RuntimeError, "Expected object of scalar type Float", torch.complex, x, y.double())
    check_raises(NotImplementedError, "ComplexHalf", torch.complex, x.half(), y.half())
    z, w = torch.complex(x, y), torch.complex(y, x)
    for function in (torch.add, torch.mul, torch.div, torch.pow, torch.eq, torch.sub, torch.logaddexp):
        check(function, z, w, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="In-place abs is not supported"):
        z.to("tpu").abs_()
    check(lambda t: t.clone().conj_physical_(), z)


# --- selection and filling -------------------------------------------------------------------------------------------------


def test_clamp():
    x = torch.tensor([-2.0, 0.5, 3.0, NAN, INF])
    check(torch.clamp, x, -1, 1)
    check(torch.clamp, x, min=0.0)
    check(torch.clamp, x, max=1)
    check(torch.clamp, x, 2, 1)
    check(torch.clamp, x, NAN, 1)
    check(torch.clamp, x, torch.tensor(0.0), torch.ones(5))
    check(torch.clamp, x, None, torch.zeros(5))
    check(torch.clamp, torch.arange(5), 1.5, 3.0)
    check(torch.clamp_min, x, 0.25)
    check(torch.clamp_max, x, torch.tensor(0.25))
    check(torch.clamp, x.to(torch.bfloat16), -0.1, 0.1)


def test_where():
    condition, x, y = torch.tensor([[True], [False]]), torch.randn(3), torch.randn(2, 3)
    check(torch.where, condition, x, y)
    check(torch.where, condition, x, 1.0)
    check(torch.where, condition, 2, torch.arange(3))
    check(torch.where, condition, x.to(torch.bfloat16), y)
    check(torch.where, torch.tensor(True), x, y)
    check_raises(RuntimeError, "where expected condition to be a boolean tensor", torch.where, x, x, x)
    check_raises(RuntimeError, "must match the size of tensor b", torch.where, torch.ones(2) > 0, torch.ones(3), torch.ones(2))


def test_masked_fill():
    x, mask = torch.randn(2, 3), torch.tensor([[True, False, True], [False, True, False]])
    check(torch.masked_fill, x, mask, -INF)
    check(torch.masked_fill, x, mask, torch.tensor(2))
    check(torch.masked_fill, torch.arange(3), mask, 1.7)
    check(lambda t, m: t.clone().masked_fill_(m, 1.0), torch.zeros(3, 2).t(), mask)
    check(lambda t, m: t.clone().masked_fill_(m.t(), 1.0), torch.zeros(3, 2), mask)
    check(torch.masked_fill, torch.tensor(1.0), torch.tensor(True), 2.0)
    check_raises(RuntimeError, "dtype unsigned char", torch.masked_fill, x, mask.byte(), 1)
    check_raises(RuntimeError, "0-dimensional value", torch.masked_fill, x, mask, torch.ones(2))
    check_raises(RuntimeError, "doesn't match the broadcast shape", lambda t, m: t.masked_fill_(m, 1), torch.ones(3), mask)


def test_fill_and_zero():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        check(lambda t: t.clone().fill_(3), torch.zeros(2, 3, dtype=dtype))
        check(lambda t: t.clone().zero_(), torch.ones(2, 3, dtype=dtype))
    check(lambda t: t.clone().fill_(torch.tensor(2.5)), torch.zeros(2, 3))
    check(torch.fill, torch.zeros(3), 1.5)
    x = torch.zeros(16, dtype=torch.bool, device="tpu")
    x[1:].fill_(True)
    assert x.tolist() == [False] + [True] * 15
    check_raises(RuntimeError, "0-dimension value tensor", lambda t: t.fill_(torch.ones(2, device="tpu")), torch.ones(2))


# --- layouts, in place, out ------------------------------------------------------------------------------------------------


def views():
    base = torch.randn(4, 6)
    yield base
    yield base.t()
    yield base[1:, ::2]
    yield base[:1].expand(3, 6)
    yield base[2, 3]
    yield base[:0]
    yield torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", range(7))
def test_layouts(case):
    x = list(views())[case]
    t = torch.randn(4, 6).to("tpu")
    on_tpu = {1: lambda: t.t(), 2: lambda: t[1:, ::2], 3: lambda: t[:1].expand(3, 6), 4: lambda: t[2, 3], 5: lambda: t[:0]}
    y = on_tpu.get(case, lambda: x.to("tpu"))()
    x = y.cpu()
    torch.testing.assert_close((y * 2 + y).cpu(), x * 2 + x)
    torch.testing.assert_close(torch.where(y > 0, y, 0.5).cpu(), torch.where(x > 0, x, 0.5))
    torch.testing.assert_close(torch.nan_to_num(y).cpu(), x)
    if case == 6:
        assert torch.where(y > 0, y, y).is_contiguous(memory_format=torch.channels_last)


def test_in_place_on_views():
    def program(t):
        t = t.clone()
        t[1:, ::2].mul_(2)
        t.t()[2].add_(1.5)
        t[0].clamp_(-0.5, 0.5)
        t[:, 1:3].copy_(t[:, 3:5].exp())
        t[3].masked_fill_(t[3] > 0, 7)
        t.select(1, 5).zero_()
        return t

    check(program, torch.randn(4, 6))


def test_out():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for function in (torch.add, torch.maximum, torch.eq, torch.atan2, torch.floor_divide, torch.logical_and):
        out = torch.empty(0, dtype=torch.bool if function in (torch.eq, torch.logical_and) else torch.float32, device="tpu")
        function(x.to("tpu"), y.to("tpu"), out=out)
        torch.testing.assert_close(out.cpu(), function(x, y))
    out = torch.empty(3, 4, dtype=torch.float64, device="tpu")
    torch.exp(x.to("tpu"), out=out)
    torch.testing.assert_close(out.cpu(), torch.exp(x).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rsqrt_of_many(dtype):
    x = torch.rand(600, 600, dtype=dtype) * 10
    x[0, :7] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, torch.finfo(dtype).max], dtype=dtype)
    check(torch.rsqrt, x)


def test_run_time_numbers_share_one_program():
    x = torch.randn(5, device="tpu")
    torch.add(x, x, alpha=0.25), torch.clamp(x, 0.25, 0.5), x * 0.25
    before = torch.tpu.counters()["compiles"]
    for step in range(5):
        torch.add(x, x, alpha=0.3 + step), torch.clamp(x, 0.3 + step, 9.0), x * (0.3 + step)
    assert torch.tpu.counters()["compiles"] == before


# --- gradients -------------------------------------------------------------------------------------------------------------

DIFFERENTIABLE = ["exp", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "tanh", "atan", "sigmoid", "erf", "abs", "lgamma"]
DIFFERENTIABLE += ["expm1", "logit", "sinc", "special.entr", "special.i0e", "special.erfcx", "erfinv"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_unary_gradient(name):
    def gradient(x):
        find(name)(x).square().sum().backward()
        return x.grad

    check(gradient, torch.tensor([0.2, 0.5, 0.9], requires_grad=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "pow", "atan2", "hypot", "maximum", "remainder", "logaddexp", "xlogy"]
)
def test_binary_gradient(name):
    def gradients(x, y):
        find(name)(x, y).square().sum().backward()
        return [x.grad, y.grad]

    x, y = torch.rand(4, 1) + 0.5, torch.rand(3) + 1
    check(gradients, x.requires_grad_(), y.requires_grad_(), rtol=1e-4, atol=1e-5)


def test_add_relu():
    """What quantized models call: the sum, its negative part cut off, NaN as 0."""
    add_relu = torch.ops.aten._add_relu
    x = torch.tensor([1.0, -3.0, NAN, 0.5])
    torch.tpu.fallback = "error"
    check(add_relu, x, torch.tensor([1.0, 1.0, 1.0, -2.0]))
    check(lambda x, y: add_relu(x, y, alpha=2), x, torch.tensor([1.0, 2.0, 1.0, -2.0]))
    check(add_relu, torch.tensor([1, -3]), torch.tensor([1, 1]))
    check(add_relu, x, 2.0)
    check(lambda x: torch.ops.aten._add_relu_(x.clone(), 2.0), x)
    torch.tpu.fallback = "warn"
