"""Calls of rows that torch's samples do not reach and that need more than any arguments of the right types; and products and
transforms of dtypes that the samples leave out.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _f(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small positive numbers."""
    return (torch.arange(1, math.prod(sizes) + 1).reshape(sizes) / math.prod(sizes)).to(dtype).to("tpu")


def _i(*sizes: int, below: int = 2) -> torch.Tensor:
    return (torch.arange(math.prod(sizes)).reshape(sizes) % below).to("tpu")


def _pairs(count: int) -> list[list[torch.Tensor]]:
    return [[_f(2, 3), _f(4)] for _ in range(count)]


def _steps() -> list[torch.Tensor]:
    return [_f(), _f()]


def _adam(op: Any, lr: Any) -> None:
    for amsgrad in (False, True):
        numbers = {
            "lr": lr,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.1,
            "eps": 1e-8,
            "amsgrad": amsgrad,
            "maximize": False,
        }
        op(*_pairs(5), _steps(), **numbers)


def _sgd_tensor_lr() -> None:
    numbers = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}
    aten._fused_sgd_.tensor_lr(*_pairs(3), lr=_f(), is_first_step=False, **numbers)


def _adagrad(op: Any, lr: Any) -> None:
    op(*_pairs(3), _steps(), lr=lr, lr_decay=0.1, weight_decay=0.1, eps=1e-8, maximize=False)


def _convolution(op: Any, *operands: torch.Tensor, mask: tuple[list[bool], ...] = ()) -> None:
    op(*operands, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, *mask)


