"""Dense linear algebra on the device: factors against their definition in float64, everything else against CPU torch."""

import os

import pytest
import torch

L = torch.linalg
DTYPES = [torch.float32, torch.complex128]
# Below and above the width of a panel (32), batched, with one row.
SQUARE = [(1, 1), (2, 2), (2, 3, 7, 7), (2, 70, 70)]
SHAPES = [*SQUARE, (6, 3), (2, 5, 40), (70, 40), (40, 70)]


def cases(shapes):
    """With every dtype, but large complex ones only in make test-all: their programs take long to compile."""
    return [(s, d) for s in shapes for d in DTYPES if not d.is_complex or max(s) < 40 or os.environ.get("TORCH_TPU_TEST_ALL")]


# Empty ones, with every kind of emptiness.
EMPTY = [(0, 0), (0, 3, 3), (2, 0, 0), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0), (0, 3, 2), (0, 40, 40)]


pytestmark = pytest.mark.usefixtures("no_fallback", "full_float32")


def wide(x):
    """In the dtype to judge in."""
    return x.cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def small(x, dtype, factor=20):
    """Is this a few rounding errors of `dtype`?"""
    return x.numel() == 0 or x.abs().max().item() <= factor * torch.finfo(dtype).eps * max(x.shape[-2:]) ** 0.5


def is_unitary(q, dtype):
    return small(q.mH @ q - torch.eye(q.shape[-1], dtype=q.dtype), dtype)


def hermitian(*shape, dtype=torch.float32):
    x = torch.randn(*shape, dtype=dtype)
    return x + x.mH


