"""Reading and writing by index, and embeddings, against CPU torch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import flat, to_tpu

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
long = torch.long


def make(*shape, dtype=torch.float32):
    """Small integers in any dtype, so that sums are exact in every order."""
    x = torch.randint(-3, 4, shape)
    if dtype.is_complex:
        return torch.complex(x.float(), torch.randint(-3, 4, shape).float()).to(dtype)
    return x.to(dtype)


def check(function, *args, rtol=None, atol=None):
    """Same values, dtypes and shapes on CPU and TPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = flat(function(*args))
    for actual, wanted in zip(flat(function(*to_tpu(args))), expected, strict=True):
        assert actual.device.type == "tpu"
        torch.testing.assert_close(actual.cpu(), wanted, equal_nan=True, rtol=rtol, atol=atol)


def check_grad(function, *args, **tolerances):
    """Gradients of every argument that requires one, for a weighted sum of the result."""

    def gradients(*args):
        out = function(*args)
        weight = torch.arange(1.0, out.numel() + 1).reshape(out.shape).to(out.device, out.dtype)
        return torch.autograd.grad((out * weight).sum(), [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad])

    check(gradients, *args, **tolerances)


def check_error(function, *args, match=None):
    """The same class of error on both, and a message that begins alike up to the numbers."""
    with pytest.raises(Exception) as expected:
        function(*args)
    with pytest.raises(type(expected.value), match=match):
        function(*to_tpu(args))
        torch.tpu.synchronize()


# --- x[...] -----------------------------------------------------------------------------------------------------------------

