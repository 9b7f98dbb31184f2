"""Tensors: dtypes, storages, serialization, and what modules and optimizers expect of a device."""

import copy
import io
import pickle

import pytest
import torch

DTYPES = [
    torch.bool,
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.complex64, torch.complex128),
]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def random_bits(dtype: torch.dtype, count: int = 12) -> torch.Tensor:
    """Any bit pattern that the dtype has, NaN with payload and subnormals among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(17)
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count * size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    x, y = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (x, y))
    return torch.equal(x, y)


def saved_and_loaded(value, **options):
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return torch.load(data, **options)


# --- dtypes ----------------------------------------------------------------------------------------------------------------


@every_dtype
def test_round_trip(dtype):
    host = random_bits(dtype).view(3, 4)
    x = host.to("tpu")
    assert x.dtype == dtype and x.shape == host.shape and x.element_size() == host.element_size()
    assert same_bits(x, host)
    assert same_bits(x.clone(), host)
    assert same_bits(x.t(), host.t())
    assert same_bits(x[1:, ::2], host[1:, ::2])
    assert same_bits(host.t().to("tpu"), host.t())
    assert same_bits(host[:, 1:3].to("tpu"), host[:, 1:3])
    assert same_bits(x.view(torch.uint8), host.view(torch.uint8))


@every_dtype
def test_write_through_a_view(dtype):
    host = random_bits(dtype).view(3, 4)
    x = host.to("tpu")
    host = host.clone()
    x[0] = x[2].clone()
    host[0] = host[2].clone()
    x.t()[1:3].copy_(random_bits(dtype, 6).view(2, 3).to("tpu"))
    host.t()[1:3].copy_(random_bits(dtype, 6).view(2, 3))
    assert same_bits(x, host)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point and dtype.itemsize == 1], ids=str)
def test_copies_keep_every_value_of_8_bit_floats(dtype):
    host = torch.arange(256, dtype=torch.uint8).view(dtype).view(16, 16)
    x = host.to("tpu")
    for function in (
        lambda v: v.t().contiguous(),
        lambda v: v[:, 3:7].clone(),
        lambda v: torch.cat([v, v]),
        lambda v: v[:1].expand(4, 16).contiguous(),
    ):
        torch.testing.assert_close(function(x).cpu().float(), function(host).float(), rtol=0, atol=0, equal_nan=True)


def test_in_place_keeps_its_plan_when_the_layout_changes():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    for _ in range(3):
        x.mul_(2)
        x.view(6)[1:].add_(1)
    assert x.tolist() == [[0, 15, 23], [31, 39, 47]]


UNINITIALISED = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(2),
    "clamp_": lambda x: x.clamp_(min=3),
    "tril_": lambda x: x.tril_(),
    "scatter_": lambda x: x.scatter_(
        0, torch.zeros(1, 3, dtype=torch.int64, device=x.device), torch.ones(1, 3, device=x.device)
    ),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([1], device=x.device), torch.ones(1, 3, device=x.device)),
    "addmm_": lambda x: x.addmm_(torch.ones(2, 2, device=x.device), torch.ones(2, 3, device=x.device)),
}


@pytest.mark.parametrize("name", UNINITIALISED)
def test_writing_uninitialised_memory_is_another_program(name):
    function = UNINITIALISED[name]
    uninitialised = torch.empty(2, 3, device="tpu")
    function(uninitialised)  # reads whatever is there
    function(uninitialised)
    x = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(function(x.to("tpu")).cpu(), function(x.clone()))


def test_rows_written_one_by_one_stay():
    x, index = torch.empty(4, 2, device="tpu"), torch.ones(1, 2, dtype=torch.int64, device="tpu")
    for i in range(4):
        x.scatter_(0, i * index, torch.full((1, 2), float(i), device="tpu"))
    assert x.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


@every_dtype
def test_host_reads_and_printing(dtype):
    host = torch.ones(3).to(dtype)
    x = host.to("tpu")
    assert x[1].item() == host[1].item() and x.tolist() == host.tolist()
    assert type(x[1].item()) is type(host[1].item())
    assert repr(x).replace(", device='tpu:0'", "") == repr(host)
    random = random_bits(dtype)
    torch.set_printoptions(linewidth=1000)
    assert repr(random.to("tpu")).replace(", device='tpu:0'", "") == repr(random)
    torch.set_printoptions(profile="default")


@every_dtype
def test_serialization(dtype):
    host = random_bits(dtype).view(3, 4)
    x = host.to("tpu")
    loaded = saved_and_loaded(x)
    assert loaded.device == torch.device("tpu:0") and same_bits(loaded, host)
    assert same_bits(saved_and_loaded(x, map_location="cpu"), host)
    assert same_bits(saved_and_loaded(host, map_location="tpu"), host)
    assert same_bits(copy.deepcopy(x), host)
    try:
        pickle.loads(pickle.dumps(host))
    except AttributeError:  # torch cannot pickle dtypes without a legacy storage class, on any device
        return
    assert same_bits(pickle.loads(pickle.dumps(x)), host)


@pytest.mark.parametrize("source", [torch.bool, torch.int32, torch.uint16, torch.float32, torch.bfloat16, torch.float8_e5m2])
@every_dtype
def test_conversions(source, dtype):
    host = torch.tensor([0, 1, 2, 3, 100, 0]).to(source)
    assert same_bits(host.to("tpu").to(dtype), host.to(dtype))
    assert same_bits(host.to("tpu", dtype), host.to(dtype))
    assert same_bits(host.to("tpu").to("cpu", dtype), host.to(dtype))


def test_float8_e8m0fnu_is_the_rounded_exponent():
    host = torch.tensor([0.0, -2.0, 1.4, 1.5, 3.0, -0.0, 2.0**-127, 1.5 * 2.0**-127, 3e38, float("inf"), float("nan")])
    assert same_bits(host.to("tpu").to(torch.float8_e8m0fnu), host.to(torch.float8_e8m0fnu))


@pytest.mark.parametrize(
    "dtype, nearest",
    [
        (torch.complex32, "ComplexFloat"),
        (torch.qint8, "Char"),
        (torch.quint8, "Byte"),
        (torch.bits8, "Byte"),
        (torch.int4, "Char"),
        (torch.float4_e2m1fn_x2, "Float8_e4m3fn"),
    ],
)
def test_unsupported_dtypes(dtype, nearest):
    with pytest.raises(NotImplementedError, match=f"is not supported on TPU; nearest supported dtype is {nearest}"):
        torch.empty(2, dtype=dtype, device="tpu")


def test_unsupported_transfers():
    with pytest.raises(NotImplementedError, match="ComplexHalf is not supported on TPU"):
        torch.zeros(2, dtype=torch.complex32).to("tpu")
    with pytest.raises(NotImplementedError, match="QInt8 is not supported on TPU; nearest supported dtype is Char"):
        torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8).to("tpu")


# --- sizes, storages -------------------------------------------------------------------------------------------------------


def test_resize():
    x = torch.arange(6.0, device="tpu")
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(3, 4)
    assert x.shape == (3, 4) and x.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.resize_(2, 3, 4, 4, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    x.resize_(0)
    assert x.numel() == 0
    view = torch.arange(4.0, device="tpu")
    alias = view[1:]
    alias.resize_(8)
    assert alias[:3].tolist() == [1, 2, 3]
    view.fill_(7)
    assert alias[:3].tolist() == [7, 7, 7]


def test_set():
    x, y = torch.arange(6.0, device="tpu"), torch.zeros(2, device="tpu")
    y.set_(x)
    assert y.is_set_to(x)
    y.add_(1)
    assert x[0].item() == 1
    y.set_(x.untyped_storage(), 2, (2, 2), (1, 2))
    assert y.tolist() == [[3, 5], [4, 6]]
    y.set_()
    assert y.numel() == 0
    with pytest.raises(RuntimeError):
        y.set_(x.untyped_storage(), -1, (2,), (1,))


def test_data():
    x = torch.zeros(3, device="tpu", requires_grad=True)
    x.data = torch.ones(2, 2, device="tpu")
    assert x.shape == (2, 2) and x.requires_grad
    x.data.mul_(3)
    assert x.sum().item() == 12
    x.data = torch.ones(4)  # moves the variable to the CPU, as CUDA does not but Module.to needs
    assert x.device.type == "cpu"
    x.data = torch.ones(4, device="tpu")
    assert x.is_tpu


def test_empty_and_zero_dimensional():
    for shape in ((0,), (3, 0), (0, 2, 4)):
        x = torch.ones(shape, device="tpu")
        assert (x + 1).shape == shape and x.cpu().shape == shape and x.sum().item() == 0
        assert torch.equal(torch.zeros(shape).to("tpu").cpu(), torch.zeros(shape))
        assert saved_and_loaded(x).shape == shape and copy.deepcopy(x).shape == shape
        repr(x)
    x = torch.tensor(3.0, device="tpu")
    assert x.shape == () and (x * x).item() == 9 and x.expand(2).tolist() == [3, 3]
    x.add_(1)
    assert x.item() == 4 and repr(x) == "tensor(4., device='tpu:0')"


def test_channels_last():
    host = torch.randn(2, 3, 4, 5)
    x = host.to("tpu", memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last) and torch.equal(x.cpu(), host)
    y = x * 2
    assert y.stride() == (host.contiguous(memory_format=torch.channels_last) * 2).stride()
    assert y.cpu().is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x.contiguous().cpu(), host)
    assert torch.empty_like(x).stride() == x.stride()
    assert torch.empty_like(x, memory_format=torch.contiguous_format).is_contiguous()


def test_storage():
    x = torch.arange(4, dtype=torch.int32, device="tpu")
    storage = x.untyped_storage()
    assert storage.nbytes() == storage.size() == len(storage) == 16
    assert storage.device == torch.device("tpu:0") and storage.is_tpu and storage.data_ptr() == x.data_ptr()
    assert storage.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]
    assert storage[4] == 1
    storage[0] = 9
    assert x[0].item() == 9
    clone = storage.clone()
    clone.fill_(1)
    assert clone.tolist() == [1] * 16 and x[0].item() == 9
    clone.copy_(torch.tensor([5, 6, 7, 8], dtype=torch.int32).untyped_storage())
    storage.copy_(clone)
    assert x.tolist() == [5, 6, 7, 8]
    assert storage.cpu().tolist() == clone.tolist()
    assert storage.new().nbytes() == 0
    assert torch.UntypedStorage([1, 2, 3], device="tpu").tolist() == [1, 2, 3]
    assert torch.ones(3).untyped_storage().tpu().is_tpu
    assert copy.deepcopy(storage).tolist() == storage.tolist()
    assert torch.serialization.location_tag(storage) == "tpu:0"
    typed = x._typed_storage()
    assert typed.tolist() == [5, 6, 7, 8] and typed[1] == 6 and typed.size() == 4
    assert "device=tpu:0" in repr(storage)


def test_storage_byteswap():
    for dtype in (torch.float32, torch.int16, torch.complex64, torch.uint8):
        host = torch.arange(6).to(dtype)
        x = host.to("tpu")
        x.untyped_storage().byteswap(dtype)
        host.untyped_storage().byteswap(dtype)
        assert same_bits(x, host)
    torch.UntypedStorage(0, device="tpu").byteswap(torch.float32)


def test_storage_files(tmp_path):
    x = torch.arange(4.0, device="tpu")
    with open(tmp_path / "storage", "wb") as file:
        x.untyped_storage()._write_file(file, True, True, 1)
    y = torch.zeros(4, device="tpu")
    with open(tmp_path / "storage", "rb") as file:
        y.untyped_storage()._set_from_file(file, 0, True, 1)
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    "use, text",
    [
        (lambda s: s._share_fd_cpu_(), "only available on CPU"),
        (lambda s: s._share_filename_cpu_(), "only available on CPU"),
        (lambda s: s[100], "out of range"),
        (lambda s: s.resize_(-1), "negative"),
        (lambda s: s.pin_memory(), "only CPU memory can be pinned"),
        (lambda s: torch.tensor([]).set_(s), "on different device"),
        (lambda s: s.copy_(torch.UntypedStorage(8)), "size does not match"),
    ],
)
def test_what_a_storage_cannot_do(use, text):
    with pytest.raises((RuntimeError, IndexError, TypeError), match=text):
        use(torch.ones(4, device="tpu").untyped_storage())


def test_storage_resize():
    x = torch.arange(8.0, device="tpu")
    storage = x.untyped_storage()
    storage.resize_(16)
    assert storage.nbytes() == 16 and torch.equal(x[:4].cpu(), torch.arange(4.0))
    with pytest.raises(RuntimeError, match="storage size of 32 are out of bounds for storage of size 16"):
        x + 1
    # What FSDP does: free, then bring back.
    storage.resize_(0)
    assert storage.nbytes() == 0
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
        x.sum()
    storage.resize_(32)
    x.copy_(torch.ones(8))
    assert x.sum().item() == 8


def test_views_survive_save_and_deepcopy():
    x = torch.arange(6.0, device="tpu")
    loaded, view = saved_and_loaded([x, x[2:].view(2, 2)])
    view.add_(10)
    assert loaded.tolist() == [0, 1, 12, 13, 14, 15] and loaded.untyped_storage()._cdata == view.untyped_storage()._cdata
    copied, view = copy.deepcopy([x, x[::2]])
    view.zero_()
    assert copied.tolist() == [0, 1, 0, 3, 0, 5]
    copied = copy.deepcopy(torch.nn.Parameter(x))
    assert isinstance(copied, torch.nn.Parameter) and copied.is_tpu and copied.data_ptr() != x.data_ptr()


def test_requires_grad_survives_pickling():
    x = torch.ones(2, device="tpu", requires_grad=True)
    loaded = pickle.loads(pickle.dumps(x))
    assert loaded.requires_grad and loaded.is_tpu


# --- modules and optimizers ------------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


def test_module_to_keeps_ties_and_optimizers():
    model, reference = Tied(), Tied()
    reference.load_state_dict(model.state_dict())
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)]
    returned = model.to("tpu")
    assert returned is model
    assert model.head.weight is model.embedding.weight
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(p.is_tpu for p in model.parameters()) and all(b.is_tpu for b in model.buffers())
    x = torch.tensor([0, 1, 4, 1])
    with torch.tpu.precision("highest"):
        for _ in range(3):
            for m, optimizer, batch in ((model, optimizers[0], x.to("tpu")), (reference, optimizers[1], x)):
                optimizer.zero_grad()
                m(batch).square().mean().backward()
                optimizer.step()
    torch.testing.assert_close(model.embedding.weight.cpu(), reference.embedding.weight, rtol=1e-3, atol=1e-4)
    assert model.head.weight is model.embedding.weight
    model.to("cpu")
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True)) and not parameters[0].is_tpu
    assert parameters[0].grad.device.type == "cpu"


def test_state_dicts_cross_devices():
    model = Tied().to("tpu")
    state = saved_and_loaded(model.state_dict(), map_location="cpu", weights_only=True)
    assert all(value.device.type == "cpu" for value in state.values())
    other = Tied().to("tpu")
    other.load_state_dict(state)
    assert torch.equal(other.head.weight, model.head.weight) and other.head.weight is other.embedding.weight
    assert model.half().head.weight.dtype == torch.float16 and model.head.weight is model.embedding.weight
    empty = Tied().to_empty(device="tpu")
    assert all(p.is_tpu for p in empty.parameters())


def test_gradient_moves_with_its_parameter():
    linear = torch.nn.Linear(2, 2)
    linear(torch.ones(1, 2)).sum().backward()
    gradient = linear.weight.grad.clone()
    linear.to("tpu")
    assert linear.weight.grad.is_tpu and torch.equal(linear.weight.grad.cpu(), gradient)
    linear.zero_grad(set_to_none=False)
    linear(torch.ones(1, 2, device="tpu")).sum().backward()
    assert torch.equal(linear.weight.grad.cpu(), gradient)
