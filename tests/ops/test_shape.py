"""Joining, turning, padding, windows, triangles and distances, against CPU torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import LAYOUTS, flat, to_tpu

A = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def make(*shape, dtype=torch.float32):
    x = torch.randint(-3, 4, shape)
    if dtype.is_complex:
        return torch.complex(x.float(), torch.randint(-3, 4, shape).float()).to(dtype)
    return x.to(dtype)


def check(function, *args, rtol=None, atol=None):
    """Same values, dtypes, shapes and memory formats on CPU and TPU."""
    for actual, expected in zip(flat(function(*to_tpu(args))), flat(function(*args)), strict=True):
        assert actual.device.type == "tpu"
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=rtol, atol=atol)
        if expected.dim() == 4 and expected.numel() > 0:
            wanted = expected.is_contiguous(memory_format=torch.channels_last)
            assert actual.is_contiguous(memory_format=torch.channels_last) == wanted


def check_grad(function, *args, **tolerances):
    """Gradients of every argument that requires one, for a weighted sum of the result."""

    def gradients(*args):
        out = function(*args)
        weight = torch.arange(1.0, out.numel() + 1).reshape(out.shape).to(out.device, out.dtype)
        inputs = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
        return torch.autograd.grad((out * weight).sum(), [a for a in inputs if isinstance(a, torch.Tensor) and a.requires_grad])

    check(gradients, *args, **tolerances)


def check_error(function, *args, match=None):
    """The same class of error on both, and a message that has `match`."""
    with pytest.raises(Exception, match=match) as expected:
        function(*args)
    with pytest.raises(type(expected.value), match=match):
        function(*to_tpu(args))


# --- joining ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_cat_stack_dtypes(dtype):
    check(lambda xs: torch.cat(xs, 1), [make(2, 3, dtype=dtype), make(2, 1, dtype=dtype)])
    check(lambda xs: torch.stack(xs, -1), [make(2, 3, dtype=dtype), make(2, 3, dtype=dtype)])


def test_cat():
    x, y = make(2, 3), make(2, 3, 4, 5)
    check(torch.cat, [x, make(1, 3).long(), make(2, 3).bool()])
    check(torch.cat, [torch.empty(0), x, torch.empty(0, 3)])
    check(torch.cat, [torch.empty(0), torch.empty(0)])
    check(lambda xs: torch.cat(xs, -1), [x.t(), x.t()[:, :1]])
    check(torch.cat, [y.to(memory_format=torch.channels_last)] * 2)
    check(torch.cat, [make(1)] * 40)
    check(lambda xs: torch.cat(xs, out=torch.empty(0, device=xs[0].device)), [x, x])
    check_grad(torch.cat, [x.requires_grad_(), make(1, 3).requires_grad_()])
    check_error(torch.cat, [x.detach(), make(2, 2)], match="Sizes of tensors must match")


def test_stack():
    x = make(2, 3)
    check(torch.stack, [x, x.long()])
    check(lambda xs: torch.stack(xs, 2), [x.t(), x.t()])
    check(torch.stack, [torch.tensor(1.0), torch.tensor(2)])
    check(torch.hstack, [x, x])
    check(torch.dstack, [x, x])
    check_grad(torch.stack, [x.requires_grad_(), make(2, 3).requires_grad_()])
    check_error(torch.stack, [make(2, 3), make(2, 2)], match="equal size, but got .2, 3. at entry 0 and")
    check_error(lambda xs: torch.stack(xs, 5), [make(2), make(2)], match="Dimension out of range")


def test_block_diag():
    check(lambda *xs: torch.block_diag(*xs), make(2, 3), torch.tensor(5.0), make(2).long())
    check(lambda *xs: torch.block_diag(*xs), make(2, 0), make(1, 2))
    check_grad(lambda *xs: torch.block_diag(*xs), make(2, 3).requires_grad_(), make(2).requires_grad_())
    check_error(lambda *xs: torch.block_diag(*xs), make(2, 2, 2), match="must have 2 or fewer dimensions")


# --- turning ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_turns(layout):
    def turns(x):
        x = LAYOUTS[layout](x)
        return [
            torch.roll(x, (1, -2), (0, 2)),
            torch.roll(x, 3),
            torch.flip(x, (0, -1)),
            torch.rot90(x, 1, (0, 2)),
            torch.rot90(x, -2, (1, 2)),
            torch.rot90(x, 7, (2, 0)),
            x.repeat(2, 1, 3),
            x.repeat(2, 1, 1, 2),
            x.tile(2),
        ]

    check(turns, make(3, 4, 5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_turns_dtypes(dtype):
    check(
        lambda x: [torch.roll(x, 1, 0), torch.flip(x, (0,)), torch.rot90(x), x.repeat(2, 2), x.tril(), x.triu(1)],
        make(3, 4, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_roll_of_many(dtype):
    x = make(3, 300, 301, dtype=dtype)
    check(lambda x: [torch.roll(x, 1, 2), torch.roll(x, (-2, 300), (1, -1)), torch.roll(x, 5)], x)
    check(lambda x: torch.roll(x.transpose(0, 2), 2, 2), x)


def test_turns_edges():
    x = make(3, 4)
    check(lambda x: [torch.roll(x, 1), torch.flip(x, ()), x.repeat(2)], torch.tensor(2.0))
    check(lambda x: [x.repeat(0, 2), x.repeat(1, 1), torch.roll(x, 8, 1)], x)
    check(lambda x: torch.flip(x, (1,)), make(2, 3, 4, 5).to(memory_format=torch.channels_last))
    check_grad(lambda x: torch.roll(x, 1, 0) + torch.flip(x, (1,)) + x.repeat(2, 1)[:3] + torch.rot90(x, 2), x.requires_grad_())
    x = x.detach()
    check_error(lambda x: torch.roll(x, (1, 2), (0,)), x, match="shifts and dimensions must align")
    check_error(lambda x: torch.roll(x, (), ()), x, match="`shifts` required")
    check_error(lambda x: torch.flip(x, (0, 0)), x, match="dim 0 appears multiple times")
    check_error(lambda x: torch.flip(x, (2,)), x, match="Dimension out of range")
    check_error(lambda x: torch.rot90(x, 1, (0, 0)), x, match="expected rotation dims to be different")
    check_error(lambda x: torch.rot90(x[0]), x, match="expected total dims >= 2")
    check_error(lambda x: x.repeat(2), x, match="Number of dimensions of repeat dims")
    check_error(lambda x: x.repeat(2, -1), x, match="negative dimension -4")


@pytest.mark.parametrize("diagonal", [0, 1, -2, 10, -10, 2**40])
def test_triangles(diagonal):
    check(lambda x: [x.tril(diagonal), x.triu(diagonal), x.clone().tril_(diagonal)], make(2, 4, 3))
    if abs(diagonal) < 11:
        for rows, columns in ((4, 3), (3, 6), (1, 1), (0, 3), (70, 50)):
            check(
                lambda d: [
                    torch.tril_indices(rows, columns, diagonal, device=d.device),
                    torch.triu_indices(rows, columns, diagonal, device=d.device, dtype=torch.int32),
                ],
                torch.empty(0),
            )


def test_triangles_large():
    for n in (300, 1500):
        check(
            lambda d: [torch.tril_indices(n, n, -1, device=d.device), torch.triu_indices(n, n, device=d.device)], torch.empty(0)
        )
    check_grad(lambda x: x.tril() + x.triu(1), make(3, 3).requires_grad_())
    check_error(lambda x: torch.tril_indices(-1, 2, device=x.device), torch.empty(0), match="row must be non-negative")


# --- shuffles -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shuffles(layout):
    x = make(2, 8, 4, 6).to(memory_format=layout)
    for function in (lambda x: F.pixel_shuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), lambda x: torch.channel_shuffle(x, 4)):
        check(function, x)
        check_grad(function, x.detach().requires_grad_())


def test_shuffles_edges():
    check(lambda x: F.pixel_shuffle(x, 2), make(4, 3, 3))
    check(lambda x: F.pixel_shuffle(x, 2), make(0, 4, 3, 3))
    check(lambda x: torch.channel_shuffle(x, 2), make(2, 4, 3).long())
    check_error(lambda x: F.pixel_shuffle(x, 2), make(3, 2, 2), match="not divisible by 4")
    check_error(lambda x: F.pixel_shuffle(x, 2), make(3, 2), match="at least 3 dimensions")
    check_error(lambda x: F.pixel_unshuffle(x, 2), make(1, 4, 3), match="expects width to be divisible")
    check_error(lambda x: F.pixel_unshuffle(x, 0), make(1, 4, 3), match="positive downscale_factor")
    check_error(lambda x: torch.channel_shuffle(x, 2), make(1, 3, 3), match="must be divisible by groups")


# --- writes through a view ----------------------------------------------------------------------------------------------------

SCATTERS = {
    "slice": (lambda x, v: torch.slice_scatter(x, v, 1, 1, 6, 2), (3, 3)),
    "slice to the end": (lambda x, v: torch.slice_scatter(x, v, -1, -2), (3, 2)),
    "slice of nothing": (lambda x, v: torch.slice_scatter(x, v, 0, 2, 1), (0, 7)),
    "select": (lambda x, v: torch.select_scatter(x, v, 1, -3), (3,)),
    "diagonal": (lambda x, v: torch.diagonal_scatter(x, v, 2), (3,)),
    "diagonal below": (lambda x, v: torch.diagonal_scatter(x, v, -1, 1, 0), (3,)),
    "as_strided": (lambda x, v: torch.as_strided_scatter(x, v, (2, 2), (3, 1), 2), (2, 2)),
}


@pytest.mark.parametrize("case", SCATTERS)
def test_view_scatter(case):
    function, shape = SCATTERS[case]
    check(function, make(3, 7), make(*shape))
    check(function, make(7, 3).t() if case != "as_strided" else make(3, 7), make(*shape).long())
    check_grad(function, make(3, 7).requires_grad_(), make(*shape).requires_grad_())


def test_view_backward():
    x = make(3, 6, 4).requires_grad_()
    for view in (
        lambda x: x[1],
        lambda x: x[:, ::2],
        lambda x: x[:, 4:1],
        lambda x: x.diagonal(1, 0, 2),
        lambda x: x.unfold(1, 3, 2),
        lambda x: x.unfold(2, 2, 3),
        lambda x: x[..., -1],
        lambda x: x.narrow(1, 2, 3),
    ):
        check_grad(lambda x: view(x) * 2, x)
    check_grad(lambda x: x.unfold(0, 1, 1), torch.tensor(2.0, requires_grad=True))
    check_grad(lambda x: x.unfold(0, 40, 1), make(60).requires_grad_())


def test_diag_embed():
    x = make(2, 3)
    check(
        lambda x: [
            torch.diag_embed(x),
            torch.diag_embed(x, 1),
            torch.diag_embed(x, -2, 0, 2),
            torch.diag(x[0]),
            torch.diagflat(x),
        ],
        x,
    )
    check(torch.diag_embed, x > 0)
    check_grad(torch.diag_embed, x.requires_grad_())
    check_error(lambda x: torch.diag_embed(x, 0, 1, 1), x.detach(), match="diagonal dimensions cannot be identical")
    check_error(torch.select_scatter, x.detach(), make(3), 0, 5, match="out of range")
    check_error(torch.slice_scatter, x.detach(), make(1, 3), match="expected src to have a size equal to the slice")


# --- padding ------------------------------------------------------------------------------------------------------------------


def test_constant_pad():
    x = make(2, 3, 4)
    for pad in ((1, 2), (0, 0, 3, 1), (-1, 2, 1, -2), (1, 0, 0, 1, 2, 2), (-2, -2)):
        check(lambda x: F.pad(x, pad), x)
    check(lambda x: F.pad(x, (1, 1), value=1.5), x.long())
    check(lambda x: F.pad(x, (1, 1), value=True), x > 0)
    check(lambda x: F.pad(x, (1, 2, 0, 1), value=float("inf")), make(1, 3, 4, 5).to(memory_format=torch.channels_last))
    check_grad(lambda x: F.pad(x, (1, -1, 2, 0)), x.requires_grad_())
    check_error(lambda x: F.pad(x, (-3, -3)), x.detach(), match="length must be non-negative")
    check_error(lambda x: A.constant_pad_nd(x, [1, 2, 3]), x.detach())


PADS = {3: [(2, 1), (0, 2), (-1, 2)], 4: [(2, 1, 1, 3), (0, -1, 2, -1), (-2, 3, 0, 0)], 5: [(1, 2, 0, 1, 1, 0)]}


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("rank", PADS)
def test_pad(mode, rank):
    for pad in PADS[rank]:
        if mode == "circular" and min(pad) < 0:
            continue

        def function(x):
            return F.pad(x, pad, mode=mode)

        x = make(*(2, 3, 4, 5, 6)[-rank:])
        check(function, x)
        check(function, x[0])
        check(function, x[:0])
        check_grad(function, x.requires_grad_())
    check(function, make(*(2, 3, 4, 5, 6)[-rank:], dtype=torch.bfloat16))
    if rank == 4 and mode != "replicate":  # which is channels_last on the CPU alone
        check(function, x.detach().to(memory_format=torch.channels_last))
        check_grad(function, x.detach().to(memory_format=torch.channels_last).requires_grad_())


def test_pad_errors():
    x = make(1, 2, 3, 4)
    check_error(lambda x: F.pad(x, (4, 0, 0, 0), mode="reflect"), x, match="Padding size should be less than")
    check_error(lambda x: A.reflection_pad2d(x, [1, 1]), x, match="padding size is expected to be 4")
    check_error(lambda x: A.reflection_pad2d(x[0, 0], [1, 1, 1, 1]), x, match="Expected 3D or 4D")
    check_error(lambda x: A.reflection_pad2d_backward(x, x, [1, 1, 1, 1]), x, match="gradOutput width unexpected")


# --- patches ------------------------------------------------------------------------------------------------------------------

PATCHES = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": (1, 17), "padding": (0, 6)},
]


@pytest.mark.parametrize("options", PATCHES)
def test_unfold_fold(options):
    x = make(2, 3, 6, 8)
    check(lambda x: F.unfold(x, **options), x)
    check(lambda x: F.unfold(x, **options), x[0].to(torch.bfloat16))
    check_grad(lambda x: F.unfold(x, **options), x.clone().requires_grad_())
    columns = F.unfold(x, **options)
    check(lambda c: F.fold(c, (6, 8), **options), columns)
    check(lambda c: F.fold(c, (6, 8), **options), columns[0])
    check_grad(lambda c: F.fold(c, (6, 8), **options), columns.requires_grad_())


def test_unfold_errors():
    check_error(lambda x: F.unfold(x, 5), make(1, 2, 3, 3), match="its components must be at least one")
    check_error(lambda x: F.fold(x, (3, 3), 2), make(1, 7, 4), match="divisible by the product of kernel_size")
    check_error(lambda x: F.fold(x, (3, 3), 2), make(1, 8, 5), match="expected size of input's dimension 2 to match")
    check_error(lambda x: F.unfold(x, 0), make(1, 2, 3, 3), match="kernel size should be greater than zero")


# --- distances ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_cdist(p):
    x, y = torch.randn(2, 4, 3), torch.randn(1, 5, 3)
    y[0, 0] = x[0, 1]
    check(lambda x, y: torch.cdist(x, y, p), x, y)
    check_grad(lambda x, y: torch.cdist(x, y, p), x.requires_grad_(), y.requires_grad_(), rtol=1e-5, atol=1e-5)
    z = torch.randn(5, 3).requires_grad_()
    check(lambda x: F.pdist(x, p), z)
    check_grad(lambda x: F.pdist(x, p), z, rtol=1e-5, atol=1e-5)


def test_cdist_edges():
    check(torch.cdist, make(0, 3), make(2, 3))
    check(torch.cdist, make(4, 0), make(2, 0))
    check(torch.cdist, torch.randn(30, 4), torch.randn(3, 40, 4), rtol=1e-4, atol=1e-4)
    check(lambda x: F.pdist(x), make(1, 3))
    check(lambda x: F.pdist(x), make(3, 0))
    check(lambda x: F.pdist(x), torch.randn(40, 2))
    check_grad(lambda x: F.pdist(x), make(1, 1).requires_grad_())
    check_error(torch.cdist, make(2, 3), make(2, 2), match="must have the same number of columns")
    check_error(torch.cdist, make(2, 3).long(), make(2, 3), match="only supports floating-point dtypes, X1 got: Long")
    check_error(lambda x, y: torch.cdist(x, y, -1.0), make(2, 3), make(2, 3), match="non-negative p")


def test_cross():
    check(torch.linalg.cross, make(4, 3), make(4, 3))
    check(lambda x, y: torch.linalg.cross(x, y, dim=0), make(3, 1), make(3, 4))
    check(torch.linalg.cross, make(4, 3, dtype=torch.complex64), make(4, 3, dtype=torch.complex64))
    check_grad(torch.linalg.cross, make(4, 3).requires_grad_(), make(4, 3).requires_grad_())
    check_error(torch.linalg.cross, make(4, 2), make(4, 2), match="dimension -1 must have length 3")
