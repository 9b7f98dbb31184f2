"""Sparse tensors, against CPU torch: COO on the device, compressed layouts with the CPU's help."""

import io
import warnings

import pytest
import torch

import torch_tpu

INDICES = torch.tensor([[0, 1, 1, 2], [2, 0, 0, 1]])
DENSE = torch.randn(3, 3)


pytestmark = pytest.mark.usefixtures("full_float32")


def coo(device, dtype=torch.float32):
    return torch.sparse_coo_tensor(INDICES, torch.tensor([3, 4, 5, 6], dtype=dtype), (3, 3)).to(device)


def check(function):
    """Calls function("tpu") and function("cpu") and compares layouts and values."""
    actual, expected = function("tpu"), function("cpu")
    assert actual.device.type == "tpu" and actual.layout == expected.layout and actual.dtype == expected.dtype
    if actual.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    torch.testing.assert_close(actual.cpu(), expected)


def in_place(device):
    x = DENSE.clone().to(device)
    return x.add_(coo(device), alpha=2)


ON_THE_DEVICE = {
    "coalesce": lambda d: coo(d).coalesce(),
    "coalesce bool": lambda d: coo(d, torch.bool).coalesce(),
    "indices": lambda d: coo(d).coalesce().indices(),
    "values": lambda d: coo(d).coalesce().values(),
    "to_dense": lambda d: coo(d).to_dense(),
    "to_dense int": lambda d: coo(d, torch.int64).to_dense(),
    "to_sparse": lambda d: DENSE.to(d).relu().to_sparse(),
    "to_sparse dims": lambda d: DENSE.to(d).relu().to_sparse(1),
    "clone": lambda d: coo(d).clone(),
    "double": lambda d: coo(d).double(),
    "add": lambda d: coo(d) + coo(d),
    "sub": lambda d: coo(d) - coo(d) * 2,
    "neg": lambda d: -coo(d),
    "mul number": lambda d: coo(d) * 3,
    "mul sparse": lambda d: coo(d) * coo(d).t(),
    "mul dense": lambda d: coo(d) * DENSE.to(d),
    "div": lambda d: coo(d) / 2,
    "dense + sparse": lambda d: DENSE.to(d) + coo(d),
    "dense.add_": in_place,
    "mm": lambda d: torch.sparse.mm(coo(d), DENSE.to(d)),
    "matmul": lambda d: coo(d) @ DENSE.to(d),
    "addmm": lambda d: torch.sparse.addmm(DENSE.to(d), coo(d), DENSE.to(d), beta=0.5, alpha=2.0),
    "mv": lambda d: coo(d).mv(DENSE[0].to(d)),
    "sum": lambda d: torch.sparse.sum(coo(d)),
    "sum over a dim": lambda d: torch.sparse.sum(coo(d), 1),
    "transpose": lambda d: coo(d).t(),
    "mask": lambda d: DENSE.to(d).sparse_mask(coo(d).coalesce()),
    "cat": lambda d: torch.cat([coo(d), coo(d)]),
    "select": lambda d: coo(d)[1],
    "narrow": lambda d: coo(d).narrow_copy(0, 0, 2),
    "sqrt": lambda d: coo(d).sqrt(),
    "zero_": lambda d: coo(d).zero_(),
    "norm": lambda d: torch.norm(coo(d)),
    "empty": lambda d: torch.sparse_coo_tensor(size=(2, 3), device=d).coalesce(),
    "hybrid": lambda d: torch.sparse_coo_tensor(INDICES[:1], torch.ones(4, 2), (3, 2)).to(d).coalesce(),
    "csr": lambda d: DENSE.to(d).relu().to_sparse_csr(),
    "csr of coo": lambda d: coo(d).coalesce().to_sparse_csr(),
    "coo of csr": lambda d: DENSE.to(d).relu().to_sparse_csr().to_sparse(),
    "bsr": lambda d: torch.eye(4).to(d).to_sparse_bsr((2, 2)),
    "csr of parts": lambda d: torch.sparse_csr_tensor([0, 1, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0], (3, 3), device=d),
}
ON_THE_CPU = {
    "sparse @ sparse": lambda d: torch.sparse.mm(coo(d), coo(d)),
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([0, 2], device=d)),
    "csr mm": lambda d: DENSE.to(d).relu().to_sparse_csr() @ DENSE.to(d),
}


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_on_the_device(name, no_fallback):
    check(ON_THE_DEVICE[name])


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_on_the_cpu_with_a_warning(name):
    before = sum(torch.tpu.counters()["fallbacks"].values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(ON_THE_CPU[name])
    after = torch.tpu.counters()["fallbacks"]
    assert sum(after.values()) > before
    listed = {overload for overload, _ in torch_tpu._C._sparse_ops_on_cpu()}
    assert listed & set(after), "docs/operators.md lists what goes to the CPU"


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_forbidden_on_the_cpu(name, no_fallback):
    with pytest.raises(NotImplementedError, match="is not lowered for TPU"):
        ON_THE_CPU[name]("tpu")


def test_coalesce_counts():
    x = coo("tpu")
    assert not x.is_coalesced() and x._nnz() == 4
    assert x.coalesce().is_coalesced() and x.coalesce()._nnz() == 3


def test_gradients():
    def of_matrix(device):
        matrix = coo(device).requires_grad_()
        torch.sparse.mm(matrix, DENSE.to(device)).sum().backward()
        return matrix.grad

    def of_dense(device):
        x = DENSE.clone().to(device).requires_grad_()
        (x.to_sparse() * 2).to_dense().sum().backward()
        return x.grad

    check(of_matrix)
    check(of_dense)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_reduced_products(reduce):
    def gradient(device):
        matrix = DENSE.relu().to_sparse_csr().to(device).requires_grad_()
        dense = DENSE.clone().to(device).requires_grad_()
        torch.sparse.mm(matrix, dense, reduce).sum().backward()
        return dense.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(gradient)


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_embedding_gradients(optimizer):
    def train(device):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True).to(device)
        steps = optimizer(table.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            table(torch.tensor([1, 2, 2, 5], device=device)).pow(2).sum().backward()
            steps.step()
        return table.weight.detach()

    check(train)


def test_save_print_and_errors():
    file = io.BytesIO()
    torch.save(coo("tpu"), file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file).to_dense().cpu(), coo("cpu").to_dense())
    assert "device='tpu:0', size=(3, 3), nnz=4, layout=torch.sparse_coo" in str(coo("tpu"))
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="add: expected sizes of 'self' and 'other' to match"):
            coo(device) + torch.eye(4).to_sparse().to(device)
        with pytest.raises(RuntimeError, match="Expected dim 0 size 3, got 4"):
            torch.sparse.mm(coo(device), torch.ones(4, 2, device=device))
