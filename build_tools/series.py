"""Computes the Chebyshev series and the polynomials of core/op/series_tables.c.

    python build_tools/series.py > core/op/series_tables.c && clang-format -i core/op/series_tables.c

Each function below that is marked `@series(low, high)` is one table: a function of t on that interval. Its coefficients are
found with 50 digits by the discrete cosine transform at Chebyshev nodes (Numerical Recipes, section 5.8). A series is cut where
what is left no longer shows in float64 ("wide") or float32 ("narrow") beside the function's smallest value, or beside its
greatest if it has a zero inside. A function marked `@polynomial(low, high, center, bits)` is a table of float32 only, in powers
of t - center, and cut where less than 2^-bits is left. tests/ops/test_special.py compares the tables with these functions.
Needs mpmath, which comes with torch.
"""

from collections.abc import Callable

import mpmath as mp
from mpmath import mpf, pi, sqrt

mp.mp.dps = 50
NODES = 64
SERIES: dict[str, tuple[Callable[[mpf], mpf], mpf, mpf]] = {}  # name: (function, low, high)
POLYNOMIALS: dict[str, tuple[Callable[[mpf], mpf], mpf, mpf, mpf, int]] = {}  # name: (function, low, high, center, bits)


def series(low, high):
    """Puts a function into SERIES."""

    def add(function):
        SERIES[function.__name__] = (function, mpf(low), mpf(high))
        return function

    return add


def polynomial(low, high, center, bits):
    """Puts a function into POLYNOMIALS."""

    def add(function):
        POLYNOMIALS[function.__name__] = (function, mpf(low), mpf(high), mpf(center), bits)
        return function

    return add


# --- Bessel functions ------------------------------------------------------------------------------------------------------


@series(0, 8)
def i0e_near(t):
    """exp(-t) I0(t)."""
    return mp.exp(-t) * mp.besseli(0, t)


@series(0, mpf(1) / 8)
def i0e_far(t):
    """sqrt(x) exp(-x) I0(x) at x = 1 / t."""
    return mp.exp(-1 / t) * mp.besseli(0, 1 / t) / sqrt(t)


def without_zeros(order, t):
    """J of x = sqrt(t) over the product of t - z^2 for its first two zeros z."""
    return mp.besselj(order, sqrt(t)) / mp.fprod(t - mp.besseljzero(order, k) ** 2 for k in (1, 2))


@series(0, 25)
def j0_near(t):
    """J0(x) over its first two zeros, t = x^2."""
    return without_zeros(0, t)


@series(0, 25)
def j1_near(t):
    """J1(x) / x over its first two zeros, t = x^2."""
    return without_zeros(1, t) / sqrt(t)


@series(0, 25)
def y0_near(t):
    """Y0(x) - 2 / pi log(x) J0(x), t = x^2."""
    x = sqrt(t)
    return mp.bessely(0, x) - 2 / pi * mp.log(x) * mp.besselj(0, x)


@series(0, 25)
def y1_near(t):
    """(Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x, t = x^2."""
    x = sqrt(t)
    return (mp.bessely(1, x) - 2 / pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def hankel(order, t):
    """P and x / 5 Q at x = 5 / sqrt(t): J and Y are sqrt(2 / (pi x)) times P cos - Q sin and P sin + Q cos (DLMF 10.17.3)."""
    x = 5 / sqrt(t)
    phase, scale = x - (2 * order + 1) * pi / 4, sqrt(pi * x / 2)
    j, y = scale * mp.besselj(order, x), scale * mp.bessely(order, x)
    return j * mp.cos(phase) + y * mp.sin(phase), (y * mp.cos(phase) - j * mp.sin(phase)) * x / 5


@series(0, 1)
def hankel_p0(t):
    """P of Hankel's form for order 0 (DLMF 10.17.3), t = 25 / x^2."""
    return hankel(0, t)[0]


@series(0, 1)
def hankel_q0(t):
    """Q of Hankel's form for order 0, times x / 5, t = 25 / x^2."""
    return hankel(0, t)[1]


@series(0, 1)
def hankel_p1(t):
    """P of Hankel's form for order 1, t = 25 / x^2."""
    return hankel(1, t)[0]


@series(0, 1)
def hankel_q1(t):
    """Q of Hankel's form for order 1, times x / 5, t = 25 / x^2."""
    return hankel(1, t)[1]


@series(0, 4)
def i0_small(t):
    """I0(x), t = x^2."""
    return mp.besseli(0, sqrt(t))


@series(0, 4)
def i1_small(t):
    """I1(x) / x, t = x^2."""
    return mp.besseli(1, sqrt(t)) / sqrt(t)


@series(0, 4)
def k0_near(t):
    """K0(x) + log(x / 2) I0(x), t = x^2."""
    x = sqrt(t)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


@series(0, 4)
def k1_near(t):
    """X (K1(x) - log(x / 2) I1(x)), t = x^2."""
    x = sqrt(t)
    return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))


