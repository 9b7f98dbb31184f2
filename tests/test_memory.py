"""Memory: statistics, and what happens to freed memory."""

import torch
from helpers import output_of


def test_memory_statistics():
    torch.ones(1 << 18, device="tpu")  # leaves the number 1 on the device
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18, device="tpu")
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before + (1 << 20)
    assert torch.tpu.max_memory_allocated() >= before + (1 << 20)
    stats = torch.tpu.memory_stats()
    for key in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment", "active"):
        for number in ("current", "peak", "allocated", "freed"):
            assert f"{key}.all.{number}" in stats
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated() == torch.accelerator.memory.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == torch.tpu.max_memory_allocated() == torch.tpu.max_memory_reserved()
    assert torch.tpu.memory_reserved() == torch.accelerator.memory.memory_reserved()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total - (1 << 20)
    assert (free, total) == torch.accelerator.memory.get_memory_info()

    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() >= before + (1 << 20)
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated()
    torch.tpu.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocated_bytes.all.freed"] == 0
    assert str(torch.tpu.memory_allocated()) in torch.tpu.memory_summary().replace(",", "")


def test_memory_of_a_loop_is_flat():
    x = torch.ones(1000, device="tpu")
    for i in range(20):
        if i == 5:
            torch.tpu.synchronize()
            before = torch.tpu.memory_allocated()
        x.add_(1)
        (x[1:] * 2).sum()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def test_empty_cache_gives_freed_memory_back():
    x = torch.ones(64 << 18, device="tpu")  # 64 MiB
    sums = [x + i for i in range(4)]
    torch.tpu.synchronize()
    del sums
    torch.tpu.synchronize()
    before = resident_bytes()
    torch.tpu.empty_cache()
    assert before - resident_bytes() > 3 * (64 << 20)
    assert (x + 1).sum().item() == 2 * (64 << 18)


def test_the_pool_can_be_declined():
    code = """
import torch
x = torch.ones(64 << 18, device="tpu")
def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) // 1024
sums = [x + i for i in range(4)]
torch.tpu.synchronize()
before = resident()
del sums
torch.tpu.synchronize()
print(before - resident() > 3 * 64)
"""
    assert output_of(code) == "False"
    assert output_of(code, TORCH_TPU_MEMORY_POOL="0") == "True"
