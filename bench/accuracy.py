"""Finds the largest error of each elementary and special function: `python bench/accuracy.py [--ops REGEX] [--write]`.

Errors are in units in the last place (ulp) of the result's dtype, against values in float64: CPU torch's, or scipy's where
torch's float64 kernel is no better than the float32 one. The same for CPU torch beside it. Arguments are a fixed grid: 20,000
random ones (seeded) in each interval of the row, in which small ones are drawn by magnitude, and the floats around zeros and
edges. Denormal arguments and results are left out, since XLA flushes them. `--write` writes docs/accuracy.md.
"""

import argparse
import math
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.special as sp
import torch
import torch.nn.functional as F

COUNT = 20_000
ANY = 1e30  # "up to any size": by magnitude


@dataclass
class Row:
    """A function and where to look: intervals of x, and those of y for a function of two arguments."""

    name: str
    x: list[tuple[float, float]]
    y: list[tuple[float, float]] | None = None
    reference: Callable | None = None  # numpy, float64; None: torch's own float64 kernel
    around: list[float] = field(default_factory=list)  # points whose neighbours are looked at
    call: Callable | None = None


def special(name):
    """torch.special.name or torch.name."""
    return getattr(torch.special, name, None) or getattr(torch, name)


def whole(low, high):
    """The sizes of both signs between low and high."""
    return [(-high, -low), (low, high)]


