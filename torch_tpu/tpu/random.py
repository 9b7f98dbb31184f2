"""Random state of the devices: a seed and an offset, 16 bytes, as torch's DTensor reads them."""

from collections.abc import Iterable

import torch

from torch_tpu import _C
from torch_tpu.tpu.devices import _DeviceLike, device_count, index_of


def _generator(device: _DeviceLike) -> torch.Generator:
    return _C._default_generator(index_of(device))


def get_rng_state(device: _DeviceLike = "tpu") -> torch.Tensor:
    """Returns the state of a device's default generator, a CPU ByteTensor of 16 bytes: seed, offset."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: _DeviceLike = "tpu") -> None:
    """Sets the state of a device's default generator."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of every device, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices. ``torch.manual_seed`` calls it."""
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator with a number that nobody chose."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds all generators with one number that nobody chose."""
    manual_seed_all(_generator(None).seed())


def initial_seed() -> int:
    """Returns the seed of the current device's generator."""
    return _generator(None).initial_seed()
