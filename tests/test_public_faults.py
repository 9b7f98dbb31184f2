"""Faults that users of PyTorch backends reported in public, each as a test of ours. The number names one report of the kind."""

import gc
import io

import pytest
import torch
from helpers import output_of
from torch import nn
from torch.nn import functional as F

NAN, INF = float("nan"), float("inf")


def tpu(*args, **kwargs):
    return torch.tensor(*args, device="tpu", **kwargs)


# --- operators -----------------------------------------------------------


def test_cpu_scalar_that_is_a_view():  # pytorch#187117
    c, x = torch.tensor([9.0, 2.0, 7.0]), torch.full((2,), 4.0, device="tpu")
    assert (x * c[2]).tolist() == [28.0, 28.0]
    assert (c[1] - x).tolist() == [-2.0, -2.0]
    assert x.div_(c[1]).tolist() == [2.0, 2.0]


def test_number_as_second_operand():  # pytorch#152582
    assert torch.copysign(tpu([1.0, 2.0]), -2.0).tolist() == [-1.0, -2.0]


@pytest.mark.filterwarnings("ignore:.*is not lowered for TPU")
def test_number_as_polynomial_degree():  # pytorch#150051
    t = tpu([1.0, 2.0])
    torch.testing.assert_close(torch.special.chebyshev_polynomial_t(t / 4, 2).cpu(), torch.tensor([-0.875, -0.5]))


def test_maximum_keeps_nan():  # pytorch#143976
    n, o = tpu([NAN, 1.0]), tpu([1.0, NAN])
    assert torch.maximum(n, o).isnan().all() and torch.minimum(n, o).isnan().all()
    assert torch.fmax(n, o).tolist() == [1.0, 1.0] and torch.relu(n)[0].isnan()


def test_reductions_keep_nan():  # pytorch#130295
    t = tpu([3.0, NAN, 5.0, NAN])
    assert t.max().isnan() and t.argmax().item() == 1 and t.argmin().item() == 1
    assert t.max(0).indices.item() == 1 and t.amax().isnan() and torch.aminmax(t).min.isnan()


def test_variance_of_nothing_is_nan():  # pytorch#184510
    assert torch.empty(3, 0, 5, device="tpu").var(dim=1).isnan().all()
    assert torch.ones(1, device="tpu").std().isnan()


def test_matmul_with_empty_inner_dimension():  # pytorch#187879
    i, a, b = torch.full((2, 3), 2.0, device="tpu"), torch.empty(4, 2, 0, device="tpu"), torch.empty(4, 0, 3, device="tpu")
    assert torch.addbmm(i, a, b, beta=0.5).tolist() == [[1.0] * 3] * 2
    assert torch.bmm(a, b).abs().sum().item() == 0
    assert torch.mm(a[0], b[0]).tolist() == [[0.0] * 3] * 2


def test_beta_zero_ignores_nan():
    x, y = torch.ones(2, 2, device="tpu"), torch.ones(2, 3, device="tpu")
    assert torch.addmm(torch.full((2, 3), NAN, device="tpu"), x, y, beta=0).isfinite().all()


def test_cat_with_legacy_empty_tensor():  # pytorch#90479
    t = torch.Tensor().to("tpu")
    for i in range(2):
        t = torch.cat((t, torch.ones(1, device="tpu") * i))
    assert t.tolist() == [0.0, 1.0]
    assert torch.cat([torch.empty(0, device="tpu"), torch.ones(2, 3, device="tpu")]).shape == (2, 3)


def test_cat_promotes():  # pytorch#35014
    r = torch.cat([torch.ones(2, dtype=torch.int8, device="tpu"), torch.ones(2, dtype=torch.int32, device="tpu")])
    assert r.dtype == torch.int32 and r.tolist() == [1] * 4
    assert torch.cat([torch.zeros(2, dtype=torch.long, device="tpu"), tpu([])]).dtype == torch.float32