J_ZEROS = [2.404825557695773, 3.8317059702075125, 0.8935769662791675, 2.197141326031017, 3.957678419314858]
WIDE, TURNS = whole(1e-30, ANY), [(-100, 100), (-1e5, 1e5), *whole(1e-30, 1)]
ROWS = [
    Row("exp", [(-87, 88), *whole(1e-30, 1)]),
    Row("exp2", [(-125, 127), *whole(1e-30, 1)]),
    Row("expm1", [(-20, 88), *whole(1e-30, 1)]),
    Row("log", [(1e-30, ANY), (0.5, 2)], around=[1]),
    Row("log2", [(1e-30, ANY), (0.5, 2)], around=[1]),
    Row("log10", [(1e-30, ANY), (0.5, 2)], around=[1]),
    Row("log1p", [(-0.999, 10), (1, ANY), *whole(1e-30, 0.5)]),
    Row("sqrt", [(1e-30, ANY)]),
    Row("rsqrt", [(1e-30, ANY)]),
    Row("reciprocal", WIDE),
    Row("sin", TURNS, around=[k * math.pi for k in range(1, 20)]),
    Row("cos", TURNS, around=[(k + 0.5) * math.pi for k in range(20)]),
    Row("tan", TURNS, around=[k * math.pi / 2 for k in range(1, 20)]),
    Row("asin", [(-1, 1), *whole(1e-30, 1e-3)], around=[1, -1]),
    Row("acos", [(-1, 1), *whole(1e-30, 1e-3)], around=[1, -1]),
    Row("atan", [(-10, 10), *WIDE]),
    Row("sinh", [(-88, 88), *whole(1e-30, 1)]),
    Row("cosh", [(-88, 88), *whole(1e-30, 1)]),
    Row("tanh", [(-10, 10), *whole(1e-30, 1)]),
    Row("asinh", [(-10, 10), *WIDE]),
    Row("acosh", [(1, 10), (1, ANY)], around=[1]),
    Row("atanh", [(-1, 1), *whole(1e-30, 0.5)], around=[1, -1]),
    Row("sinc", [(-20, 20), *whole(1e-30, 1)], around=list(range(1, 20))),
    Row("sigmoid", [(-80, 80), *whole(1e-30, 1)]),
    Row("logit", [(0, 1), (1e-30, 0.1)], around=[0.5]),
    Row("pow", [(1e-3, 1e3), (0.5, 2)], [(-10, 10)]),
    Row("atan2", WIDE, [(-10, 10)]),
    Row("hypot", [(-10, 10), (1, 1e18)], [(-10, 10)]),
    Row("logaddexp", [(-20, 20)], [(-20, 20)]),
    Row("logaddexp2", [(-20, 20)], [(-20, 20)]),
    Row("xlogy", [(-10, 10)], [(1e-3, 1e3)]),
    Row("xlog1py", [(-10, 10)], [(-0.9, 10)]),
    Row("erf", [(-4, 4), *whole(1e-30, 1)]),
    Row("erfc", [(-4, 9), *whole(1e-30, 1)]),
    Row("erfinv", [(-1, 1), *whole(1e-30, 1e-3)], around=[1, -1]),
    Row("erfcx", [(-9, 9), (1, ANY)], reference=sp.erfcx),
    Row("ndtri", [(0, 1), (1e-30, 0.1)], reference=sp.ndtri, around=[0.5]),
    Row("log_ndtr", [(-10, 5), (-1e5, -10)], reference=sp.log_ndtr),
    Row("entr", [(0, 2), (1e-30, 0.1), (1, 1e30)], around=[1]),
    Row("lgamma", [(0, 40), (1e-30, ANY)], around=[1, 2]),
    Row("lgamma, x < 0", [(-10, 0)], call=torch.lgamma),
    Row("digamma", [(0, 10), (1e-30, ANY)], reference=sp.digamma, around=[1.4616321449683622]),
    Row("digamma, x < 0", [(-10, 0)], reference=sp.digamma, call=torch.digamma),
    Row("polygamma(1)", [(-5, 10), (1e-10, 1e10)], reference=lambda x: zeta_of(1, x), call=lambda x: torch.polygamma(1, x)),
    Row("polygamma(2)", [(-5, 10), (1e-5, 1e5)], reference=lambda x: zeta_of(2, x), call=lambda x: torch.polygamma(2, x)),
    Row("multigammaln(2)", [(0.6, 40)], call=lambda x: torch.special.multigammaln(x, 2)),
    Row("zeta", [(1.01, 20)], [(0.1, 50)], reference=sp.zeta),
    Row("i0", [(-80, 80), *whole(1e-30, 1)], reference=sp.i0),
    Row("i0e", [(-80, 80), (1, ANY)], reference=sp.i0e),
    Row("i1", [(-80, 80), *whole(1e-30, 1)], reference=sp.i1),
    Row("i1e", [(-80, 80), (1, ANY)], reference=sp.i1e),
    Row("modified_bessel_k0", [(0, 80), (1e-30, 2)], reference=sp.k0),
    Row("modified_bessel_k1", [(0, 80), (1e-30, 2)], reference=sp.k1),
    Row("scaled_modified_bessel_k0", [(0, 80), (1e-30, 1e30)], reference=sp.k0e),
    Row("scaled_modified_bessel_k1", [(0, 80), (1e-30, 1e30)], reference=sp.k1e),
    Row("bessel_j0", [(-5, 5), (-100, 100)], reference=sp.j0, around=J_ZEROS[:1]),
    Row("bessel_j1", [(-5, 5), (-100, 100), *whole(1e-30, 1)], reference=sp.j1, around=J_ZEROS[1:2]),
    Row("bessel_y0", [(0, 5), (0, 100), (1e-30, 1)], reference=sp.y0, around=[J_ZEROS[2], J_ZEROS[4]]),
    Row("bessel_y1", [(0, 5), (0, 100), (1e-30, 1)], reference=sp.y1, around=J_ZEROS[3:4]),
    Row("spherical_bessel_j0", [(-20, 20)], reference=lambda x: sp.spherical_jn(0, x)),
    Row("airy_ai", [(-2, 10), (-20, -2)], reference=lambda x: sp.airy(x)[0]),
    Row("gelu", [(-4, 10), *whole(1e-30, 1)], call=F.gelu),
    Row("gelu, tanh", [(-3, 10), *whole(1e-30, 1)], call=lambda x: F.gelu(x, approximate="tanh")),
    Row("silu", [(-80, 80), *whole(1e-30, 1)], call=F.silu),
    Row("mish", [(-40, 80), *whole(1e-30, 1)], call=F.mish),
    Row("elu", [(-20, 1), *whole(1e-30, 1)], call=F.elu),
    Row("selu", [(-20, 1), *whole(1e-30, 1)], call=F.selu),
    Row("softplus", [(-80, 80), *whole(1e-30, 1)], call=F.softplus),
    Row("logsigmoid", [(-80, 80), *whole(1e-30, 1)], call=F.logsigmoid),
    Row("igamma", [(0.1, 100)], [(0.1, 100)], reference=sp.gammainc),
    Row("igammac", [(0.1, 100)], [(0.1, 100)], reference=sp.gammaincc),
]


def zeta_of(n, x):
    """Polygamma by scipy's zeta, which torch reflects the same way; NaN where scipy has no value."""
    return sp.polygamma(n, np.where(x > 0, x, np.nan))