def _gates(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _f(2, count * 3), _f(2, count * 3)


def _lstm_backward() -> None:
    _, cy, workspace = aten._thnn_fused_lstm_cell(*_gates(4), _f(2, 3), _f(12), _f(12))
    aten._thnn_fused_lstm_cell_backward_impl(_f(2, 3), _f(2, 3), _f(2, 3), cy, workspace, True)


def _gru_backward() -> None:
    _, workspace = aten._thnn_fused_gru_cell(*_gates(3), _f(2, 3), _f(9), _f(9))
    aten._thnn_fused_gru_cell_backward(_f(2, 3), workspace, True)


def _embedding_bag_backward() -> None:
    indices, offsets = _i(6, below=5), torch.tensor([0, 2, 4], device="tpu")
    _, offset2bag, sizes, most = aten._embedding_bag(_f(5, 3), indices, offsets, False, 0)
    aten._embedding_bag_dense_backward(_f(3, 3), indices, offset2bag, sizes, most, 5, False, 0, None)


def _resample(op: Any) -> None:
    op(_f(1, 2, 6, 6), [3, 4], False)


def _resample_backward(op: Any) -> None:
    op(_f(1, 2, 3, 4), [3, 4], [1, 2, 6, 6], False)


def _other_dtypes() -> None:
    for dtype in (torch.float16, torch.float64, torch.complex64, torch.complex128, torch.int8, torch.int32):
        torch.mm(_f(3, 4, dtype=dtype), _f(4, 2, dtype=dtype))


def _convolutions_of_other_dtypes() -> None:
    for dtype in (torch.float16, torch.float64, torch.complex64):
        torch.nn.functional.conv2d(_f(1, 2, 5, 5, dtype=dtype), _f(3, 2, 3, 3, dtype=dtype))


def _batch_norm(op: Any, *training: bool) -> None:
    op(_f(4, 3), _f(3), _f(3), _f(3), _f(3), *training, 0.1, 1e-5)


_F16, _F8 = torch.float16, torch.float8_e4m3fn

CALLS: dict[str, Callable[[], Any]] = {
    "fill.Tensor": lambda: aten.fill.Tensor(_f(2, 3), _f()),
    "_foreach_add.Tensor": lambda: aten._foreach_add.Tensor([_f(2, 3), _f(4)], _f()),
    "_foreach_mul.Tensor": lambda: aten._foreach_mul.Tensor([_f(2, 3), _f(4)], _f()),
    "_foreach_div.Tensor": lambda: aten._foreach_div.Tensor([_f(2, 3), _f(4)], _f()),
    "_fused_sgd_.tensor_lr": _sgd_tensor_lr,
    "_fused_adam_": lambda: _adam(aten._fused_adam_.default, 0.1),
    "_fused_adam_.tensor_lr": lambda: _adam(aten._fused_adam_.tensor_lr, _f()),
    "_fused_adamw_": lambda: _adam(aten._fused_adamw_.default, 0.1),
    "_fused_adamw_.tensor_lr": lambda: _adam(aten._fused_adamw_.tensor_lr, _f()),
    "_fused_adagrad_": lambda: _adagrad(aten._fused_adagrad_.default, 0.1),
    "_fused_adagrad_.tensor_lr": lambda: _adagrad(aten._fused_adagrad_.tensor_lr, _f()),
    "_amp_foreach_non_finite_check_and_unscale_": lambda: aten._amp_foreach_non_finite_check_and_unscale_(
        [_f(2, 3), _f(4)], _f(1), _f()
    ),
    "_amp_update_scale_": lambda: aten._amp_update_scale_(_f(1), _i(1).to(torch.int32), _f(1), 2.0, 0.5, 3),
    "norm.ScalarOpt_dim_dtype": lambda: aten.norm.ScalarOpt_dim_dtype(_f(2, 3), 3, [1], True, dtype=torch.float64),
    "norm.ScalarOpt_dtype": lambda: aten.norm.ScalarOpt_dtype(_f(2, 3), 3, dtype=torch.float64),
    "_masked_softmax": lambda: aten._masked_softmax(_f(2, 3), _i(2, 3).bool(), 1, 2),
    "_masked_softmax_backward": lambda: aten._masked_softmax_backward(_f(2, 3), _f(2, 3), _i(2, 3).bool(), 1),
    "_native_batch_norm_legit_functional": lambda: _batch_norm(aten._native_batch_norm_legit_functional, True),
    "_native_batch_norm_legit_no_training": lambda: _batch_norm(aten._native_batch_norm_legit_no_training),
    "_batch_norm_with_update_functional": lambda: _batch_norm(aten._batch_norm_with_update_functional),
    "_batch_norm_no_update": lambda: _batch_norm(aten._batch_norm_no_update),
    "glu_jvp": lambda: aten.glu_jvp(_f(2, 2), _f(2, 4), _f(2, 4), 1),
    "glu_backward_jvp": lambda: aten.glu_backward_jvp(_f(2, 4), _f(2, 2), _f(2, 4), _f(2, 2), _f(2, 4), 1),
    "fake_quantize_per_channel_affine_cachemask": lambda: aten.fake_quantize_per_channel_affine_cachemask(
        _f(2, 3), _f(2), _i(2).to(torch.int32), 0, 0, 255
    ),
    "_fake_quantize_learnable_per_tensor_affine_backward": lambda: aten._fake_quantize_learnable_per_tensor_affine_backward(
        _f(2, 3), _f(2, 3), _f(1), _f(1), 0, 255
    ),
    "_fake_quantize_learnable_per_channel_affine": lambda: aten._fake_quantize_learnable_per_channel_affine(
        _f(2, 3), _f(2), _f(2), 0, 0, 255
    ),
    "_fake_quantize_learnable_per_channel_affine_backward": lambda: aten._fake_quantize_learnable_per_channel_affine_backward(
        _f(2, 3), _f(2, 3), _f(2), _f(2), 0, 0, 255
    ),
    "nll_loss2d_forward": lambda: aten.nll_loss2d_forward(_f(2, 3, 4, 4), _i(2, 4, 4), _f(3), 1, -100),
    "nll_loss2d_backward": lambda: aten.nll_loss2d_backward(_f(), _f(2, 3, 4, 4), _i(2, 4, 4), _f(3), 1, -100, _f()),
    "searchsorted.Scalar": lambda: aten.searchsorted.Scalar(_f(5), 0.5),
    "bucketize.Scalar": lambda: aten.bucketize.Scalar(0.5, _f(5)),
    "mm": _other_dtypes,
    "mm.dtype": lambda: aten.mm.dtype(_f(2, 3, dtype=_F16), _f(3, 4, dtype=_F16), torch.float32),
    "bmm.dtype": lambda: aten.bmm.dtype(_f(2, 2, 3, dtype=_F16), _f(2, 3, 4, dtype=_F16), torch.float32),
    "addmm.dtype": lambda: aten.addmm.dtype(_f(2, 4, dtype=_F16), _f(2, 3, dtype=_F16), _f(3, 4, dtype=_F16), torch.float32),
    "baddbmm.dtype": lambda: aten.baddbmm.dtype(
        _f(2, 2, 4, dtype=_F16), _f(2, 2, 3, dtype=_F16), _f(2, 3, 4, dtype=_F16), torch.float32
    ),
    "_addmm_activation": lambda: aten._addmm_activation(_f(4), _f(2, 3), _f(3, 4), use_gelu=True),
    "_int_mm": lambda: aten._int_mm(_i(32, 16).to(torch.int8), _i(16, 8).to(torch.int8)),
    "_scaled_mm": lambda: aten._scaled_mm(
        _f(16, 32, dtype=_F8), _f(16, 32, dtype=_F8).t(), _f(), _f(), out_dtype=torch.bfloat16
    ),
    "convolution": _convolutions_of_other_dtypes,
    "convolution_overrideable": lambda: _convolution(aten.convolution_overrideable, _f(1, 2, 5, 5), _f(3, 2, 3, 3), _f(3)),
    "convolution_backward_overrideable": lambda: _convolution(
        aten.convolution_backward_overrideable, _f(1, 3, 5, 5), _f(1, 2, 5, 5), _f(3, 2, 3, 3), mask=([True] * 3,)
    ),
    "_fft_c2c": lambda: (torch.fft.fft2(_f(4, 6, dtype=torch.complex128)), torch.fft.ifft(_f(5, dtype=torch.complex128))),
    "_fft_r2c": lambda: torch.fft.rfft(_f(3, 10, dtype=torch.float64)),
    "_fft_c2r": lambda: torch.fft.irfft2(_f(4, 5, dtype=torch.complex128)),
    "_upsample_nearest_exact3d": lambda: aten._upsample_nearest_exact3d(_f(1, 2, 3, 3, 3), [2, 4, 5]),
    "_upsample_nearest_exact3d_backward": lambda: aten._upsample_nearest_exact3d_backward(
        _f(1, 2, 2, 4, 5), [2, 4, 5], [1, 2, 3, 3, 3]
    ),
    "_upsample_bicubic2d_aa": lambda: _resample(aten._upsample_bicubic2d_aa),
    "_upsample_bicubic2d_aa_backward": lambda: _resample_backward(aten._upsample_bicubic2d_aa_backward),
    "_upsample_lanczos2d_aa": lambda: _resample(aten._upsample_lanczos2d_aa),
    "_upsample_lanczos2d_aa_backward": lambda: _resample_backward(aten._upsample_lanczos2d_aa_backward),
    "scatter.value_reduce": lambda: aten.scatter.value_reduce(_f(2, 3), 1, _i(2, 2), 2.0, reduce="multiply"),
    "_embedding_bag_dense_backward": _embedding_bag_backward,
    "_thnn_fused_lstm_cell": lambda: aten._thnn_fused_lstm_cell(*_gates(4), _f(2, 3), _f(12), _f(12)),
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "_thnn_fused_gru_cell": lambda: aten._thnn_fused_gru_cell(*_gates(3), _f(2, 3), _f(9), _f(9)),
    "_thnn_fused_gru_cell_backward": _gru_backward,
    "native_channel_shuffle": lambda: aten.native_channel_shuffle(_f(1, 4, 2, 2), 2),
    "reflection_pad3d": lambda: aten.reflection_pad3d(_f(1, 3, 3, 3), [1] * 6),
    "replication_pad3d": lambda: aten.replication_pad3d(_f(1, 3, 3, 3), [1] * 6),
    "reflection_pad3d_backward": lambda: aten.reflection_pad3d_backward(_f(1, 5, 5, 5), _f(1, 3, 3, 3), [1] * 6),
    "replication_pad3d_backward": lambda: aten.replication_pad3d_backward(_f(1, 5, 5, 5), _f(1, 3, 3, 3), [1] * 6),
    "kaiser_window": lambda: torch.kaiser_window(7, device="tpu"),
    "kaiser_window.periodic": lambda: torch.kaiser_window(7, False, device="tpu"),
    "kaiser_window.beta": lambda: torch.kaiser_window(7, True, 3.0, device="tpu"),
}
