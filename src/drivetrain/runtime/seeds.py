"""Randomness by position: seeds are a function of the run's seed and a path of whole numbers, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from drivetrain.runtime.device import own_generator

_MASK = (1 << 64) - 1


def mix(seed: int, *path: int) -> int:
    """A 63-bit seed for a place in the run: splitmix64's finalizer, chained over the path (Steele et al. 2014)."""
    state = seed & _MASK
    for number in path:
        state = (state + 0x9E3779B97F4A7C15 * (number + 1)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(device: torch.device, value: int) -> None:
    """Seed the default generator of the CPU, and of the device where it is another.

    `torch.manual_seed` does the same for every device there may be, a hundred times slower.
    """
    torch.default_generator.manual_seed(value)
    if device.type == "cpu":
        return
    generator = own_generator(device)
    if generator is not None:
        generator.manual_seed(value)
    else:
        torch.get_device_module(device).manual_seed(value)


@contextmanager
def undrawn(device: torch.device) -> Iterator[None]:
    """Whatever is drawn while this is entered, afterwards the default generators go on from where they were: torch's of
    the CPU and of the device, Python's and NumPy's."""
    own, numpys = random.getstate(), np.random.get_state()
    on_host, on_device = torch.default_generator.get_state(), _state(device)
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)
        torch.default_generator.set_state(on_host)
        if on_device is not None:
            _set_state(device, on_device)


def _state(device: torch.device) -> torch.Tensor | None:
    """That of the device's own default generator; None for the CPU."""
    if device.type == "cpu":
        return None
    generator = own_generator(device)
    return torch.get_device_module(device).get_rng_state() if generator is None else generator.get_state()


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    generator = own_generator(device)
    if generator is None:
        torch.get_device_module(device).set_rng_state(state)
    else:
        generator.set_state(state)
