"""Products of matrices and vectors in every dtype and layout, against CPU torch in full float32."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import weights_like

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
OTHERS = [torch.int64, torch.int32, torch.uint8, torch.complex64, torch.complex128]
aten = torch.ops.aten


pytestmark = pytest.mark.usefixtures("full_float32")


def tolerance(dtype):
    return {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.complex64: 1e-5}.get(dtype, 1e-12)


def check(function, *args):
    """Results, and for floats the gradients, against CPU torch."""
    outcomes = []
    for device in ("tpu", "cpu"):
        leaves = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in args]
        y = function(*leaves)
        wanted = [x for x in leaves if x.requires_grad]
        grads = torch.autograd.grad(y, wanted, weights_like(y)) if wanted else ()
        outcomes.append([x.detach().cpu() for x in (y, *grads)])
    for actual, expected in zip(*outcomes, strict=True):
        t = tolerance(expected.dtype)
        torch.testing.assert_close(actual, expected, rtol=t, atol=t * 10, equal_nan=True)


def make(dtype, *shape):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    return torch.randint(0, 200, shape).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + OTHERS)
def test_dtypes(dtype):
    a, b = make(dtype, 3, 4), make(dtype, 4, 5)
    check(torch.mm, a, b)
    check(torch.bmm, make(dtype, 2, 3, 4), make(dtype, 2, 4, 5))
    check(lambda s, x, y: torch.addmm(s, x, y, beta=2, alpha=3), make(dtype, 5), a, b)
    check(torch.mv, a, make(dtype, 4))
    check(torch.dot, make(dtype, 7), make(dtype, 7))


def test_integers_wrap():
    x = torch.full((2, 3), 2**40 + 1)
    assert torch.equal((x.to("tpu") @ x.t().to("tpu")).cpu(), x @ x.t())
    y = torch.full((2, 3), 200, dtype=torch.uint8)
    assert torch.equal((y.to("tpu") @ y.t().to("tpu")).cpu(), y @ y.t())


def test_add_variants():
    b1, b2 = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    check(lambda s, x, y: torch.addbmm(s, x, y, beta=2, alpha=3), torch.randn(3, 5), b1, b2)
    check(lambda s, x, y: torch.baddbmm(s, x, y, beta=0.5, alpha=3), torch.randn(1, 5), b1, b2)
    check(lambda s, x, y: torch.addmv(s, x, y, beta=0.5, alpha=3), torch.randn(3), b1[0], torch.randn(4))
    check(lambda s, x, y: torch.addr(s, x, y, beta=0.5, alpha=3), torch.randn(3, 4), torch.randn(3), torch.randn(4))
    check(torch.vdot, make(torch.complex64, 7), make(torch.complex64, 7))
    for gelu in (False, True):
        args = torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)
        expected = aten._addmm_activation(*args, use_gelu=gelu)
        actual = aten._addmm_activation(*(x.to("tpu") for x in args), use_gelu=gelu)
        torch.testing.assert_close(actual.cpu(), expected)


def test_beta_zero_ignores_self():
    nan = torch.full((2, 3), float("nan"), device="tpu")
    a, b, v = (torch.ones(*s, device="tpu") for s in ((2, 4), (4, 3), (4,)))
    assert torch.addmm(nan, a, b, beta=0).tolist() == [[4.0] * 3] * 2
    assert torch.addmm(nan, a[:, :0], b[:0], beta=0, alpha=2).tolist() == [[0.0] * 3] * 2
    assert torch.addmv(nan[:, 0], a, v, beta=0).tolist() == [4.0, 4.0]
    assert torch.addr(nan, a[:, 0], b[0], beta=0).tolist() == [[1.0] * 3] * 2
    assert torch.addbmm(nan, a[None][:0], b[None][:0], beta=0).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("shapes", [((3, 0), (0, 5)), ((0, 3), (3, 5)), ((3, 4), (4, 0))])
def test_zero_sizes(shapes):  # pytorch#187879
    check(torch.mm, *(torch.randn(s) for s in shapes))
    check(torch.bmm, *(torch.randn(2, *s) for s in shapes))
    check(torch.bmm, *(torch.randn(0, *s) for s in shapes))


def test_layouts():
    base = torch.randn(6, 8)
    check(torch.mm, base.t(), base)
    check(lambda x: torch.mm(x[1:4, ::2], x[1:5, 2:5]), base)
    check(lambda x: torch.mm(x[:1].expand(3, 8), x.t()), base)
    check(lambda x: torch.matmul(x.view(2, 3, 8), x.t()), base)
    check(lambda x, w, b: F.linear(x.transpose(1, 2), w, b), torch.randn(2, 4, 3), torch.randn(5, 4), torch.randn(5))
    check(lambda x, y: torch.einsum("bik,bkj->ij", x, y), torch.randn(2, 3, 4), torch.randn(2, 4, 5))


def test_out_and_in_place():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    whole = torch.zeros(5, 6, device="tpu")
    torch.mm(a.to("tpu"), b.to("tpu"), out=whole[1:4, :5])
    torch.testing.assert_close(whole[1:4, :5].cpu(), a @ b)
    assert whole.cpu()[0].abs().sum() == 0 and whole.cpu()[:, 5].abs().sum() == 0
    s = torch.ones(3, 5, device="tpu")
    s.addmm_(a.to("tpu"), b.to("tpu"), alpha=2)
    torch.testing.assert_close(s.cpu(), 1 + 2 * (a @ b))
    v = torch.ones(2, device="tpu")
    assert v.addmv_(torch.eye(2, device="tpu"), v).tolist() == [2, 2]  # pytorch#182287


def test_int_mm_and_out_dtype():
    x, y = torch.randint(-100, 100, (3, 4), dtype=torch.int8), torch.randint(-100, 100, (4, 5), dtype=torch.int8)
    for left in (x, x.view(torch.uint8)):
        assert torch.equal(torch._int_mm(left.to("tpu"), y.to("tpu")).cpu(), torch._int_mm(left, y))
    a, b = torch.randn(3, 64).bfloat16(), torch.randn(64, 5).bfloat16()
    wide = torch.mm(a.to("tpu"), b.to("tpu"), out_dtype=torch.float32).cpu()
    torch.testing.assert_close(wide, a.float() @ b.float())


def test_scaled_mm():
    f8 = torch.float8_e4m3fn
    a, b = torch.randn(16, 32).to(f8), torch.randn(16, 32).to(f8).t()
    cases = [
        (torch.tensor(1.5), torch.tensor(0.5), {"out_dtype": torch.float32}),
        (torch.rand(16, 1), torch.rand(1, 16), {"out_dtype": torch.bfloat16}),
        (torch.tensor(1.5), torch.tensor(0.5), {"out_dtype": torch.bfloat16, "bias": torch.randn(16)}),
    ]
    for scale_a, scale_b, kwargs in cases:
        expected = torch._scaled_mm(a, b, scale_a, scale_b, **kwargs)
        moved = {k: v.to("tpu") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        # torch wants the second operand column-major.
        actual = torch._scaled_mm(a.to("tpu"), b.t().to("tpu").t(), scale_a.to("tpu"), scale_b.to("tpu"), **moved)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-2, atol=1e-2)


ones = torch.ones


@pytest.mark.parametrize(
    "call",
    [
        lambda t: torch.mm(t(ones(2, 3)), t(ones(3, 2).double())),
        lambda t: torch.mm(t(ones(2, 3)), t(ones(2, 3))),
        lambda t: torch.addmm(t(ones(2, 2).double()), t(ones(2, 3)), t(ones(3, 2))),
        lambda t: torch.mv(t(ones(2, 3)), t(ones(2))),
        lambda t: torch.mv(t(ones(2, 3)), t(ones(2, 3))),
        lambda t: torch.mv(t(ones(2, 3)), t(ones(3).double())),
        lambda t: torch.dot(t(ones(3)), t(ones(4))),
        lambda t: torch.dot(t(ones(3)), t(ones(3).double())),
        lambda t: torch.dot(t(ones(2, 3)), t(ones(3))),
        lambda t: torch.bmm(t(ones(2, 2, 3)), t(ones(2, 3, 2).double())),
        lambda t: torch.baddbmm(t(ones(2, 2, 2).double()), t(ones(2, 2, 3)), t(ones(2, 3, 2))),
        lambda t: torch.addbmm(t(ones(2, 2)), t(ones(2, 2, 3)), t(ones(3, 3, 2))),
        lambda t: torch.addbmm(t(ones(5, 2)), t(ones(2, 2, 3)), t(ones(2, 3, 2))),
        lambda t: torch.addr(t(ones(2, 3)), t(ones(2, 3)), t(ones(3))),
        lambda t: torch.addr(t(ones(2, 3).long()), t(ones(2).long()), t(ones(3).long()), beta=0.5),
        lambda t: torch._int_mm(t(ones(2, 3).long()), t(ones(3, 2).long())),
    ],
)
def test_errors_are_torchs(call):
    with pytest.raises(RuntimeError) as expected:
        call(lambda x: x)
    with pytest.raises(RuntimeError) as actual:
        call(lambda x: x.to("tpu"))
    assert str(expected.value).splitlines()[0] in str(actual.value)


A, B, BATCH, V = (2, 3), (3, 4), (5, 2, 3), (3,)
OUTS = {  # the result's sizes and the call, of operands made by `t`
    "mm": ((2, 4), lambda t, out: torch.mm(t(*A), t(*B), out=out)),
    "bmm": ((5, 2, 4), lambda t, out: torch.bmm(t(*BATCH), t(5, 3, 4), out=out)),
    "addmm": ((2, 4), lambda t, out: torch.addmm(t(4), t(*A), t(*B), out=out)),
    "baddbmm": ((5, 2, 4), lambda t, out: torch.baddbmm(t(5, 2, 4), t(*BATCH), t(5, 3, 4), out=out)),
    "matmul": ((5, 2, 4), lambda t, out: torch.matmul(t(*BATCH), t(*B), out=out)),
    "mv": ((2,), lambda t, out: torch.mv(t(*A), t(*V), out=out)),
    "addmv": ((2,), lambda t, out: torch.addmv(t(2), t(*A), t(*V), out=out)),
    "dot": ((), lambda t, out: torch.dot(t(*V), t(*V), out=out)),
    "linear": ((2, 4), lambda t, out: torch._C._nn.linear(t(*A), t(4, 3), t(4), out=out)),
    "outer": ((2, 3), lambda t, out: torch.outer(t(2), t(*V), out=out)),
    # and others of torch's structured kernels
    "gather": ((2,), lambda t, out: torch.gather(t(2), 0, t(2).long(), out=out)),
    "softmax": ((2, 3), lambda t, out: torch.softmax(t(*A), 1, out=out)),
    "tril": ((2, 3), lambda t, out: torch.tril(t(*A), out=out)),
    "argmax": ((2,), lambda t, out: torch.argmax(t(*A), 1, out=out)),
    "isin": ((2, 3), lambda t, out: torch.isin(t(*A), t(2), out=out)),
}


def run_out(case, device, dtype, sizes):
    out = torch.full(sizes, 7, device=device, dtype=dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", torch.tpu.RecompilationWarning)  # the CPU has none
        try:
            OUTS[case][1](lambda *sizes: torch.zeros(sizes, device=device), out)
            ended = "done"
        except RuntimeError as error:
            ended = str(error)
    return ended, out.tolist(), [str(w.message) for w in caught]


@pytest.mark.parametrize("case", OUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64])
def test_out_of_another_dtype(case, dtype):
    sizes = OUTS[case][0]
    assert run_out(case, "tpu", dtype, sizes) == run_out(case, "cpu", dtype, sizes)


@pytest.mark.parametrize("case", OUTS)
@pytest.mark.parametrize("sizes", [(0,), (7,), (2, 4, 1)])
def test_out_of_another_size(case, sizes):
    dtype = {"argmax": torch.int64, "isin": torch.bool}.get(case, torch.float32)
    assert run_out(case, "tpu", dtype, sizes) == run_out(case, "cpu", dtype, sizes)