def points(intervals, around, dtype, generator):
    """The grid, as numbers of dtype."""
    parts = []
    for low, high in intervals:
        u = torch.rand(COUNT, generator=generator, dtype=torch.float64)
        small, large = sorted((abs(low), abs(high)))
        if low * high > 0 and large / small >= 1e4:  # by magnitude
            parts.append(math.copysign(1, low) * torch.exp(math.log(small) + u * math.log(large / small)))
        else:
            parts.append(low + (high - low) * u)
    for center in around:
        near = torch.tensor([center], dtype=torch.float64).to(dtype).double()
        steps = torch.arange(-64, 65, dtype=torch.float64) * torch.finfo(dtype).eps / 2 * abs(center)
        parts += [near, near + steps]
    x = torch.cat(parts).to(dtype)
    return x[x.double().abs() >= torch.finfo(torch.float32).tiny]


def errors(actual, expected):
    """In ulps of actual's dtype, where both the expected number and its rounding are normal."""
    info = torch.finfo(actual.dtype)
    ulp = info.eps * torch.exp2(torch.frexp(expected).exponent.double() - 1)
    error = ((actual.double() - expected) / ulp).abs()
    seen = (expected.abs() >= info.tiny) & (expected.abs() <= info.max)
    return torch.where(seen, error.nan_to_num(nan=math.inf), 0)


def measure(row, dtype):
    """The largest error on the TPU, where it is, and CPU torch's; None where CPU torch has no such kernel."""
    generator = torch.Generator().manual_seed(0)
    args = [points(row.x, row.around, dtype, generator)]
    if row.y is not None:
        args.append(points(row.y, [], dtype, generator))
        count = min(len(a) for a in args)
        args = [a[torch.randperm(len(a), generator=generator)[:count]] for a in args]
    function = row.call or special(row.name)
    exact = [a.double() for a in args]
    expected = torch.from_numpy(row.reference(*(a.numpy() for a in exact))) if row.reference else function(*exact)
    ours = errors(function(*(a.to("tpu") for a in args)).cpu(), expected)
    worst = ours.argmax()
    try:
        theirs = errors(function(*args), expected).max().item()
    except RuntimeError:
        theirs = None
    return ours.max().item(), ", ".join(f"{a[worst].item():.6g}" for a in args), theirs


HEADER = """# Accuracy

The largest error found, in units in the last place (ulp) of the result, against float64; CPU torch's own beside it. Half an ulp
is the best that a rounded result can be. `python bench/accuracy.py --write` made this page, on the virtual TPU (XLA CPU): it
looks at {count} random arguments in each of a few intervals per function and at the floats around zeros and edges, seeded, so
that it finds the same again. Near a zero of a function an error of the argument's own size is many ulps: where both columns are
large, read them as "no digits are left there". Denormal arguments and results are left out. A dash: CPU torch has no bfloat16
kernel.

The float32 forms of expm1, log1p, log2, log10, the hyperbolic, error and gamma functions are written out, since XLA's are 2
to 5 ulp off; erfc, lgamma and zeta stay at more than twice CPU torch's error. Below 0 lgamma and digamma are worked out in
float64, which takes longer, and only where an argument is negative. Float64's random normal numbers keep XLA's erf_inv, 36 ulp
off in their tails, since a better one takes longer still.

| function | float32 | at | CPU torch | bfloat16 | CPU torch |
|---|---|---|---|---|---|
"""


def number(x):
    """Short text of an error."""
    return "-" if x is None else f"{x:.2f}" if x < 10 else f"{x:.3g}"


def main():
    """Measures and prints, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="regular expression of names")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    torch.tpu.fallback = "error"
    page = HEADER.format(count=f"{COUNT:,}")
    print(page, end="")
    for row in ROWS:
        if not re.search(options.ops, row.name):
            continue
        ours, where, theirs = measure(row, torch.float32)
        narrow, _, their_narrow = measure(row, torch.bfloat16)
        cells = [row.name, number(ours), where, number(theirs), number(narrow), number(their_narrow)]
        line = "| " + " | ".join(cells) + " |"
        print(line, "  <-- worse" if theirs is not None and ours > max(4, 2 * theirs) else "", flush=True)
        page += line + "\n"
    if options.write:
        (pathlib.Path(__file__).parents[1] / "docs" / "accuracy.md").write_text(page)


if __name__ == "__main__":
    main()