def test_floor_divide_of_floats():  # pytorch#189243
    q = torch.floor_divide(tpu([INF, 1.0, -1.0, 1.0]), tpu([1.0, -INF, INF, 0.1]))
    assert q[0].isnan() and q[1:].tolist() == [-1.0, -1.0, 9.0]
    x, y = torch.tensor([2144.0], dtype=torch.bfloat16), torch.tensor([358.0], dtype=torch.bfloat16)
    assert torch.equal(torch.floor_divide(x.to("tpu"), y.to("tpu")).cpu(), torch.floor_divide(x, y))


def test_integer_division_is_exact():  # kulinseth/pytorch#243
    n, d = tpu([-616, -7, 7, -(2**53) - 1]), tpu([28, 2, -2, 2])
    assert (n // d).tolist() == [-22, -4, -4, -4503599627370497]
    assert (n % d).tolist() == [0, 1, -1, 1]
    assert torch.div(n, d, rounding_mode="trunc").tolist() == [-22, -3, -3, -4503599627370496]


def test_accumulate_counts_duplicates():  # pytorch#61034
    z, i = torch.zeros(4, 2, device="tpu"), tpu([1, 1, 1, 3])
    z.index_put_((i,), tpu([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]), accumulate=True)
    assert z.tolist() == [[0, 0], [9, 12], [0, 0], [7, 8]]


def test_accumulate_broadcasts():  # pytorch#39227
    a = torch.zeros(3, device="tpu").index_put_((tpu([0, 0]),), tpu(1.0), accumulate=True)
    assert a.tolist() == [2.0, 0.0, 0.0]
    x = torch.zeros(4, 3, device="tpu").index_put_((tpu([[0, 2], [1, 3]]),), tpu([1.0, 2.0, 3.0]), accumulate=True)
    assert x.sum().item() == 24.0


def test_scatter_with_a_smaller_index():  # pytorch#25836
    o = torch.zeros(4, 4, device="tpu").scatter_add_(0, tpu([[1, 3], [2, 0]]), torch.ones(3, 3, device="tpu"))
    assert o.sum().item() == 4 and o[3, 1].item() == 1 and o[:, 2:].sum().item() == 0


def test_scatter_of_duplicates_gives_one_of_them():  # pytorch#131740
    r = torch.zeros(1, device="tpu").scatter_(0, torch.zeros(3, dtype=torch.long, device="tpu"), tpu([1.0, 2.0, 3.0]))
    assert r.item() in (1.0, 2.0, 3.0)


def test_topk_along_an_inner_axis():  # pytorch#154890
    x = torch.arange(64.0, device="tpu").reshape(2, 2, 2, 2, 2, 2)
    v, i = x.topk(1, dim=0)
    assert torch.equal(v[0].cpu(), x[1].cpu()) and i.dtype == torch.int64 and (i == 1).all()


def test_attention_of_a_fully_masked_row():  # pytorch#156707
    q = torch.randn(1, 1, 2, 4, device="tpu")
    o = F.scaled_dot_product_attention(q, q, q, attn_mask=tpu([[[[False, False], [True, True]]]]))
    assert o[0, 0, 0].abs().sum().item() == 0


def test_attention_of_strided_operands():  # spyre#4331
    t = torch.randn(1, 2, 4, 8, device="tpu").transpose(1, 2)
    a = F.scaled_dot_product_attention(t, t, t)
    b = F.scaled_dot_product_attention(*[t.contiguous()] * 3)
    torch.testing.assert_close(a.cpu(), b.cpu(), atol=1e-5, rtol=1e-5)


def test_narrow_sums_accumulate_wide():  # executorch#20090
    o = torch.ones(4096, dtype=torch.bfloat16, device="tpu")
    assert o.sum().item() == 4096 and o.mean().item() == 1
    assert abs(torch.zeros(4096, dtype=torch.bfloat16, device="tpu").softmax(0).float().sum().item() - 1) < 0.01
    assert torch.softmax(torch.full((4,), 1e4, dtype=torch.float16, device="tpu"), 0).float().sum().item() == 1


def test_no_algebra_across_ops():  # xla#42732
    assert torch.isinf(torch.log(torch.exp(tpu([89.0, 200.0])))).all()
    m, h = tpu([3e38]), tpu([100.0])
    assert torch.isinf(torch.sqrt(m * m)).all()
    assert (torch.exp(h) * torch.exp(-h - 20)).isnan().all()


def test_power_of_a_negative_base():  # tensorflow#57744
    x = tpu([-1.5])
    assert torch.log(torch.pow(x, x)).isnan().all()
    torch.testing.assert_close(torch.pow(x, x / x), x)


def test_double_square_root_is_exact():  # xla#40844
    assert (1 / tpu(3.0, dtype=torch.float64).sqrt()).item() == 0.5773502691896258


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w[tpu([5])],
        lambda w: F.embedding(tpu([3]), w),
        lambda w: w.gather(0, tpu([[7]])),
        lambda w: w.index_select(0, tpu([9])),
    ],
)
def test_index_out_of_range_is_an_error(read):  # jax#3604
    w = torch.arange(6.0, device="tpu").reshape(3, 2)
    with pytest.raises((IndexError, RuntimeError), match=r"out of range|out of bounds"):
        read(w).cpu()
    assert w[tpu([-1])].tolist() == [[4.0, 5.0]]


