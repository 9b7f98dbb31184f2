"""Which upper bounds programs are compiled for, as ``torch.tpu.dynamism`` says."""

from typing import Any

from torch_tpu.tpu.modes import get_dynamism

_LARGEST_GIVEN = 1 << 16  # a limit up to this is taken for the bound at once


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


class Bounds:
    """The upper bounds of one size.

    "bucket": the next power of two, so that at most half is padding. "bounded": the largest that was needed so far, which makes
    the fewest programs, or the user's own. No bound is above what Dynamo knows of the size, from ``mark_dynamic(..., max=)`` or
    from the guards of the graph.
    """

    def __init__(self, known: Any) -> None:
        self._limit = int(known.upper) if known.upper.is_Integer else None
        self._largest = 0

    def bound(self, size: int) -> int:
        """The bound for a size."""
        bound = _power_of_two(size)
        if get_dynamism() == "bounded":
            bound = self._largest = max(bound, self._largest)
        if self._limit is not None:
            bound = self._limit if get_dynamism() == "bounded" and self._limit <= 2**16 else min(bound, self._limit)
        return max(bound, size)