def positive(*shape, dtype=torch.float32):
    x = torch.randn(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


def values(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def check(function, *args, rtol=1e-4, atol=1e-4):
    """Same values, dtypes and shapes on CPU and TPU."""
    actual = values(function(*[a.to("tpu") for a in args]))
    for x, y in zip(actual, values(function(*args)), strict=True):
        assert x.device.type == "tpu" and x.dtype == y.dtype
        torch.testing.assert_close(x.cpu(), y, rtol=rtol, atol=atol, equal_nan=True)


def check_grad(function, *args):
    """Gradients of a function whose results have no gauge, in float64."""

    def gradients(*inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        outs = [x for x in values(function(*inputs)) if x.is_floating_point() or x.is_complex()]
        return torch.autograd.grad(sum((x.abs() ** 2 * (1 + i)).sum() for i, x in enumerate(outs)), inputs)

    check(gradients, *[a.double() for a in args], rtol=1e-7, atol=1e-7)


def check_error(function, *args):
    """The same class and text on both."""
    with pytest.raises(Exception) as expected:
        function(*args)
    with pytest.raises(type(expected.value)) as actual:
        values(function(*[a.to("tpu") for a in args]))
        torch.tpu.synchronize()
    assert str(actual.value).split("\n")[0].split(" (called at ")[0].endswith(str(expected.value).split("\n")[0])


# --- Cholesky ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), cases(SQUARE))
def test_cholesky(shape, dtype):
    a = positive(*shape, dtype=dtype)
    for upper in (False, True):
        factor, info = L.cholesky_ex(a.to("tpu"), upper=upper)
        f = wide(factor)
        assert torch.equal(f, f.triu() if upper else f.tril()) and not info.cpu().any()
        assert small(((f.mH @ f if upper else f @ f.mH) - wide(a)) / wide(a).abs().max(), dtype)


def test_cholesky_reads_one_triangle():
    a = positive(4, 4)
    check(L.cholesky, a.tril())
    check(lambda x: L.cholesky(x, upper=True), a.triu())
    check(L.cholesky, positive(3, 4, 4).transpose(0, 1).contiguous().transpose(0, 1))


@pytest.mark.parametrize("n", [4, 70])
def test_cholesky_says_which_minor_is_not_positive(n):
    a = positive(3, n, n)
    a[1, n - 2, n - 2] = -1
    a[2, 0, 0] = 0
    info = L.cholesky_ex(a.to("tpu")).info
    assert info.tolist() == [0, n - 1, 1] == L.cholesky_ex(a).info.tolist()
    for function in (L.cholesky, torch.cholesky, lambda x: L.cholesky_ex(x, check_errors=True)):
        check_error(function, a)
        check_error(function, a[1])
    with pytest.raises(L.LinAlgError):
        L.cholesky(a.to("tpu"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_solutions(dtype):
    for shape in ((5, 5), (2, 40, 40)):
        a, b = positive(*shape, dtype=dtype), torch.randn(*shape[:-1], 3, dtype=dtype)
        for upper in (False, True):
            factor = L.cholesky(a, upper=upper)
            check(lambda b, f, upper=upper: torch.cholesky_solve(b, f, upper=upper), b, factor)
            check(lambda f, upper=upper: torch.cholesky_inverse(f, upper=upper), factor)
    check(torch.cholesky_solve, torch.randn(4, 1, 3, 2), torch.eye(3).expand(2, 3, 3))


def test_cholesky_gradients():
    a, b = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    check_grad(lambda a: L.cholesky(a @ a.mT + torch.eye(4, dtype=a.dtype, device=a.device)), a)
    check_grad(torch.cholesky_inverse, a.tril() + 3 * torch.eye(4))
    check_grad(torch.cholesky_solve, b, a.tril() + 3 * torch.eye(4))


# --- triangular -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solve_triangular(left, upper, unit, dtype):
    for n, batch in ((5, (2,)), (70, ())):
        a = torch.randn(*batch, n, n, dtype=dtype) / n + 2 * torch.eye(n, dtype=dtype)
        b = torch.randn(*batch, n, 3, dtype=dtype) if left else torch.randn(*batch, 3, n, dtype=dtype)
        check(lambda a, b: L.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit), a, b)


def test_solve_triangular_forms():
    a, b = torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(3, 1, 4, 2)
    solve = lambda a, b: L.solve_triangular(a, b, upper=True)  # noqa: E731
    check(solve, a.expand(2, 4, 4), b)
    check(solve, a.t(), b.transpose(0, 1))
    check(lambda a, b: L.solve_triangular(a, b, upper=True, out=torch.empty(0, device=a.device)), a, b[0, 0])
    for transpose in (False, True):
        check(lambda b, a, t=transpose: torch.triangular_solve(b, a, upper=False, transpose=t), b[:, 0], a)
    check_grad(solve, a, b[0, 0])
    check_error(solve, torch.randn(3, 4), b)
    check_error(solve, torch.randn(3, 3), torch.randn(4, 3))
    check_error(solve, torch.randn(2, 3, 3), torch.randn(3, 3, 3))
    check_error(solve, torch.ones(3, 3).bfloat16(), torch.ones(3, 3).bfloat16())


def test_nan_stays_in_its_column():
    a, b = torch.eye(40) + torch.ones(40, 40).tril(-1), torch.ones(40, 2)
    b[39, 1] = torch.nan
    x = L.solve_triangular(a.to("tpu"), b.to("tpu"), upper=False).cpu()
    assert not x[:, 0].isnan().any() and not x[:32].isnan().any() and x[39, 1].isnan()


# --- LU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), cases(SHAPES))
def test_lu(shape, dtype):
    a = torch.randn(*shape, dtype=dtype)
    p, lower, upper = map(wide, L.lu(a.to("tpu")))
    assert small(p @ lower @ upper - wide(a), dtype, 100)
    assert lower.abs().max() <= 1.5 and torch.equal(upper, upper.triu()) and torch.equal(lower, lower.tril())
    lu, pivots = L.lu_factor(a.to("tpu"))
    expected = L.lu_factor(a)
    assert torch.equal(pivots.cpu(), expected.pivots) and pivots.dtype == torch.int32
    torch.testing.assert_close(lu.cpu(), expected.LU, rtol=1e-3, atol=1e-3)
    for x, y in zip(torch.lu_unpack(lu, pivots), (p, lower, upper), strict=True):
        torch.testing.assert_close(wide(x), y)
    assert torch.lu_unpack(lu, pivots, unpack_data=False)[1].numel() == 0
    assert torch.lu_unpack(lu, pivots, unpack_pivots=False)[0].numel() == 0


def test_lu_without_pivots():
    a = torch.randn(2, 40, 40) + 40 * torch.eye(40)
    p, lower, upper = L.lu(a.to("tpu"), pivot=False)
    assert p.numel() == 0 and small((wide(lower) @ wide(upper) - wide(a)) / 40, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 40])
def test_solve_and_inverse(n, dtype):
    a, b = torch.randn(3, n, n, dtype=dtype) / n + torch.eye(n, dtype=dtype), torch.randn(3, n, 2, dtype=dtype)
    check(L.solve, a, b)
    check(L.solve, a[0], b)
    check(L.solve, a, b[0])
    check(L.solve, a, b[..., 0])
    check(L.solve, a[0].t(), b[0, :, 0])
    check(lambda a, b: L.solve(a, b, left=False), a, b.mT)
    check(L.inv, a)
    check(L.inv, a.mT)
    check(L.det, a)
    check(L.slogdet, a.mT)
    for left in (False, True):
        for adjoint in (False, True):

            def lu_solve(a, b, left=left, adjoint=adjoint):
                return L.lu_solve(*L.lu_factor(a), b if left else b.mT, left=left, adjoint=adjoint)

            check(lu_solve, a, b)
            check(lu_solve, a[:1], b)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (40, 40)])
def test_singular_matrices(shape):
    a = torch.randn(*shape)
    a[..., 1, :] = a[..., 0, :]
    a[..., 2] = 0
    for function in (L.inv, torch.inverse, lambda x: L.solve(x, x), lambda x: L.inv_ex(x, check_errors=True)):
        check_error(function, a)
    check_error(L.lu_factor, torch.zeros(shape))
    check_error(lambda x: L.lu_factor_ex(x, check_errors=True), torch.zeros(shape))
    check_error(lambda x: L.solve_ex(x, x, check_errors=True), torch.zeros(shape))
    assert torch.equal(L.lu_factor_ex(torch.zeros(shape, device="tpu")).info.cpu(), L.lu_factor_ex(torch.zeros(shape)).info)
    check(L.det, a)
    check(lambda x: L.slogdet(x)[0], torch.zeros(shape))


def test_lu_gradients():
    a, b = torch.randn(2, 4, 4) + 2 * torch.eye(4), torch.randn(2, 4, 3)
    check_grad(L.solve, a, b)
    check_grad(L.inv, a)
    check_grad(L.det, a)
    check_grad(L.det, a.mT)
    check_grad(lambda x: L.slogdet(x)[1], a)
    check_grad(torch.logdet, a @ a.mT)
    check_grad(lambda x: L.lu(x)[1:], a)
    check_grad(lambda x: L.lu_factor(x)[0], a)
    check_grad(lambda x, y: L.lu_solve(*L.lu_factor(x), y), a, b)
    check_grad(lambda x: torch.matrix_power(x, -2), a)


def test_out():
    a = torch.randn(3, 3)
    check(lambda x: L.inv(x, out=torch.empty(0, device=x.device)), a)
    check(lambda x: L.solve(x, x, out=torch.empty(3, 3, device=x.device).t()), a)
    check(lambda x: L.lu(x, out=tuple(torch.empty(0, device=x.device) for _ in range(3))), a)
    check(lambda x: L.matrix_exp(x), a)


# --- QR ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), cases(SHAPES))
def test_qr(shape, dtype):
    a = torch.randn(*shape, dtype=dtype)
    for mode in ("reduced", "complete", "r"):
        q, r = L.qr(a.to("tpu"), mode)
        expected = L.qr(a, mode)
        assert q.shape == expected.Q.shape
        torch.testing.assert_close(r.cpu(), expected.R, rtol=1e-3, atol=1e-3)  # the signs are LAPACK's
        if mode != "r":
            q, r = wide(q), wide(r)
            assert small(q @ r - wide(a), dtype, 50) and is_unitary(q, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (2, 7, 3), (3, 7), (2, 60, 40)])
