"""Transfers between host and device: pinned and pageable memory, conversions, NumPy, Python numbers, DLPack."""

import numpy
import pytest
import torch


def test_pinned_memory():
    host = torch.randn(1000)
    assert not host.is_pinned()
    pinned = host.pin_memory()
    assert pinned.is_pinned() and pinned[10:].is_pinned() and torch.equal(pinned, host)
    assert torch.empty(3, pin_memory=True).is_pinned()
    x = pinned.to("tpu", non_blocking=True)
    assert not x.is_pinned()
    assert torch.equal(x.cpu(), host)
    back = torch.empty(1000, pin_memory=True).copy_(x, non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(back, host)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="tpu", pin_memory=True)


def test_pageable_memory_is_read_before_the_call_returns():
    host = torch.zeros(1 << 16)
    copies = []
    for i in range(8):
        host.fill_(i)
        copies.append(host.to("tpu", non_blocking=True))
    host.fill_(-1)
    assert [x[0].item() for x in copies] == [x.mean().item() for x in copies] == list(range(8))


def test_pinned_memory_lives_until_the_transfer_is_done():
    copies = []
    for i in range(8):
        copies.append(torch.full((1 << 16,), float(i)).pin_memory().to("tpu", non_blocking=True))
    assert [x.mean().item() for x in copies] == list(range(8))


def slow_ones(size: int) -> torch.Tensor:
    """Ones at the end of tens of milliseconds of work."""
    x = torch.ones(1024, 1024, device="tpu")
    for _ in range(4):
        x = x @ x
        x = x / x.amax()
    return x[:1, :1].expand(size, 1).contiguous().flatten()


def host_waits() -> int:
    return torch.tpu.counters()["host_waits"]


@pytest.mark.parametrize("wait", [torch.tpu.synchronize, lambda: torch.tpu.current_stream().synchronize()])
def test_a_copy_into_pinned_memory_need_not_wait(wait):
    target = torch.zeros(1 << 16, pin_memory=True)
    x = slow_ones(1 << 16)
    before = host_waits()
    returned = target.copy_(x, non_blocking=True)
    back = x.to("cpu", non_blocking=True)
    x.add_(1)  # the copies have the value of their time
    done = torch.tpu.Event()
    done.record()
    assert host_waits() == before and returned is target
    assert back.is_pinned()  # as torch does for a device with pinned memory
    done.synchronize()
    assert torch.equal(target, torch.ones(1 << 16)) and torch.equal(back, target)
    target.copy_(x, non_blocking=True)
    wait()
    assert torch.equal(target, torch.full((1 << 16,), 2.0))


def test_a_copy_into_pinned_memory_converts_on_the_device():
    x = slow_ones(24).view(2, 3, 4)
    sources = [x.bfloat16(), x.transpose(0, 2).contiguous().transpose(0, 2), x[:, :1], x.mul(2).long(), x[1:, :, ::2].mT]
    targets = [torch.zeros(2, 3, 4, dtype=torch.float64, pin_memory=True) for _ in range(4)]
    targets.append(torch.zeros(1, 2, 3, pin_memory=True))
    before = host_waits()
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
    assert host_waits() == before
    torch.tpu.synchronize()
    assert [t.unique().tolist() for t in targets] == [[1], [1], [1], [2], [1]]
    part = torch.zeros(2, 3, pin_memory=True).t()[:2]  # not contiguous: waits
    part.copy_(x[0, :2, :2], non_blocking=True)
    torch.tpu.synchronize()
    assert part.tolist() == [[1, 1], [1, 1]]


def test_pinned_memory_is_not_given_away_while_a_copy_writes_it():
    for _ in range(4):
        torch.empty(1 << 16, pin_memory=True).copy_(slow_ones(1 << 16), non_blocking=True)  # and let go at once
    others = [torch.full((1 << 16,), float(i)).pin_memory() for i in range(8)]
    torch.tpu.synchronize()
    assert [x.unique().tolist() for x in others] == [[i] for i in range(8)]


