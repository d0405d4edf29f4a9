"""The default generators: seeded, and set back to where they stood. What they are seeded with: `mix`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from drivetrain.runtime.device import own_generator


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


class GeneratorStates(NamedTuple):
    """Where the default generators stand: torch's of the CPU and of a device, Python's and NumPy's."""

    device: torch.device
    on_host: torch.Tensor
    on_device: torch.Tensor | None
    pythons: tuple[Any, ...]
    numpys: Any

    @classmethod
    def now(cls, device: torch.device) -> GeneratorStates:
        """Where they stand at this moment."""
        host = torch.default_generator.get_state()
        return cls(device, host, _state(device), random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Let them go on from here."""
        random.setstate(self.pythons)
        np.random.set_state(self.numpys)
        torch.default_generator.set_state(self.on_host)
        if self.on_device is not None:
            _set_state(self.device, self.on_device)


@contextmanager
def undrawn(device: torch.device) -> Iterator[None]:
    """Whatever is drawn while this is entered, afterwards the default generators go on from where they were."""
    before = GeneratorStates.now(device)
    try:
        yield
    finally:
        before.restore()


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