def test_gather_from_an_empty_axis():  # tensorflow#115255
    assert torch.empty(0, 3, device="tpu")[torch.empty(0, dtype=torch.long, device="tpu")].shape == (0, 3)


@pytest.mark.parametrize(
    "layer",
    [nn.AvgPool2d(2), nn.Hardswish(), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_gradient_of_channels_last(layer):  # pytorch#175189
    layer = layer.to("tpu")

    def gradient(x):
        x = x.detach().requires_grad_()
        y = layer(x)
        (y * torch.arange(y.numel(), device="tpu").reshape(y.shape)).sum().backward()
        return x.grad.cpu()

    b = torch.randn(2, 3, 4, 4, device="tpu")
    torch.testing.assert_close(gradient(b), gradient(b.to(memory_format=torch.channels_last)), atol=1e-3, rtol=1e-4)


def test_power_of_unsigned_bytes():  # pytorch/xla#1808
    m = tpu([[1, 2], [3, 4]], dtype=torch.uint8)
    assert torch.pow(3, m[0]).tolist() == [3, 9]
    assert torch.pow(3, m[:, 1]).tolist() == [9, 81]
    assert torch.pow(3, m[1]).tolist() == [27, 81]


def test_linear_on_strided_activations():  # Torch-FL#76
    layer = nn.Linear(4, 5).to("tpu")
    x = torch.randn(2, 4, 3, device="tpu").transpose(1, 2).requires_grad_()
    layer(x).transpose(1, 2).sum().backward()
    assert x.grad.shape == x.shape


# --- views and writes -----------------------------------------------------------


def test_fill_of_an_offset_bool_view():  # pytorch#183631
    x = torch.zeros(16, dtype=torch.bool, device="tpu")
    x[1:].fill_(True)
    assert x.tolist() == [False] + [True] * 15


def test_masked_fill_with_strided_masks():  # pytorch#107694
    m = tpu([[False, True], [True, True], [False, False]])
    assert torch.zeros(2, 3, device="tpu").masked_fill_(m.t(), 1.0).tolist() == [[0, 1, 0], [1, 1, 0]]
    t = torch.zeros(3, 2, device="tpu").t()
    t.masked_fill_(tpu([[True], [False]]), 5.0)
    assert t.tolist() == [[5.0] * 3, [0.0] * 3]


def test_fill_of_strided_views():  # pytorch#94190
    a = torch.zeros(3, 4, device="tpu")
    a[:, ::2].fill_(1)
    a.t()[1].zero_()
    assert a.sum().item() == 6 and a[:, 1].sum().item() == 0


def test_copy_of_an_expanded_tensor():  # pytorch#78642
    assert torch.tensor(1).expand(10).to("tpu").tolist() == [1] * 10


def test_addmv_into_its_own_operand():  # pytorch#182287
    v = torch.ones(2, device="tpu")
    v.addmv_(torch.eye(2, device="tpu"), v)
    assert v.tolist() == [2, 2]


def test_in_place_chain_leaves_others_alone():  # spyre#3669
    live = torch.ones(8, device="tpu")
    for k in range(5):
        t = torch.zeros(8, device="tpu").add_(k)
        t.mul_(2)
        assert t.tolist() == [2.0 * k] * 8
    assert live.tolist() == [1.0] * 8


def test_tied_weights_stay_tied():  # pytorch/xla#2719
    a, b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    b.weight = a.weight
    m = nn.Sequential(a, b).to("tpu")
    assert len(list(m.parameters())) == 1 and m[0].weight is m[1].weight


def test_output_strides():  # sglang#25592
    q = torch.randn(1, 2, 3, 4, device="tpu")
    F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(1, 3, 8)
    assert (torch.ones(2, 3, device="tpu").t() + 1).stride() == (torch.ones(2, 3).t() + 1).stride()


# --- dtypes -----------------------------------------------------------


def test_double_is_double():  # pytorch/xla#1880
    t = tpu(1.0)
    assert not (t == torch.finfo(torch.double).min).item() and (t < 1e300).item()
    d = tpu([1 + 2**-40], dtype=torch.float64)
    assert d.dtype == torch.float64 and d.item() != 1.0


def test_integer_promotion_with_a_scalar_tensor():  # pytorch/xla#6538
    r = tpu(1) + tpu([478, 112], dtype=torch.int32)
    assert r.dtype == torch.int32 and r.long().tolist() == [479, 113]


def test_long_has_64_bits():  # pytorch/xla#8571
    b = tpu([2**40 + 3, -(2**62)])
    assert b.tolist() == [2**40 + 3, -(2**62)] and (b * 2)[0].item() == 2**41 + 6
    assert (b >> 3)[1].item() == -(2**59) and b.sum().item() == 2**40 + 3 - 2**62


def test_copy_to_host_with_conversion():  # pytorch#197715
    x = torch.arange(3.0, device="tpu") / 4
    assert x.to("cpu", torch.float64).tolist() == [0, 0.25, 0.5]
    assert torch.full((3,), 7.0, dtype=torch.float64).copy_(x)[1].item() == 0.25


def test_unsupported_dtype_is_named():  # pytorch-lightning#7471
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        torch.zeros(2, dtype=torch.complex32, device="tpu")


def test_autocast():  # spyre#1213
    with torch.autocast("tpu", dtype=torch.bfloat16):
        r = torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")
        s = torch.ones(2, device="tpu").softmax(0)
    assert r.dtype == torch.bfloat16 and s.dtype == torch.float32


def test_mixed_comparisons():  # pytorch/xla#1767
    i = tpu([1, 2])
    assert (i == 1.5).tolist() == [False, False] and torch.where(i > 1, i, 0.5).tolist() == [0.5, 2.0]
    assert (i / 2).dtype == torch.float32 and (i + True).dtype == torch.int64


# --- random numbers -----------------------------------------------------------


def test_calls_draw_different_numbers():  # pytorch#78110
    assert not torch.equal(torch.randn(8, device="tpu"), torch.randn(8, device="tpu"))
    assert not torch.equal(torch.rand(8, device="tpu"), torch.rand(8, device="tpu"))


def test_manual_seed_reaches_the_device():  # pytorch/xla#2092
    torch.manual_seed(0)
    a = torch.zeros(5, device="tpu").uniform_()
    torch.manual_seed(0)
    assert torch.equal(a, torch.zeros(5, device="tpu").uniform_())


def test_fork_rng_does_not_freeze_the_state():  # pytorch#124833
    with torch.random.fork_rng(device_type="tpu"):
        torch.randn(1, device="tpu")
    state = torch.tpu.get_rng_state()
    torch.randn(1, device="tpu")
    assert not torch.equal(state, torch.tpu.get_rng_state())


def test_dropout_masks_differ():  # pytorch/xla#1932
    f, x = nn.Dropout(0.5), torch.ones(64, device="tpu")
    assert len({tuple(f(x).tolist()) for _ in range(4)}) > 1


def test_seed_does_not_race_with_queued_work():  # Oneflow#5425
    runs = []
    for _ in range(3):
        torch.manual_seed(5)
        runs.append([torch.bernoulli(torch.full((9,), 0.5, device="tpu")) for _ in range(4)])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


# --- shapes, memory, the rest -----------------------------------------------------------


def test_boolean_mask_assignment():  # pytorch/xla#4248
    a = torch.arange(4.0, device="tpu")
    a[a > 1] = -1
    assert a.tolist() == [0, 1, -1, -1]
    a[tpu([True, False, False, True])] = tpu([7.0, 8.0])
    assert a.tolist() == [7, 1, -1, 8]


def test_new_masks_compile_nothing():  # torchax#96
    a = torch.zeros(32, device="tpu")
    masks = [torch.rand(32, generator=torch.Generator().manual_seed(i)).gt(0.5).to("tpu") for i in range(10)]
    a[masks[0]] = 1
    before = torch.tpu.counters()["compiles"]
    for mask in masks[1:]:
        a[mask] = 1
    assert torch.tpu.counters()["compiles"] == before


def test_index_copy_into_a_cache():  # transformers#18661
    k = torch.zeros(1, 2, 8, 4, device="tpu")
    k.index_copy_(2, tpu([3]), torch.ones(1, 2, 1, 4, device="tpu"))
    assert k[0, :, 3].sum().item() == 8 and k.sum().item() == 8


def test_checkpoint_opens_on_the_cpu():  # pytorch/xla#1026
    f = io.BytesIO()
    torch.save({"w": torch.arange(3.0, device="tpu"), "v": torch.arange(6.0, device="tpu")[2:4]}, f)
    f.seek(0)
    d = torch.load(f, map_location="cpu", weights_only=True)
    assert d["w"].device.type == "cpu" and d["v"].tolist() == [2, 3]


def test_pinned_data_loader():  # pytorch#126491
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    b = next(iter(loader))
    assert b.is_pinned() and b.to("tpu", non_blocking=True).sum().item() == 6


def test_import_torch_is_enough():  # pytorch#144845
    program = "import torch; print(torch.ones(2, device='tpu').sum().item())"
    assert output_of(program) == "2.0"


def test_clip_grad_norm_and_foreach_adamw():  # transformers#34176
    p = [nn.Parameter(torch.ones(2, device="tpu")) for _ in range(3)]
    for q in p:
        q.grad = torch.full((2,), 3.0, device="tpu")
    nn.utils.clip_grad_norm_(p, 1.0)
    torch.optim.AdamW(p, lr=0.1, foreach=True).step()
    assert all(q.isfinite().all() and (q < 1).all() for q in p)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(2, 3, device="tpu") + torch.ones(4, device="tpu"),
        lambda: torch.ones(2, 4, 8, device="tpu").mm(torch.ones(8, 2, device="tpu")),
        lambda: torch.ones(2, 3, device="tpu").mm(torch.ones(2, 3, device="tpu")),
    ],
)
def test_shape_errors_come_at_once_in_torch_words(call):  # pytorch/xla#9621
    with pytest.raises(RuntimeError, match=r"size of tensor|must be a matrix|2D tensor|shapes cannot be multiplied|2-D"):
        call()


def test_source_changed_right_after_the_copy():  # a host buffer reused too early
    h = torch.zeros(100000)
    d = h.to("tpu")
    h.fill_(1)
    assert d.sum().item() == 0


def test_view_keeps_its_storage():
    v = torch.arange(100.0, device="tpu")[50:52]
    gc.collect()
    torch.tpu.empty_cache()
    assert v.tolist() == [50, 51] and v.untyped_storage().nbytes() == 400


def test_synchronize_waits_for_everything():  # pytorch#108124
    x = torch.randn(512, 512, device="tpu")
    for _ in range(20):
        x = x @ x / 50
    torch.accelerator.synchronize()
    event = torch.tpu.Event()
    event.record()
    assert event.query()


def test_out_of_memory_has_torch_class():  # pytorch/xla#3470
    with pytest.raises(torch.OutOfMemoryError, match=r"allocated[\s\S]*free|free[\s\S]*allocated"):
        torch.empty(1 << 50, dtype=torch.uint8, device="tpu")