def test_reflectors(shape, dtype):
    a = torch.randn(*shape, dtype=dtype)
    m, k = shape[-2], min(shape[-2:])
    check(torch.geqrf, a, rtol=1e-3, atol=1e-3)
    factors, tau = torch.geqrf(a)
    check(L.householder_product, factors[..., :k], tau)
    check(L.householder_product, factors[..., :k], tau[..., : k - 1])
    for left in (False, True):
        for transpose in (False, True):
            other = torch.randn(*shape[:-2], *((m, 4) if left else (4, m)), dtype=dtype)
            check(lambda a, t, c, left=left, tr=transpose: torch.ormqr(a, t, c, left, tr), factors, tau, other)


def test_qr_of_special_matrices():
    for a in (torch.zeros(4, 3), torch.eye(4), torch.ones(3, 5), torch.eye(3) * 1e-30, torch.eye(3) * 1e30):
        q, r = map(wide, L.qr(a.to("tpu")))
        assert small((q @ r - wide(a)) / max(a.abs().max().item(), 1e-45), torch.float32) and is_unitary(q, torch.float32)


def test_qr_gradients_and_errors():
    a = torch.randn(2, 5, 3)
    check_grad(L.qr, a)
    check_grad(lambda x: L.qr(x)[1], a.mT)
    check_grad(L.householder_product, torch.randn(2, 5, 3), torch.rand(2, 3))
    check_grad(lambda a, t, c: torch.ormqr(a, t, c), a, torch.rand(2, 3), torch.randn(2, 5, 2))
    check_error(torch.geqrf, torch.zeros(3))
    check_error(lambda x: L.qr(x, "some"), a)
    product = L.householder_product
    check_error(product, torch.zeros(3, 4), torch.zeros(3))
    check_error(product, torch.zeros(4, 3), torch.zeros(4))
    check_error(product, torch.zeros(2, 4, 3), torch.zeros(3, 3))
    check_error(product, torch.zeros(4, 3), torch.zeros(3).double())
    check_error(torch.ormqr, torch.zeros(4, 3), torch.zeros(3), torch.zeros(3, 4))
    check_error(torch.ormqr, torch.zeros(4, 3), torch.zeros(3), torch.zeros(1, 4, 4))


