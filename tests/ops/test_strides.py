"""How fresh results lie in memory: as torch's, dim for dim."""

import pytest
import torch
from torch.nn import functional as F


def permuted(*sizes, order=None):
    """Random numbers whose dims lie in memory in another order."""
    order = order or range(len(sizes))[::-1]
    return torch.randn([sizes[i] for i in order]).permute([list(order).index(i) for i in range(len(sizes))])


MATRIX = permuted(4, 6)
CUBE = permuted(3, 4, 5)
TURNED = permuted(3, 4, 5, order=(1, 2, 0))
IMAGES = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
SQUARE = permuted(4, 4)
HALF = CUBE > 0

CASES = {
    "relu": (F.relu, CUBE),
    "where": (torch.where, HALF, CUBE, -CUBE),
    "where, operands in different orders": (torch.where, HALF.contiguous(), TURNED, CUBE),
    "where, a number": (lambda m, x: torch.where(m, x, 0.0), HALF, TURNED),
    "masked_fill is row-major": (lambda x, m: x.masked_fill(m, 0), IMAGES, IMAGES > 0),
    "hardswish": (F.hardswish, TURNED),
    "abs of complex": (torch.abs, torch.complex(TURNED, TURNED)),
    "complex": (torch.complex, TURNED, TURNED),
    "logical_and": (torch.logical_and, HALF, TURNED),
    "rsub": (torch.rsub, TURNED, CUBE),
    "floor_divide": (torch.floor_divide, TURNED, CUBE),
    "a row beside a cube": (torch.logical_or, TURNED[:, :1], TURNED),
    "sizes of one": (torch.logical_or, permuted(4, 1, 5), torch.randn(1)),
    "a channel, row-major": (F.relu, torch.randn(2, 1, 4, 5)),
    "isnan, with gaps": (torch.isnan, permuted(4, 6)[::2]),
    "channels last": (F.hardswish, IMAGES),
    "channels last beside another": (torch.logical_xor, IMAGES, torch.randn(2, 3, 4, 5)),
    "prelu": (F.prelu, MATRIX, torch.rand(6)),
    "foreach": (lambda x, y: torch._foreach_neg([x, y])[1], MATRIX, TURNED),
    "flip": (lambda x: x.flip(0, 2), TURNED),
    "rot90, once": (lambda x: x.rot90(1, (0, 2)), TURNED),
    "rot90, twice": (lambda x: x.rot90(2, (0, 2)), TURNED),
    "rot90, back": (lambda x: x.rot90(-1, (1, 2)), TURNED),
    "rot90, not at all": (lambda x: x.rot90(4), TURNED),
    "slice_scatter": (lambda x: x.slice_scatter(x[:2] * 2, 0, 1), TURNED),
    "select_scatter": (lambda x: x.select_scatter(x[0] * 2, 0, 1), TURNED),
    "diagonal_scatter": (lambda x: x.diagonal_scatter(x[:, 0] * 2), MATRIX),
    "index_put": (lambda x: x.index_put((torch.tensor([0, 2], device=x.device),), torch.tensor(0.0, device=x.device)), TURNED),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([0, 2], device=x.device), 1), TURNED),
    "put": (lambda x: x.put(torch.tensor([3], device=x.device), torch.zeros(1, device=x.device)), TURNED),
    "sort": (lambda x: x.sort(1)[0], TURNED),
    "argsort": (lambda x: x.argsort(0), TURNED),
    "addr": (torch.addr, MATRIX, torch.randn(4), torch.randn(6)),
    "mvlgamma": (lambda x: torch.mvlgamma(x.abs() + 2, 2), MATRIX),
    "cholesky_inverse": (torch.cholesky_inverse, torch.eye(4) + SQUARE.tril() / 9),
    "cholesky_solve": (torch.cholesky_solve, MATRIX, torch.eye(4) + SQUARE.tril() / 9),
    "geqrf": (lambda x: torch.geqrf(x)[0], MATRIX.contiguous()),
    "householder_product": (torch.linalg.householder_product, MATRIX.mT.contiguous(), torch.rand(4)),
}


def like(x):
    """The same tensor on "tpu", strides and all."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="tpu").copy_(x)


@pytest.mark.parametrize("name", CASES)
def test_results_lie_as_torchs(name, no_fallback):
    function, *operands = CASES[name]
    expected, actual = function(*operands), function(*map(like, operands))
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_order():
    """The CPU's dropout is another kernel; that of CUDA makes both results like its input."""
    output, mask = torch.native_dropout(like(TURNED), 0.5, True)
    assert output.stride() == mask.stride() == TURNED.stride()
    assert torch.ops.aten.native_dropout_backward(output, mask, 2.0).stride() == TURNED.stride()