@series(0, 0.5)
def k0_far(t):
    """sqrt(x) exp(x) K0(x), t = 1 / x."""
    return mp.exp(1 / t) * mp.besselk(0, 1 / t) / sqrt(t)


@series(0, 0.5)
def k1_far(t):
    """sqrt(x) exp(x) K1(x), t = 1 / x."""
    return mp.exp(1 / t) * mp.besselk(1, 1 / t) / sqrt(t)


# --- Airy's function -------------------------------------------------------------------------------------------------------


@series(-4.5, 1)
def airy_middle(t):
    """Ai(t)."""
    return mp.airyai(t)


@series(0, 1.5)
def airy_decay(t):
    """2 sqrt(pi) x^(1/4) exp(s) Ai(x) at s = 2/3 x^(3/2) = 1 / t."""
    s = 1 / t
    x = (s * 3 / 2) ** (mpf(2) / 3)
    return 2 * sqrt(pi) * mp.root(x, 4) * mp.exp(s) * mp.airyai(x)


def airy_waves(t):
    """F and G of sqrt(pi) x^(1/4) Ai(-x) = F sin(s + pi/4) - G / s cos(s + pi/4), with s = 2/3 x^(3/2) = 1 / sqrt(t)."""
    s = 1 / sqrt(t)
    x = (s * 3 / 2) ** (mpf(2) / 3)
    scale, phase = sqrt(pi) * mp.root(x, 4), s + pi / 4
    ai, bi = scale * mp.airyai(-x), scale * mp.airybi(-x)
    return ai * mp.sin(phase) + bi * mp.cos(phase), (bi * mp.sin(phase) - ai * mp.cos(phase)) * s


@series(0, mpf(1) / 40)
def airy_sine(t):
    """F of sqrt(pi) x^(1/4) Ai(-x) = F sin(s + pi/4) - G / s cos(s + pi/4), s = 2/3 x^(3/2), t = 1 / s^2."""
    return airy_waves(t)[0]


@series(0, mpf(1) / 40)
def airy_cosine(t):
    """G of the same."""
    return airy_waves(t)[1]


# --- the normal distribution -----------------------------------------------------------------------------------------------


@series(-1, 1)
def erfcx_scaled(t):
    """(1 + 2x) exp(x^2) erfc(x), t = (x - 3.75) / (x + 3.75)."""
    x = mpf("3.75") * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


@series(mpf(1) / 39, 0.5)
def ndtri_tail(t):
    """Z (x + z) - log(z) where x is the quantile of exp(-z^2 / 2), t = 1 / z; float64 adds a Newton step."""
    z = 1 / t
    log_p = -z * z / 2
    x = mp.findroot(lambda x: mp.log(mp.erfc(-x / sqrt(2)) / 2) - log_p, -z + (mp.log(z) + 1) / z)
    return z * (x + z) - mp.log(z)


# --- the gamma function ----------------------------------------------------------------------------------------------------


DIGAMMA_ZERO = mp.findroot(mp.digamma, 1.4616321449683622)


@series(1, 4)
def log_gamma(t):
    """log(gamma(t)) over its zeros, (t - 1) (t - 2)."""
    return mp.loggamma(t) / (t - 1) / (t - 2)