# --- eigenvalues and singular values ----------------------------------------------------------------------------------

SPECIAL = {
    "zero": torch.zeros(5, 5),
    "identity": torch.eye(6),
    "ones": torch.ones(7, 7),
    "pairs of both signs": torch.diag(torch.tensor([1.0, -1, 1, -1, 2, -2])),
    "exchange": torch.eye(6).flip(0),
    "chain": torch.diag(torch.ones(39), 1) + torch.diag(torch.ones(39), -1),
    "Hilbert": 1 / (torch.arange(9.0)[:, None] + torch.arange(9.0) + 1),
    "tiny": 1e-30 * torch.ones(4, 4).tril(),
    "huge": 1e30 * (torch.ones(4, 4) + torch.eye(4)),
    "graded": torch.ones(8, 8) * torch.logspace(0, -14, 8),
}


def check_eigh(a, dtype):
    w, v = L.eigh(a.to("tpu"))
    exact = wide(a).tril() + wide(a).tril(-1).mH
    scale = max(exact.abs().max().item(), 1e-300)
    v, w = wide(v), w.cpu().double()
    assert small((exact @ v - v * w[..., None, :]) / scale, dtype, 40) and is_unitary(v, dtype)
    assert small((w - L.eigvalsh(exact))[..., None] / scale, dtype, 40)
    torch.testing.assert_close(L.eigvalsh(a.to("tpu")).cpu().double(), w, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(("shape", "dtype"), cases(SQUARE))
def test_eigh(shape, dtype):
    check_eigh(hermitian(*shape, dtype=dtype), dtype)


@pytest.mark.parametrize("name", SPECIAL)
def test_eigh_of_special_matrices(name):
    for dtype in (torch.float32, torch.complex128):
        check_eigh(SPECIAL[name].to(dtype), dtype)


def test_eigh_forms():
    a = torch.randn(2, 4, 4)
    check(lambda x: L.eigvalsh(x, UPLO="U"), a)
    check(L.eigvalsh, a.mT)
    check(lambda x: L.eigh(x)[0], torch.full((2, 2), torch.nan))
    check(lambda x: L.eigh(x, out=(torch.empty(0, device=x.device), torch.empty(0, device=x.device)))[0], a)
    check(L.matrix_rank, a)
    check(lambda x: L.matrix_rank(x, hermitian=True), a)
    check(lambda x: L.pinv(x, hermitian=True), hermitian(2, 4, 4))
    check_grad(L.eigvalsh, a)
    check_grad(lambda x: (lambda w, v: v @ torch.diag_embed(w.exp()) @ v.mT)(*L.eigh(x)), a)
    check_error(L.eigh, torch.zeros(3, 4))
    check_error(lambda x: L.eigh(x, UPLO="X"), a)


def check_svd(a, dtype):
    for full in (False, True):
        u, s, v = L.svd(a.to("tpu"), full_matrices=full)
        assert [x.shape for x in (u, s, v)] == [x.shape for x in L.svd(a, full_matrices=full)]
        u, s, v, k = wide(u), s.cpu().double(), wide(v), s.shape[-1]
        scale = max(wide(a).abs().max().item(), 1e-300)
        assert small(((u[..., :k] * s[..., None, :]) @ v[..., :k, :] - wide(a)) / scale, dtype, 60)
        assert is_unitary(u, dtype) and is_unitary(v.mH, dtype)
        assert (s.diff(dim=-1) <= 0).all() and small((s - L.svdvals(wide(a)))[..., None] / scale, dtype, 100)
    torch.testing.assert_close(L.svdvals(a.to("tpu")).cpu().double(), s, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(("shape", "dtype"), cases(SHAPES))
def test_svd(shape, dtype):
    check_svd(torch.randn(*shape, dtype=dtype), dtype)


@pytest.mark.parametrize("name", SPECIAL)
def test_svd_of_special_matrices(name):
    a = SPECIAL[name]
    check_svd(a, torch.float32)
    check_svd(a[:3].to(torch.complex128), torch.complex128)


def test_svd_of_deficient_matrices():
    check_svd(torch.randn(20, 3) @ torch.randn(3, 15), torch.float32)
    check_svd((torch.randn(2, 3, 15) @ torch.randn(15, 1) @ torch.randn(1, 40)).double(), torch.float64)


def test_svd_forms():
    a = torch.randn(2, 5, 3)
    check(L.svdvals, a.transpose(0, 2))
    check(L.pinv, a)
    check(L.matrix_rank, a[0, :, :1] @ a[0, :1])
    check(lambda x: L.matrix_norm(x, 2), a)
    check(lambda x: L.matrix_norm(x, "nuc"), a)
    check(L.cond, a[:, :3])
    check_grad(L.svdvals, a)
    check_grad(L.pinv, a)
    check_grad(lambda x: (lambda u, s, v: (u * s[..., None, :].exp()) @ v)(*L.svd(x, full_matrices=False)), a)
    check_error(L.svd, torch.full((2, 2), torch.nan))
    check_error(lambda x: L.svd(x, driver="gesvd"), a)


# --- least squares, the exponential, LDL ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
def test_lstsq(driver, dtype):
    for a, b in (((5, 3), (5, 2)), ((3, 5), (3, 2)), ((2, 6, 4), (2, 6)), ((40, 36), (40, 2))):
        check_lstsq(driver, torch.randn(*a, dtype=dtype), torch.randn(*b, dtype=dtype), rtol=1e-3)


def check_lstsq(driver, a, b, rtol=1e-4, **options):
    """CPU torch's gelsy, its default, starts from pivots that it never set, so that gelsd is asked for the solution instead."""
    if driver in ("gels", "gelsd", "gelss"):
        return check(lambda a, b: L.lstsq(a, b, driver=driver, **options), a, b, rtol=rtol)
    actual, expected = L.lstsq(a.to("tpu"), b.to("tpu"), driver=driver, **options), L.lstsq(a, b, driver="gelsd", **options)
    torch.testing.assert_close(actual.solution.cpu(), expected.solution, rtol=rtol, atol=1e-4)
    torch.testing.assert_close(actual.rank.cpu(), expected.rank)
    assert actual.singular_values.numel() == 0


def test_lstsq_of_deficient_matrices():
    a, b = torch.randn(8, 2) @ torch.randn(2, 5), torch.randn(8, 3)
    for driver in ("gelsy", "gelsd", "gelss"):
        check_lstsq(driver, a, b)
        check_lstsq(driver, a.t().contiguous(), b[:5])
    check_lstsq(None, torch.diag(torch.tensor([4.0, 3, 1])), b[:3], rcond=0.5)
    check_lstsq(None, torch.zeros(4, 3), b[:4])
    check_grad(lambda a, b: L.lstsq(a, b)[0], torch.randn(5, 3), torch.randn(5, 2))
    check_error(L.lstsq, torch.zeros(3), b)
    check_error(L.lstsq, torch.zeros(3, 4), torch.zeros(4, 4))
    check_error(L.lstsq, torch.zeros(3, 4), torch.zeros(3, 4).double())
    check_error(lambda a, b: L.lstsq(a, b, driver="gelsx"), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exp(dtype):
    for scale in (0, 1e-3, 1, 10):
        a = torch.randn(3, 5, 5, dtype=dtype) * scale
        expected = L.matrix_exp(wide(a))
        actual = L.matrix_exp(a.to("tpu"))
        assert actual.dtype == dtype
        size = L.matrix_norm(expected)[:, None, None] * max(1, scale) ** 2
        assert small((wide(actual) - expected) / size, dtype)
    check(L.matrix_exp, torch.tensor([[[0.0, 500], [0, 0]], [[-60, 0], [0, 1]]]))


def test_matrix_exp_forms():
    a = torch.randn(2, 4, 4)
    check(torch.matrix_exp, a.mT)
    check_grad(L.matrix_exp, a)
    half = L.matrix_exp(a.bfloat16().to("tpu"))
    torch.testing.assert_close(half.cpu(), L.matrix_exp(a.bfloat16().float()).bfloat16())
    assert not L.matrix_exp(torch.full((2, 2), torch.inf, device="tpu")).cpu().isfinite().any()
    check_error(L.matrix_exp, torch.zeros(3, 4))
    check_error(L.matrix_exp, torch.zeros(3))
    check_error(L.matrix_exp, torch.zeros(3, 3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_hermitian", [False, True])
@pytest.mark.parametrize("zero_diagonal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (7, 7), (2, 3, 6, 6), (40, 40)])
def test_ldl(shape, zero_diagonal, is_hermitian, dtype):
    a = torch.randn(*shape, dtype=dtype)
    a = a + (a.mH if is_hermitian else a.mT)
    if zero_diagonal and shape[-1] > 1:
        a.diagonal(0, -2, -1).zero_()
    check(lambda x: L.ldl_factor_ex(x, hermitian=is_hermitian), a, rtol=1e-3, atol=1e-3)
    factors, pivots, _ = L.ldl_factor_ex(a, hermitian=is_hermitian)
    b = torch.randn(*shape[:-1], 2, dtype=dtype)
    x = L.ldl_solve(factors.to("tpu"), pivots.to("tpu"), b.to("tpu"), hermitian=is_hermitian)
    norm = wide(a).norm() * wide(x).norm()
    assert small((wide(a) @ wide(x) - wide(b)) / norm, dtype)


def test_ldl_of_a_zero_matrix():
    check(L.ldl_factor_ex, torch.zeros(2, 3, 3))


# --- all of them ------------------------------------------------------------------------------------------------------

ALL = {
    "cholesky_ex": L.cholesky_ex,
    "cholesky": torch.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "cholesky_solve": lambda a: torch.cholesky_solve(a, a),
    "solve_triangular": lambda a: L.solve_triangular(a, a, upper=True),
    "triangular_solve": lambda a: torch.triangular_solve(a, a),
    "lu_factor_ex": L.lu_factor_ex,
    "lu": L.lu,
    "lu_solve": lambda a: L.lu_solve(*L.lu_factor_ex(a)[:2], a),
    "lu_unpack": lambda a: torch.lu_unpack(*L.lu_factor_ex(a)[:2]),
    "solve": lambda a: L.solve(a, a),
    "inv": L.inv,
    "det": L.det,
    "slogdet": L.slogdet,
    "qr": L.qr,
    "complete qr": lambda a: L.qr(a, "complete"),
    "r": lambda a: L.qr(a, "r"),
    "householder_product": lambda a: L.householder_product(*torch.geqrf(a)),
    "ormqr": lambda a: torch.ormqr(*torch.geqrf(a), a),
    "eigh": L.eigh,
    "eigvalsh": L.eigvalsh,
    "svd": L.svd,
    "svdvals": L.svdvals,
    "lstsq": lambda a: L.lstsq(a, a),
    "matrix_exp": L.matrix_exp,
    "ldl_factor_ex": L.ldl_factor_ex,
    "ldl_solve": lambda a: L.ldl_solve(*L.ldl_factor_ex(a)[:2], a),
}


@pytest.mark.parametrize("name", ALL)
def test_empty(name):
    for shape in EMPTY:
        a = torch.zeros(shape)
        try:
            expected = values(ALL[name](a))
        except RuntimeError as error:
            if "INTERNAL ASSERT" not in str(error):  # CPU torch's own faults are not asked for
                check_error(ALL[name], a)
            continue
        for x, y in zip(values(ALL[name](a.to("tpu"))), expected, strict=True):
            assert x.dtype == y.dtype and torch.equal(x.cpu(), y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_dtypes(dtype):
    a = positive(5, 5, dtype=dtype)
    for name, function in ALL.items():
        if name not in ("cholesky_inverse", "svd", "eigh"):  # one reads a triangle of junk, two have gauges
            check(function, a, rtol=1e-3, atol=1e-3)
    check_svd(a, dtype)
    check_eigh(a, dtype)


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("lstsq", "lu_unpack", "matrix_exp")])
def test_refused_dtypes(name):
    for dtype in (torch.bfloat16, torch.int64):
        check_error(ALL[name], torch.eye(3, dtype=dtype))
