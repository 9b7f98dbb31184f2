"""Compile and run time of the dense linear algebra on "tpu", beside CPU torch.

    python bench/linalg.py [--sizes 8 64 256] [--rounds 15] [--ops eigh,svd] [--dtype float32]

Both are measured in one run, in alternating rounds; run times are the best of all rounds in milliseconds, the compile time is
what the first call takes beyond that.
"""

import argparse
import time
from collections.abc import Callable

import torch

L = torch.linalg
Case = tuple[Callable[[torch.Tensor], object], str]

# The function and the kind of its matrix.
CASES: dict[str, Case] = {
    "cholesky_ex": (L.cholesky_ex, "positive"),
    "solve_triangular": (lambda a: L.solve_triangular(a, a, upper=False), "positive"),
    "lu_factor_ex": (L.lu_factor_ex, "general"),
    "solve_ex": (lambda a: L.solve_ex(a, a), "general"),
    "inv_ex": (L.inv_ex, "general"),
    "slogdet": (L.slogdet, "general"),
    "geqrf": (torch.geqrf, "general"),
    "qr": (L.qr, "general"),
    "eigvalsh": (L.eigvalsh, "symmetric"),
    "eigh": (L.eigh, "symmetric"),
    "svdvals": (L.svdvals, "general"),
    "svd": (L.svd, "general"),
    "lstsq": (lambda a: L.lstsq(a, a), "general"),
    "lstsq gels": (lambda a: L.lstsq(a, a, driver="gels"), "general"),
    "matrix_exp": (L.matrix_exp, "general"),
    "ldl_factor_ex": (L.ldl_factor_ex, "symmetric"),
}


def matrix(kind: str, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Random [n, n]: general, symmetric, or positive definite and well conditioned."""
    x = torch.randn(n, n, dtype=dtype)
    if kind == "symmetric":
        return x + x.mH
    return x @ x.mH / n + torch.eye(n, dtype=dtype) if kind == "positive" else x


def timed(function: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    """Seconds of one call, until its results are there."""
    begin = time.perf_counter()
    function(x)
    if x.is_tpu:
        torch.tpu.synchronize()
    return time.perf_counter() - begin


def measure(case: Case, n: int, rounds: int, dtype: torch.dtype) -> tuple[float, float, float]:
    """Compile seconds, run seconds on tpu, run seconds on the CPU."""
    function, kind = case
    host = matrix(kind, n, dtype)
    device = host.to("tpu")
    first = timed(function, device)
    timed(function, host)
    pairs = [(timed(function, device), timed(function, host)) for _ in range(rounds)]
    run, cpu = (min(column) for column in zip(*pairs, strict=True))
    return first - run, run, cpu


def main() -> None:
    """Prints one line per op and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 256])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.tpu.fallback = "error"
    torch.ones(2, device="tpu").add(1).cpu()  # the plugin is loaded before anything is timed
    print(f"{'op':18}{'n':>5}{'compile s':>11}{'tpu ms':>10}{'cpu ms':>10}{'ratio':>8}")
    for name, case in CASES.items():
        if args.ops and name not in args.ops.split(","):
            continue
        for n in args.sizes:
            compile_time, run, cpu = measure(case, n, args.rounds, getattr(torch, args.dtype))
            print(f"{name:18}{n:5}{compile_time:11.2f}{run * 1e3:10.3f}{cpu * 1e3:10.3f}{run / cpu:8.1f}", flush=True)


if __name__ == "__main__":
    main()