@series(1, 2)
def digamma_near(t):
    """digamma(t) over the distance from its zero."""
    return mp.digamma(t) / (t - DIGAMMA_ZERO)


@series(0, 0.25)
def digamma_far(t):
    """x^2 (log(x) - 1 / (2x) - digamma(x)), t = 1 / x^2."""
    x = 1 / sqrt(t)
    return x * x * (mp.log(x) - 1 / (2 * x) - mp.digamma(x))


@series(0, 0.8)
def stirling(t):
    """gamma(a) over Stirling's sqrt(2 pi / a) (a / e)^a at a = 1 / t."""
    a = 1 / t
    return mp.exp(mp.loggamma(a) + a - a * mp.log(a)) * sqrt(a / (2 * pi))


def temme_powers(count):
    """The powers of eta in c_0, c_1, ... of DLMF 8.12.7, where eta^2 / 2 = mu - log(1 + mu).

    mu is a power series by mu mu' = eta (1 + mu), 1 / mu - 1 / eta is c_0, and the others follow by DLMF 8.12.10 with the
    constants that cancel its pole.
    """
    length = 120
    mu = [mpf(0), mpf(1)]
    for n in range(2, length):
        rest = mp.fsum(mu[i] * (n - i + 1) * mu[n - i + 1] for i in range(2, n))
        mu.append((mu[n - 1] - rest) / (n + 1))
    inverse = [mpf(1)]  # of mu / eta
    for n in range(1, length - 1):
        inverse.append(-mp.fsum(mu[i + 1] * inverse[n - i] for i in range(1, n + 1)))
    rows = [inverse[1:]]
    for _ in range(count - 1):
        c = rows[-1]
        rows.append([(n + 2) * c[n + 2] - c[1] * rows[0][n] for n in range(len(c) - 2)])
    return rows


TEMME = temme_powers(7)


def temme(k):
    """The series of c_k."""

    def function(t):
        return mp.polyval(TEMME[k][::-1], t)

    function.__name__, function.__doc__ = f"temme{k}", f"c_{k} of DLMF 8.12.7, t = eta."
    return function


for k in range(len(TEMME)):
    series(-0.34, 0.28)(temme(k))


# --- polynomials of float32 ------------------------------------------------------------------------------------------------


@polynomial(-mp.log(2) / 2, mp.log(2) / 2, 0, 23)
def exp_rest(t):
    """(exp(t) - 1 - t) / t^2."""
    return (mp.exp(t) - 1 - t) / t**2


@polynomial(sqrt(mpf(1) / 2) - 1, sqrt(2) - 1, 0, 25)
def log_rest(t):
    """(log(1 + t) - t + t^2 / 2) / t^3."""
    return (mp.log1p(t) - t + t * t / 2) / t**3


@polynomial(sqrt(mpf(1) / 2) - 1, sqrt(2) - 1, 0, 27)
def log2_rest(t):
    """log2(1 + t) / t - 1."""
    return mp.log1p(t) / mp.log(2) / t - 1


@polynomial(sqrt(mpf(1) / 2) - 1, sqrt(2) - 1, 0, 28)
def log10_rest(t):
    """log10(1 + t) / t - 7 / 16."""
    return mp.log1p(t) / mp.log(10) / t - mpf(7) / 16


@polynomial(0, 0.25, 0, 27)
def atanh_rest(t):
    """atanh(x) / x - 1, t = x^2."""
    return mp.atanh(sqrt(t)) / sqrt(t) - 1


@polynomial(0, 1, 0, 28)
def erf_near(t):
    """erf(x) / x - 1, t = x^2."""
    return mp.erf(sqrt(t)) / sqrt(t) - 1


@polynomial(1, 4, 2.5, 26)
def erf_far(t):
    """(1 - erf(t))^(1/4)."""
    return mp.erfc(t) ** (mpf(1) / 4)


@polynomial(0, 0.25, 0, 28)
def erfinv_near(t):
    """erfinv(x) / x - 1, t = x^2."""
    return mp.erfinv(sqrt(t)) / sqrt(t) - 1


