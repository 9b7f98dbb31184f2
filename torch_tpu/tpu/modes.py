"""Eager modes and matmul precision.

Both belong to the process, not to a thread: autograd runs backward passes on threads of its own.
"""

import enum

import torch

from torch_tpu import _C


class EagerMode(enum.Enum):
    """How calls outside torch.compile run."""

    #: Strict: one program per call, asynchronously.
    DEFER_NEVER = 0
    #: Debug: the same, waiting after each call, so that an error points at the line that caused it.
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1
    #: Calls are recorded and run together, as one program, when a value is needed: a host read, a print, a save, an event, a
    #: synchronisation, or when the graph has become long.
    DEFER_AND_FUSE = 2


class Precision(enum.Enum):
    """Arithmetic of float32 matmuls and convolutions."""

    #: One bfloat16 pass with float32 accumulation ("medium").
    DEFAULT = "medium"
    #: Three bfloat16 passes ("high").
    HIGH = "high"
    #: Full float32 ("highest").
    HIGHEST = "highest"


_PRECISIONS = {"medium": 0, "high": 1, "highest": 2}


def get_eager_mode() -> EagerMode:
    """Returns the mode in force."""
    return EagerMode(_C._get_eager_mode())


_allow_excess_precision = False


def get_allow_excess_precision() -> bool:
    """Returns what ``set_allow_excess_precision`` was given last, False at first."""
    return _allow_excess_precision


def set_allow_excess_precision(allow: bool) -> None:
    """Notes whether intermediate results may keep more bits than their dtype has.

    It is a permission, and not used yet: each op rounds to its dtype, as eager PyTorch does.
    """
    if not isinstance(allow, bool):
        raise TypeError(f"allow_excess_precision must be a bool, got {type(allow).__name__}")
    global _allow_excess_precision
    _allow_excess_precision = allow


class set_eager_mode:  # noqa: N801  (a function that may be used in a with statement, like torch.set_grad_enabled)
    """Sets the eager mode at once; used as a context manager it restores the old one at the end.

    What was deferred runs when ``EagerMode.DEFER_AND_FUSE`` ends; its failure, if it has one, is raised here.
    """

    def __init__(self, mode: EagerMode) -> None:
        if not isinstance(mode, EagerMode):
            raise TypeError(f"expected a torch.tpu.EagerMode, got {type(mode).__name__}")
        self._previous = _C._get_eager_mode()
        _C._set_eager_mode(mode.value)

    def __enter__(self) -> "set_eager_mode":
        return self

    def __exit__(self, *exc: object) -> None:
        _C._set_eager_mode(self._previous)


_FORMATS = ("text", "stablehlo", "graphviz")


def pending_graph(tensor: torch.Tensor, format: str = "text") -> str:
    """Shows what is deferred and not run yet; looking runs nothing.

    Args:
        tensor: a TPU tensor. ``"text"`` and ``"graphviz"`` show the calls that its value needs: none if it is there.
        format: ``"text"``, a line per call with its results, operands and numbers; ``"stablehlo"``, the program of all that is
            pending on the tensor's device, as it would run now; ``"graphviz"``, the calls in the dot language.
    """
    if format not in _FORMATS:
        raise ValueError(f"format must be 'text', 'stablehlo' or 'graphviz', got {format!r}")
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tpu":
        raise TypeError("pending_graph wants a TPU tensor")
    return _C._pending_graph(tensor, _FORMATS.index(format))


class precision:  # noqa: N801
    """Context manager for the arithmetic of float32 matmuls and convolutions, forward and backward.

    Inside it ``torch.set_float32_matmul_precision`` has no effect on TPU tensors.

    Args:
        value: "medium", "high", "highest" or a ``Precision``.
    """

    def __init__(self, value: str | Precision) -> None:
        text = value.value if isinstance(value, Precision) else value
        if text not in _PRECISIONS:
            raise ValueError(f"precision must be 'medium', 'high' or 'highest', got {value!r}")
        self._value = _PRECISIONS[text]
        self._previous: list[int] = []

    def __enter__(self) -> "precision":
        self._previous.append(_C._get_precision())
        _C._set_precision(self._value)
        return self

    def __exit__(self, *exc: object) -> None:
        _C._set_precision(self._previous.pop())


_DYNAMISMS = ("off", "bucket", "bounded")
_dynamism = "bucket"


def get_dynamism() -> str:
    """What ``torch.tpu.dynamism`` reads."""
    return _dynamism


def set_dynamism(name: str) -> None:
    """What assigning ``torch.tpu.dynamism`` does."""
    global _dynamism
    if name not in _DYNAMISMS:
        raise ValueError(f"torch.tpu.dynamism must be 'off', 'bucket' or 'bounded', got {name!r}")
    _dynamism = name
