"""Initial weights by name: each tensor is a function of the seed and its name, and of no other tensor. So every mesh
begins with the same weights, and no process ever draws more than one tensor whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from drivetrain.engine.placement import Held, Placement
from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.exits import Exit, Failure

INITIAL_WEIGHTS = 1 << 34
"""A place in the seeds' path that no step has."""


@runtime_checkable
class Fills(Protocol):
    """A network that is built without memory, and can fill its tensors one by one."""

    def fill(self, name: str, tensor: Tensor) -> None:
        """Put the initial numbers into a whole parameter or buffer of this name, on the CPU. What is random comes from
        torch's default generator, which was seeded for the name."""
        ...


def require_fills(name: str, network: nn.Module) -> Fills:
    """Raises Failure(78) for a network that was built without memory and cannot fill itself."""
    if isinstance(network, Fills):
        return network
    cause = f"the task builds {name} on the meta device (build_on_meta), and {type(network).__name__} has no fill"
    raise Failure(Exit.BAD_RECIPE, cause, "write fill(name, tensor), or let the task build it on the CPU")


@torch.no_grad()
def draw(networks: Mapping[str, nn.Module], placement: Placement, seed: int) -> None:
    """Fill what this rank holds of networks that were built on the meta device, parameters and buffers."""
    for name, network in networks.items():
        filler = require_fills(name, network)
        for path, parameter in network.named_parameters():
            held = placement.held.get(f"{name}/{path}")
            _seed(seed, name, path)
            _fill(filler, path, held.here if held else parameter, held)
        _fill_buffers(filler, name, network, seed)


@torch.no_grad()
def fill_buffers(networks: Mapping[str, nn.Module], seed: int) -> None:
    """Fill the buffers alone, of which a commit does not have all."""
    for name, network in networks.items():
        _fill_buffers(require_fills(name, network), name, network, seed)


def _fill_buffers(filler: Fills, name: str, network: nn.Module, seed: int) -> None:
    for path, buffer in network.named_buffers():
        _seed(seed, name, path)
        _fill(filler, path, buffer, None)


def _fill(filler: Fills, path: str, here: Tensor, held: Held | None) -> None:
    """A tensor, or the part of it that is here: it is drawn whole, and cut."""
    shape = held.box.whole if held else tuple(here.shape)
    # What is kept in bf16 is drawn in fp32, and rounded once.
    drawn = torch.float32 if here.dtype == torch.bfloat16 else here.dtype
    if tuple(here.shape) == shape and here.device.type == "cpu" and here.dtype == drawn:
        filler.fill(path, here)
        return
    whole = torch.empty(shape, dtype=drawn)
    filler.fill(path, whole)
    here.copy_(whole[held.box.slices] if held else whole)


def _seed(seed: int, network: str, path: str) -> None:
    number = int.from_bytes(hashlib.sha256(f"{network}/{path}".encode()).digest()[:7], "little")
    seed_generators(torch.device("cpu"), mix(seed, INITIAL_WEIGHTS, number))