I = torch.tensor  # noqa: E741
PATTERNS = {
    "first": lambda x, i, j: x[i],
    "second": lambda x, i, j: x[:, j],
    "both": lambda x, i, j: x[i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "apart behind": lambda x, i, j: x[:, i, :, j],
    "negative": lambda x, i, j: x[-1 - i],
    "matrix": lambda x, i, j: x[i[:, None], j[None, :]],
    "vector and matrix": lambda x, i, j: x[:, i, j[:2, None]],
    "scalar": lambda x, i, j: x[i, 1],
    "int32": lambda x, i, j: x[i.int(), j],
    "empty": lambda x, i, j: x[i[:0]],
    "with slices": lambda x, i, j: x[1:, None, i[:2], ::2],
    "view": lambda x, i, j: x.transpose(0, 3)[:, 1:][i[:2], j[:2]],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_getitem(pattern):
    x, i, j = make(4, 5, 6, 7), I([0, 3, 1, 3]), I([2, 0, 4, 4])
    check(PATTERNS[pattern], x, i, j)
    check_grad(PATTERNS[pattern], x.requires_grad_(), i, j)


@pytest.mark.parametrize("dtype", DTYPES)
def test_getitem_dtypes(dtype):
    check(lambda x, i: x[:, i], make(3, 4, dtype=dtype), I([1, 1, 3]))


def test_getitem_masks():
    x = make(4, 5, 3)
    check(lambda x, m: x[m], x, x > 0)
    check(lambda x, m: x[m], x, x[:, :, 0] > 0)
    check(lambda x, m: x[:, m], x, x[0] > 0)
    check(lambda x, m, i: x[m, i], x, I([True, False, True, True]), I([0, 4, 2]))
    check(lambda x, m: x[m], x, I([False] * 4))
    check_grad(lambda x, m: x[m], x.requires_grad_(), x[:, :, 0] > 0)


def test_getitem_of_nothing():
    check(lambda x, i: x[i], torch.empty(0, 3), torch.empty(0, dtype=long))
    check(lambda x, i: x[i, i], torch.empty(0, 3), torch.empty(0, dtype=long))
    check(lambda x, i: x[:, i], torch.empty(0, 3), I([2, 1]))
    check(lambda x, i: x[i], torch.empty(3, 0), I([2, 1]))


def test_getitem_errors():
    x = make(3, 4)
    check_error(lambda x, i: x[i].sum(), x, I([3]), match="out of bounds")
    check_error(lambda x, i: x[i].sum(), x, I([-4]), match="out of bounds")
    check_error(lambda x, i: x[i].sum(), x, I([2**32]), match="out of bounds")
    check_error(lambda x, i: x[i], torch.empty(0, 3), I([0]), match="size 0")
    check_error(lambda x, i, j: x[i, j], x, I([0, 1]), I([0, 1, 2]), match="could not be broadcast")


# --- x[...] = v ---------------------------------------------------------------------------------------------------------------


def put(x, indices, values, accumulate=False):
    return torch.ops.aten.index_put(x, list(indices), values, accumulate)


PUTS = {
    "rows": ([I([2, 0])], (2, 5, 6)),
    "rows, one value": ([I([2, 0])], ()),
    "points": ([I([2, 0]), I([-1, 3])], (2, 6)),
    "behind": ([None, I([[0, 1], [3, 4]])], (2, 1, 1)),
    "apart": ([I([2, 0]), None, I([5, 1])], (2, 5)),
    "mask": ([torch.arange(4) % 2 == 0], ()),
    "mask of many": ([torch.arange(4) % 2 == 0], (2, 5, 6)),
    "mask of two dims": ([None, torch.arange(30).reshape(5, 6) % 7 == 1], (4, 5)),
    "mask of two dims, one value": ([torch.arange(20).reshape(4, 5) % 7 == 1], (6,)),
    "byte mask": ([(torch.arange(4) % 2).to(torch.uint8)], (5, 6)),
    "mask and index": ([torch.arange(4) % 2 == 0, I([3, 1])], (2, 6)),
    "mask of one and index": ([torch.arange(4) == 2, I([3, 1])], (6,)),
    "mask and index, one value": ([torch.arange(4) % 2 == 0, I([3])], ()),
    "empty mask": ([torch.zeros(4, dtype=torch.bool)], (0, 5, 6)),
    "empty": ([torch.empty(0, dtype=long)], ()),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("case", PUTS)
def test_index_put(case, accumulate):
    indices, shape = PUTS[case]
    check(put, make(4, 5, 6), indices, make(*shape), accumulate)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_put_dtypes(dtype):
    check(put, make(4, 3, dtype=dtype), [I([1, 1, 3])], make(3, 3, dtype=dtype), True)
    check(put, make(4, 3, dtype=dtype), [I([1, 0, 3])], make(3, 3, dtype=dtype))


def test_setitem():
    def assign(x, i, v, mask):
        x = x.clone()
        x[i] = v
        x[:, 1] = 7
        x[mask] = 2.5
        x[mask] += 1
        x.t()[i] = v[0, 0]
        return x

    x = make(4, 3)
    check(assign, x, I([2, 0]), make(2, 3), x > 0)


def test_index_put_grad():
    x, v = make(4, 3).requires_grad_(), make(2, 3).requires_grad_()
    for accumulate in (False, True):
        check_grad(lambda x, v, i: x.index_put((i,), v, accumulate=accumulate), x, v, I([2, 0]))


def test_index_put_errors():
    x = make(3, 4)
    check_error(put, x, [I([3])], I(1.0), match="out of bounds")
    check_error(put, x, [I([0, 1])], make(3, 4), match="shape mismatch: value tensor of shape")
    check_error(put, x, [I([0, 1])], make(2, 4).long(), match="destination dtypes match")
    check_error(put, x, [x > 0], make(13), match="shape mismatch: value tensor")
    check_error(put, x, [I([True, False])], I(1.0), match="The shape of the mask")
    check_error(put, x, [I([0.5])], I(1.0), match="tensors used as indices")
    check_error(put, torch.empty(0, 3), [I([0])], I(1.0), match="size 0")


# --- along one dim ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_select(dtype):
    check(torch.index_select, make(3, 4, 5, dtype=dtype), 1, I([3, 0, 0]))


def test_index_select_shapes():
    x = make(3, 4)
    check(torch.index_select, x.t(), -1, I([2], dtype=torch.int32))
    check(torch.index_select, x, 0, I(1))
    check(torch.index_select, x, 0, torch.empty(0, dtype=long))
    check(torch.index_select, I(2.0), 0, I([0]))
    check_grad(torch.index_select, x.requires_grad_(), 0, I([2, 2, 1]))
    check_grad(torch.index_select, I(2.0, requires_grad=True), 0, I(0))


def test_index_select_errors():
    x = make(3, 4)
    check_error(torch.index_select, x, 0, I([3]), match="index out of range in self")
    check_error(torch.index_select, x, 0, I([-1]), match="index out of range in self")
    check_error(torch.index_select, x, 0, I([[0]]), match="Index is supposed to be a vector")
    check_error(torch.index_select, x, 0, I([0.0]), match="Expected dtype int32 or int64")
    check_error(torch.index_select, I(1.0), 0, I([0, 0]), match="can have only 1 value")
    check_error(torch.index_select, torch.empty(0, 3), 0, I([0]), match="should be positive")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype):
    check(torch.gather, make(3, 4, 5, dtype=dtype), 1, torch.randint(4, (2, 6, 5)))


def test_gather_shapes():
    x = make(3, 4)
    check(torch.gather, x, 0, torch.randint(3, (5, 2)))
    check(torch.gather, x, -1, torch.randint(4, (3, 4)).int())
    check(torch.gather, I(2.0), 0, I(0))
    check(torch.gather, I(2.0), 0, I([0, 0]))
    check(torch.gather, x[0], 0, I(3))
    check(torch.gather, x, 0, torch.empty(0, dtype=long))
    check(torch.take_along_dim, x, torch.randint(3, (1, 4)), 0)
    check_grad(torch.gather, x.requires_grad_(), 0, torch.randint(3, (5, 2)))
    check_grad(torch.gather, make(5).requires_grad_(), 0, torch.empty(2, 0, dtype=long))
    check_error(torch.gather, x, 0, I([[3]]), match="out of bounds")
    check_error(torch.gather, x, 0, I([[-1]]), match="out of bounds")


def test_take_put():
    x = make(3, 4)
    check(torch.take, x.t(), I([[0, -1], [5, 11]]))
    check(torch.take, torch.empty(0), torch.empty(0, 2, dtype=long))
    check_grad(torch.take, x.clone().requires_grad_(), I([[0, -1], [5, 11]]))
    for accumulate in (False, True):
        check(torch.put, x, I([[0, -1], [5, 3]]), make(4), accumulate)
    check(torch.put, x, I([1, 1]), make(2), True)
    check(lambda x, i, v: x.clone().t().put_(i, v), x, I([1, 2]), make(2))
    check_error(torch.take, x, I([12]), match="out of range")
    check_error(torch.take, x, I([0], dtype=torch.int32), match="Expected a long tensor")
    check_error(torch.take, torch.empty(0), I([0]), match="empty tensor")
    check_error(torch.put, x, I([1]), make(2), match="same number of elements")
    check_error(torch.put, x, I([1]), I([1]), match="same dtype")


# --- scatter ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(dtype):
    x, src = make(4, 5, dtype=dtype), make(3, 6, dtype=dtype)
    index = torch.stack([torch.randperm(5)[:4] for _ in range(3)])
    check(torch.scatter, x, 1, index, src)
    check(torch.scatter, x, 1, index, 1)
    check(torch.scatter_add, x, 1, torch.randint(5, (3, 6)), src)


def test_scatter_shapes():
    x = make(4, 5)
    check(torch.scatter, x, 0, torch.randint(1, (1, 5)), make(2, 5))
    check(torch.scatter, I(2.0), 0, I(0), I(3.0))
    check(torch.scatter, x, 0, torch.empty(0, dtype=long), make(2, 5))
    check(lambda x, i, v: x.clone().t().scatter_(0, i, v), x, I([[4, 0]]), make(2, 2))
    check(lambda x, i: x.clone().scatter_(0, i, 2.5), x, I([[0, 3]]))
    check_grad(torch.scatter, x.requires_grad_(), 0, I([[1, 2, 0]]), make(1, 3).requires_grad_())
    check_grad(torch.scatter_add, x, 0, I([[1, 1, 0], [1, 2, 0]]), make(2, 3).requires_grad_())
    check_error(torch.scatter, x.detach(), 0, I([[4]]), make(1, 1), match="out of bounds")
    check_error(torch.scatter_add, x.detach(), 0, I([[-1]]), make(1, 1), match="out of bounds")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_scatter_of_many(dtype):
    x, src = make(40, 90, 100, dtype=dtype), make(40, 70, 100, dtype=dtype)
    rows = torch.stack([torch.randperm(90)[:70] for _ in range(40)]).unsqueeze(2).expand(40, 70, 100)
    check(torch.scatter, x, 1, rows, src)
    check(torch.scatter_add, x, 1, rows, src)
    for dim in range(3):
        index = torch.randint(40, (39, 70, 99))
        if dtype != torch.bfloat16:  # CPU torch rounds after each addition
            check(torch.scatter_add, x, dim, index, src, rtol=1e-5, atol=1e-5)
        check(lambda x, i, v: x.scatter_reduce(dim, i, v, "amax", include_self=False), x, index, src)
    if dtype == torch.float32:
        for outside in (90, -1):  # must not reach the neighbouring rows either
            bad = rows.clone()
            bad[3, 4, 5] = outside
            check_error(torch.scatter_add, x, 1, bad, src, match="out of bounds")


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_reduce(reduce):
    x, index = make(4, 5), I([[0, 1], [0, 3]])
    check(lambda x, i, v: torch.scatter(x, 0, i, v, reduce=reduce), x, index, make(2, 2))
    check(lambda x, i: torch.scatter(x, 0, i, 3, reduce=reduce), x, index)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    def function(x, i, v):
        return x.scatter_reduce(1, i, v, reduce, include_self=include_self)

    index = torch.randint(5, (3, 6))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        check(function, make(4, 5, dtype=dtype), index, make(3, 6, dtype=dtype))
    x = torch.randn(4, 5).requires_grad_()
    check_grad(function, x, index, torch.randn(3, 6).requires_grad_())
    special = torch.tensor([[float("nan"), 1, float("inf"), -float("inf"), 0, 1]])
    check(function, torch.zeros(1, 5), I([[0, 0, 1, 2, 3, 4]]), special)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce, include_self):
    def function(x, i, v):
        return x.index_reduce(1, i, v, reduce, include_self=include_self)

    index = I([0, 2, 2, 4, 0])
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        check(function, make(3, 6, 2, dtype=dtype), index, make(3, 5, 2, dtype=dtype))
    check_error(function, make(3, 6), I([6]), make(3, 1), match="out of range")


def test_index_add_copy_fill():
    x, i = make(4, 3), I([3, 0, 3])
    check(lambda x, i, v: x.index_add(0, i, v), x, i, make(3, 3))
    check(lambda x, i, v: x.index_add(0, i, v, alpha=2), x, i.int(), make(3, 3))
    check(lambda x, i, v: x.index_add(0, i, v, alpha=-1), I(2.0), I([0]), I(3.0))
    check(lambda x, i, v: x.index_add(1, i, v), x > 0, I([2, 2]), make(4, 2) > 1)
    check(lambda x, i, v: x.index_copy(1, i, v), x, I([2, 0]), make(4, 2))
    check(lambda x, i, v: x.index_copy(0, i, v), I(2.0), I([0]), I(3.0))
    check(lambda x, i: x.index_fill(1, i, 2.5), x, I([-1, 0]))
    check(lambda x, i: x.int().index_fill(1, i, 2.5), x, I(1))
    check(lambda x, i, v: x.clone().t().index_fill_(1, i, v), x, I([1, 2]), I(7.0))
    for alpha in (1, 2):
        check_grad(lambda x, i, v: x.index_add(0, i, v, alpha=alpha), x.requires_grad_(), i, make(3, 3).requires_grad_())
    check_grad(lambda x, i, v: x.index_copy(0, i, v), x, I([2, 0]), make(2, 3).requires_grad_())
    check_grad(lambda x, i, v: x.index_copy(0, i, v), I(2.0, requires_grad=True), I([0]), I(3.0, requires_grad=True))
    check_grad(lambda x, i: x.index_fill(0, i, 2), x, i)


def test_index_fill_errors():
    x = make(3, 4)
    check_error(lambda x, i: x.index_fill(0, i, 1.0), x, I([3]), match="out of bounds")
    check_error(lambda x, i: x.index_fill(0, i, 1.0), x, I([[0]]), match="vector/scalar")
    check_error(lambda x, i: x.index_fill(0, i, 1.0), x, I([0], dtype=torch.int32), match="Expected dtype int64")
    check_error(lambda x, i: x.index_fill(0, i, 1j), x, I([0]), match="complex Scalar")
    check_error(lambda x, i, v: x.index_fill(0, i, v), x, I([0]), I([1.0]), match="0-dimensional value tensor")
    check_error(lambda x, i, v: x.index_copy(0, i, v), x, I([3]), make(1, 4), match="out of bounds")


# --- masks --------------------------------------------------------------------------------------------------------------------


def test_masked_scatter():
    x = make(3, 4)
    check(torch.masked_scatter, x, x > 0, make(20))
    check(torch.masked_scatter, x, x[0] > 0, make(3, 7))
    check(torch.masked_scatter, x[0], x > 0, make(20))
    check(torch.masked_scatter, x, x > 9, torch.empty(0))
    check(torch.masked_scatter, x.long(), x > 0, make(20).long())
    check_grad(torch.masked_scatter, x.requires_grad_(), x > 0, make(4, 5).requires_grad_())
    check_error(torch.masked_scatter, x.detach(), x < 9, make(2), match="Number of elements of source < number of ones in mask")
    check_error(torch.masked_scatter, x.detach(), x > 9, make(2).long(), match="expected self and source to have same dtypes")
    check_error(torch.masked_scatter, x.detach(), x.detach(), make(2), match="only supports boolean masks")


def test_nonzero_static():
    x = make(3, 4)
    for size in (2, 20, 0):
        check(lambda x: torch.nonzero_static(x, size=size), x)
    check(lambda x: torch.nonzero_static(x, size=20, fill_value=7), x > 0)
    check(lambda x: torch.nonzero_static(x, size=2), I(1.0))


def test_repeat_interleave():
    check(lambda r: torch.repeat_interleave(r, output_size=9), I([2, 0, 3, 4]))
    check(lambda r: torch.repeat_interleave(r, output_size=0), torch.empty(0, dtype=long))
    check(lambda x, r: torch.repeat_interleave(x, r, 1, output_size=9), make(2, 4), I([2, 0, 3, 4]))
    check(lambda x: torch.repeat_interleave(x, 3, 1), make(2, 4))
    check(torch.repeat_interleave, I([2, 0, 3, 4]).int())
    check(lambda x, r: torch.repeat_interleave(x, r, 1), make(2, 4), I([2, 0, 3, 4]))
    check_error(torch.repeat_interleave, I([[2]]), match="1D vector")
    check_error(lambda r: torch.repeat_interleave(r, output_size=9), I([2, -1, 8]), match="repeats can not be negative")


# --- embedding ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_embedding(dtype):
    weight, index = make(6, 3, dtype=dtype).requires_grad_(), I([[0, 5, 2], [5, 5, 1]])
    check(F.embedding, index, weight)
    check_grad(F.embedding, index, weight)
    check_grad(lambda i, w: F.embedding(i, w, padding_idx=5), index, weight)
    check_grad(lambda i, w: F.embedding(i, w, padding_idx=-1, scale_grad_by_freq=True), index.int(), weight)


def test_embedding_edges():
    weight = make(6, 3).requires_grad_()
    check_grad(F.embedding, torch.empty(0, 2, dtype=long), weight)
    check_grad(F.embedding, I(2), weight)
    check(lambda i: F.one_hot(i, 4), I([0, 3, 1]))
    check_error(F.embedding, I([6]), weight.detach(), match="index out of range in self")
    check_error(F.embedding, I([-1]), weight.detach(), match="index out of range in self")
    check_error(F.embedding, I([0.0]), weight.detach(), match="scalar types: Long, Int; but got")
    check_error(F.embedding, I([0]), weight.detach()[0], match="'weight' must be 2-D")


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 0.0, float("inf")])
def test_renorm(p):
    check(lambda w, i: torch.embedding_renorm_(w.clone(), i, 1.5, p), torch.randn(6, 3), I([[0, 5], [5, 2]]))
    if p == 0:
        return  # torch.renorm refuses it
    x = torch.randn(3, 4, 2)
    check(lambda x: torch.renorm(x, p, 1, 1.5), x)
    check(lambda x: torch.renorm(x, p, -1, 1.5), torch.randn(3, 4, dtype=torch.complex64))
    if p < float("inf"):
        check_grad(lambda x: torch.renorm(x, p, 1, 1.5), x.requires_grad_())


