"""Views, and writes through them, against CPU torch."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch


def check_same(tpu: torch.Tensor, cpu: torch.Tensor) -> None:
    assert tpu.shape == cpu.shape and tpu.stride() == cpu.stride() and tpu.storage_offset() == cpu.storage_offset()
    torch.testing.assert_close(tpu.cpu(), cpu, rtol=0, atol=0, equal_nan=True)


def base(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(torch.Size(sizes).numel())
    return torch.arange(1, count + 1).to(dtype).reshape(sizes)


VIEWS = {
    "as_strided": lambda x: x.as_strided((3, 4), (2, 3), 1),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(0, 0, 1),
    "diagonal offset": lambda x: x.diagonal(1, 1, 2),
    "expand": lambda x: x[:, :1].expand(4, 6, 5),
    "flatten": lambda x: x.flatten(1),
    "imag of complex": lambda x: torch.view_as_complex(x.view(4, 3, 5, 2)).imag,
    "movedim": lambda x: x.movedim(0, 2),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "permute": lambda x: x.permute(2, 0, 1),
    "select": lambda x: x.select(1, 3),
    "select all": lambda x: x[1, 2, 3],
    "slice": lambda x: x[1:3, 2:5, 1:4],
    "slice step": lambda x: x[::2, 1::3, ::2],
    "slice step of odd size": lambda x: x[:, :, 1::3],
    "split": lambda x: x.split([1, 3], 0)[1],
    "squeeze": lambda x: x[:, 2:3].squeeze(1),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "t": lambda x: x[0].t(),
    "unbind": lambda x: x.unbind(2)[4],
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "unfold overlapping": lambda x: x.unfold(1, 4, 1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "view": lambda x: x.view(8, 15),
    "view dtype": lambda x: x.view(torch.int32),
    "view narrower dtype": lambda x: x.view(torch.int16),
    "view wider dtype": lambda x: x.view(4, 15, 2).view(torch.int64),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 5, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 5, 2))),
    "view of flat range": lambda x: x.view(-1)[7:97].view(9, 10),
    "transpose then slice": lambda x: x.transpose(0, 1)[2:5, 1:].transpose(1, 2)[::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_read(name):
    cpu = base(4, 6, 5)
    check_same(VIEWS[name](cpu.to("tpu")), VIEWS[name](cpu))


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("expand", "unfold overlapping")])
def test_write(name):
    cpu = base(4, 6, 5)
    tpu = cpu.to("tpu")
    for x in (tpu, cpu):
        view = VIEWS[name](x)
        view.mul_(2)
        view.copy_(view.clone() + 1)
        view.fill_(7) if view.numel() < 3 else view[..., 0].zero_() if view.dim() else None
    check_same(tpu, cpu)


@pytest.mark.parametrize("name", VIEWS)
def test_read_is_part_of_the_reading_program(name):
    """A view is read inside the program that uses it, never by a program of its own."""
    tpu = base(4, 6, 5).to("tpu")
    view = VIEWS[name](tpu)
    other = torch.ones((), device="tpu", dtype=view.dtype)
    view + other
    before = torch.tpu.counters()["executions"]
    view + other
    assert torch.tpu.counters()["executions"] == before + 1


def test_new_offsets_share_a_program():
    x = base(64, 16).to("tpu")
    x[1] + 1.0
    before = torch.tpu.counters()["compiles"]
    for i in range(2, 40):
        assert (x[i] + 1.0)[0].item() == 16 * i + 2
    assert torch.tpu.counters()["compiles"] <= before + 1


def test_aliases_see_writes():
    a = torch.arange(4, device="tpu")
    b, c = a.split(2)
    a[0] = -1
    c.fill_(9)
    assert b.tolist() == [-1, 1] and a.tolist() == [-1, 1, 9, 9]


def test_earlier_readers_keep_what_they_read():
    a = torch.ones(3, device="tpu")
    b, c = a + 1, a.clone()
    a.add_(5)
    assert (a.tolist(), b.tolist(), c.tolist()) == ([6] * 3, [2] * 3, [1] * 3)


def test_clone_shares_until_written():
    a = torch.ones(1 << 16, device="tpu")
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    b = a.clone()
    assert torch.tpu.memory_allocated() == before
    b.add_(1)
    assert a[0].item() == 1 and b[0].item() == 2


def test_write_into_overlapping_view_is_refused():
    e = torch.zeros(2, 1, device="tpu").expand(2, 4)
    with pytest.raises(RuntimeError, match="memory location"):
        e.add_(1)


def test_overlapping_read_then_write():
    for device in ("tpu", "cpu"):
        x = torch.arange(6.0, device=device)
        x[1:] = x[:-1].clone()
        assert x.tolist() == [0, 0, 1, 2, 3, 4]


def test_out():
    out = torch.empty(0, device="tpu")
    a, b = torch.ones(2, 3, device="tpu"), torch.full((2, 3), 2.0, device="tpu")
    torch.add(a, b, out=out)
    assert out.tolist() == [[3.0] * 3] * 2
    parent = torch.zeros(3, 4, device="tpu")
    column = parent.select(1, 2)
    torch.mv(torch.eye(3, device="tpu"), torch.tensor([1.0, 2, 3], device="tpu"), out=column)
    assert parent[:, 2].tolist() == [1, 2, 3] and parent.sum().item() == 6 and column.stride() == (4,)


def test_out_of_another_dtype():
    a = torch.ones(3, device="tpu")
    out = torch.empty(3, dtype=torch.float64, device="tpu")
    torch.add(a, a, out=out)
    assert out.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(a, a, out=torch.empty(3, dtype=torch.int32, device="tpu"))


def test_in_place_on_views_under_autograd():
    for device in ("tpu", "cpu"):
        x = torch.arange(1.0, 7.0, device=device).requires_grad_()
        y = x * 2
        y[1:4].mul_(3)
        y.view(2, 3)[:, 0].add_(y.view(2, 3)[:, 1].detach())
        (y * y).sum().backward()
        if device == "tpu":
            ours = x.grad.cpu()
    torch.testing.assert_close(ours, x.grad)


def test_version_counter():
    a = torch.zeros(3, device="tpu", requires_grad=True)
    a.detach()[1:].fill_(7)
    assert a.tolist() == [0, 7, 7] and a._version >= 1
    b = torch.ones(3, device="tpu", requires_grad=True)
    c = b.exp()
    c.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


def test_set_data_detaches_views():
    x = torch.zeros(4, device="tpu")
    y = x.view(2, 2)
    x.data = x.data + 1
    assert y.sum().item() == 0 and x.sum().item() == 4


def test_donation_keeps_memory_flat():
    w = torch.zeros(1 << 20, device="tpu")
    w.add_(1)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    for _ in range(4):
        w.add_(1)
        w.mul_(2)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() < torch.tpu.memory_allocated() + 1.2 * w.nbytes


# --- random programs -----------------------------------------------------------

_steps = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)), min_size=3, max_size=14
)


def _dim(x, number):
    return number % x.dim() if x.dim() else 0


def _run(device: str, program) -> list[torch.Tensor]:
    """Interprets a program of views and writes on three aliasing families; returns every tensor that it made."""
    tensors = [base(4, 6).to(device), base(3, 2, 4).to(device), base(5).to(device)]
    for op, a, b, c in program:
        x = tensors[a % len(tensors)]
        d = _dim(x, b)
        n = x.shape[d] if x.dim() else 1
        if op == 0 and x.dim() > 1:
            tensors.append(x.transpose(d, _dim(x, c)))
        elif op == 1 and x.dim():
            start = c % (n + 1)
            tensors.append(x.narrow(d, start, (c // 7) % (n - start + 1)))
        elif op == 2 and x.dim() and n:
            tensors.append(x.select(d, c % n))
        elif op == 3 and x.dim():
            tensors.append(x[(slice(None),) * d + (slice(c % 2, None, 1 + c % 3),)])
        elif op == 4:
            tensors.append(x.reshape(-1))
        elif op == 5:
            x.add_(c % 5 + 1)
        elif op == 6:
            x.mul_(2)
        elif op == 7:
            x.fill_(c % 11)
        elif op == 8:
            tensors.append(x.clone() if c % 2 else x.unsqueeze(d))
        elif op == 9:
            y = tensors[c % len(tensors)]
            if y.shape == x.shape or (
                y.dim() <= x.dim() and all(s == t or s == 1 for s, t in zip(reversed(y.shape), reversed(x.shape), strict=False))
            ):
                x.copy_(y.clone())
        elif op == 10 and x.dim() and n:
            x.index_fill_(d, torch.tensor([c % n], device=device), float(c % 13))
        elif op == 11 and x.dim() > 1 and min(x.shape[:2]) > 0:
            tensors.append(x.diagonal(c % 3 - 1, 0, 1))
    return tensors


@hypothesis.given(_steps)
@hypothesis.settings(max_examples=60)
def test_random_programs(program):
    ours, theirs = _run("tpu", program), _run("cpu", program)
    for tpu, cpu in zip(ours, theirs, strict=True):
        check_same(tpu, cpu)


def test_lazy_conjugates_and_negatives():
    cpu = torch.complex(base(3, 3), base(3, 3).flip(0))
    tpu = cpu.to("tpu")
    check_same(tpu.conj().resolve_conj(), cpu.conj().resolve_conj())
    torch.testing.assert_close((tpu @ tpu.conj()).cpu(), cpu @ cpu.conj())
    torch.testing.assert_close(tpu.conj().imag.cpu(), cpu.conj().imag)
    for x in (tpu, cpu):
        x.conj().copy_(x.t().clone())
        x.conj().imag.add_(1)
    torch.testing.assert_close(tpu.cpu(), cpu)
    torch.testing.assert_close(tpu.conj().cpu(), cpu.conj())
    assert tpu.conj()[0, 0].item() == cpu.conj()[0, 0].item()