def test_a_copy_into_pageable_memory_is_done_when_the_call_returns():
    target = torch.zeros(1 << 16)
    target.copy_(slow_ones(1 << 16), non_blocking=True)
    assert torch.equal(target, torch.ones(1 << 16))


def test_a_failure_before_a_copy_into_pinned_memory_is_reported_once():
    target = torch.zeros(1, 4, pin_memory=True)
    bad = torch.nn.functional.embedding(torch.tensor([9], device="tpu"), torch.ones(3, 4, device="tpu"))
    target.copy_(bad, non_blocking=True)
    with pytest.raises(IndexError, match="embedding"):
        torch.tpu.synchronize()
    torch.tpu.synchronize()


def test_a_host_tensor_and_its_copy_are_apart():
    host = torch.arange(1024.0)
    x = host.to("tpu")
    host.add_(1)
    x.mul_(2)
    assert x[3].item() == 6 and host[3].item() == 4
    back = x.cpu()
    back.zero_()
    assert x[3].item() == 6


def test_copies_convert_and_broadcast():
    x = torch.zeros(3, 4, device="tpu")
    x.copy_(torch.arange(4))
    assert x[2].tolist() == [0, 1, 2, 3]
    x.t().copy_(torch.tensor([[5.0, 6.0, 7.0]], dtype=torch.float64))
    assert x[:, 1].tolist() == [5, 6, 7]
    host = torch.zeros(4, 3, dtype=torch.int64)
    host.t().copy_(x)
    assert host[0].tolist() == [5, 6, 7]
    with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape|must match the size"):
        x.copy_(torch.zeros(2, 3, 4))


def test_numpy():
    x = torch.ones(2, device="tpu")
    text = "can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu\\(\\) to copy the tensor to host memory first."
    with pytest.raises(TypeError, match=text):
        x.numpy()
    with pytest.raises(TypeError, match=text):
        numpy.asarray(x)
    assert torch.from_numpy(numpy.arange(3)).to("tpu").tolist() == [0, 1, 2]
    assert torch.as_tensor(numpy.arange(3), device="tpu").tolist() == [0, 1, 2]
    assert x.cpu().numpy().tolist() == [1, 1]


def test_python_scalars():
    x = torch.tensor([2.5], device="tpu")
    assert (float(x), int(x), bool(x), complex(x)) == (2.5, 2, True, 2.5 + 0j)
    assert f"{x[0]:.2f}" == "2.50"
    assert ["a", "b", "c"][torch.tensor(1, device="tpu")] == "b"
    assert [row.tolist() for row in torch.tensor([[1, 2], [3, 4]], device="tpu")] == [[1, 2], [3, 4]]
    for bad in (torch.ones(2, device="tpu"), torch.ones(0, device="tpu")):
        with pytest.raises(RuntimeError, match="Boolean value of Tensor with"):
            bool(bad)
        with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
            bad.item()


def test_dlpack():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    for y in (torch.from_dlpack(x[1:]), torch.from_dlpack(torch.utils.dlpack.to_dlpack(x[1:]))):
        assert y.device == x.device and y.data_ptr() == x[1:].data_ptr() and y.tolist() == x[1:].tolist()
        y.add_(10)
        assert torch.equal(y, x[1:])
        x.mul_(2)
        assert torch.equal(y, x[1:])
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
    assert torch.equal(torch.from_dlpack(x, device="cpu"), x.cpu())
    assert torch.from_dlpack(numpy.ones(3, dtype=numpy.float32), device="tpu").is_tpu
    assert torch.ones(2).__dlpack_device__()[0] == torch.utils.dlpack.DLDeviceType.kDLCPU
    with pytest.raises((RuntimeError, BufferError)):
        numpy.from_dlpack(x)  # numpy knows CPU memory only


def test_dlpack_keeps_the_memory_alive():
    y = torch.from_dlpack(torch.arange(1000.0, device="tpu") + 1)
    for _ in range(3):
        torch.zeros(1000, device="tpu").add_(1)
    assert y.sum().item() == 500500
