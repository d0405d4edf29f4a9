"""Randomness by position: seeds are a function of the run's seed and a path of whole numbers, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

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
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


@contextmanager
def undrawn(device: torch.device) -> Iterator[None]:
    """Whatever is drawn while this is entered, afterwards the default generators go on from where they were: torch's of
    the CPU and of the device, Python's and NumPy's."""
    own, numpys = random.getstate(), np.random.get_state()
    torchs = [(generator, generator.get_state()) for generator in _generators(device)]
    on_mps = None
    if device.type == "mps":
        on_mps = torch.mps.get_rng_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)
        for generator, state in torchs:
            generator.set_state(state)
        if on_mps is not None:
            torch.mps.set_rng_state(on_mps)


def _generators(device: torch.device) -> list[torch.Generator]:
    """Torch's default ones that Python can reach."""
    if device.type == "cuda":
        return [torch.default_generator, torch.cuda.default_generators[device.index or 0]]
    return [torch.default_generator]