@polynomial(0, 1.25, 0.5, 27)
def erfcx_near(t):
    """exp(t^2) erfc(t)."""
    return mp.exp(t * t) * mp.erfc(t)


@polynomial(-0.5, 1, 0, 27)
def erfcx_far(t):
    """(1 + 2x) exp(x^2) erfc(x) for x >= 1.25, t = (x - 3.75) / (x + 3.75)."""
    return erfcx_scaled(t)


@polynomial(1, 4, 2.5, 28)
def log_gamma_quotient(t):
    """log(gamma(t)) over its zeros, (t - 1) (t - 2)."""
    return log_gamma(t)


# --- coefficients ----------------------------------------------------------------------------------------------------------


def coefficients(function, low, high):
    """NODES Chebyshev coefficients on [low, high], the first one halved, and the function's values at the nodes."""
    angles = [pi * (k + mpf(1) / 2) / NODES for k in range(NODES)]
    values = [function((high - low) / 2 * mp.cos(a) + (high + low) / 2) for a in angles]
    sums = [mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True)) for j in range(NODES)]
    return [sums[0] / NODES] + [2 * s / NODES for s in sums[1:]], values


def length(terms, values, bits):
    """How many terms it takes before what is left is below 2^-bits beside the function."""
    sizes = [abs(v) for v in values]
    one_sign = min(values) > 0 or max(values) < 0
    limit = mpf(2) ** -bits * (min(sizes) if one_sign else max(sizes))
    return next(n for n in range(1, NODES) if mp.fsum(abs(c) for c in terms[n:]) < limit)


def powers(terms, low, high, center):
    """The Chebyshev series on [low, high] in powers of t - center."""
    half, middle = (high - low) / 2, (high + low) / 2
    u = [(center - middle) / half, 1 / half]  # a polynomial in t - center, as all below

    def times_u(p):
        product = [mpf(0)] * (len(p) + 1)
        for i, c in enumerate(p):
            product[i] += c * u[0]
            product[i + 1] += c * u[1]
        return product

    result, before, now = [mpf(0)] * len(terms), [mpf(1)], u
    for c in terms:
        for i, p in enumerate(before):
            result[i] += c * p
        after = [2 * p for p in times_u(now)]
        for i, p in enumerate(before):
            after[i] -= p
        before, now = now, after
    return result


def numbers(values):
    """C text of an array's elements, for a double or a float."""
    return ", ".join(mp.nstr(c, 17, strip_zeros=False) for c in values)


def print_polynomial(name, function, low, high, center, bits):
    """Prints one table of powers."""
    terms = coefficients(function, low, high)[0]
    count = next(n for n in range(1, NODES) if mp.fsum(abs(c) for c in terms[n:]) < mpf(2) ** -bits)
    print(f"\n// {(function.__doc__ or '').strip('.')}; {mp.nstr(low, 6)} <= t <= {mp.nstr(high, 6)}")
    text = numbers(powers(terms[:count], low, high, center))
    print(f"const tt_polynomial tt_polynomial_{name} = {{{mp.nstr(center, 17)}, {count}, (const double[]){{{text}}}}};")


def main():
    """Prints the C file."""
    print("// series_tables.c - the series and polynomials of series.h, written by build_tools/series.py.")
    print('#include "op/series.h"')
    for name, (function, low, high) in SERIES.items():
        terms, values = coefficients(function, low, high)
        narrow = length(terms, values, 26)
        wide = narrow if name == "ndtri_tail" else length(terms, values, 55)
        interval = ", ".join(mp.nstr(end, 17) for end in (low, high))
        print(f"\n// {(function.__doc__ or '').strip('.')}; {mp.nstr(low, 6)} <= t <= {mp.nstr(high, 6)}")
        print(
            f"const tt_series tt_series_{name} = {{{interval}, {wide}, {narrow}, (const double[]){{{numbers(terms[:wide])}}}}};"
        )
    for name, row in POLYNOMIALS.items():
        print_polynomial(name, *row)


if __name__ == "__main__":
    main()