@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"include_last_offset": True}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode, options):
    if mode == "max" and "scale_grad_by_freq" in options:
        pytest.skip("torch has no max with scale_grad_by_freq")
    weight, index = make(5, 4).requires_grad_(), I([1, 2, 4, 4, 0, 3])
    offsets = I([0, 2, 2, 5, 6] if options.get("include_last_offset") else [0, 2, 2, 5])

    def bag(weight, index, offsets):
        return F.embedding_bag(index, weight, offsets, mode=mode, **options)

    check(bag, weight, index, offsets)
    check_grad(bag, weight, index, offsets)
    check(
        lambda w, i: F.embedding_bag(i, w, mode=mode, **{k: v for k, v in options.items() if k == "padding_idx"}),
        weight.detach(),
        index.reshape(2, 3).int(),
    )


def test_embedding_bag_weights():
    weight, index, offsets = make(5, 4).requires_grad_(), I([1, 2, 4, 4, 0, 3]), I([0, 2, 2, 5])
    for padding in (None, 4):

        def bag(weight, weights, index, offsets):
            return F.embedding_bag(index, weight, offsets, mode="sum", per_sample_weights=weights, padding_idx=padding)

        check_grad(bag, weight, make(6).requires_grad_(), index, offsets)


def test_embedding_bag_errors():
    weight, index = make(5, 4), I([1, 2, 4])

    def bag(weight, index, offsets):
        return F.embedding_bag(index, weight, offsets, mode="sum")

    check_error(bag, weight, index, I([1, 2]), match="offsets.0. has to be 0")
    check_error(bag, weight, index, I([0, 7]), match="offsets.-1. can not be greater")
    check_error(bag, weight, I([5]), I([0]), match="not in the valid range")


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_one_row_is_a_slice(dim):
    x = torch.randn(3, 4, 5)
    for layout in (x, x.transpose(0, 2), x[:, ::2]):
        for at in (0, layout.shape[dim] - 1):
            index = torch.tensor([at])
            torch.testing.assert_close(
                layout.to("tpu").index_select(dim, index.to("tpu")).cpu(), layout.index_select(dim, index)
            )
    weight, at = torch.randn(6, 2), torch.tensor([[5]])
    torch.testing.assert_close(F.embedding(at.to("tpu"), weight.to("tpu")).cpu(), F.embedding(at, weight))
    with pytest.raises(IndexError):
        x.to("tpu").index_select(dim, torch.tensor([9]).to("tpu")).cpu()
    with pytest.raises(IndexError):
        x.to("tpu").index_select(dim, torch.tensor([-1]).to("tpu")).cpu()
