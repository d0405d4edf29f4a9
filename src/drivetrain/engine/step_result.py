"""What one `minimize` came to: the losses' means and the gradient norms, on their way to the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from drivetrain.engine.losses import Term
from drivetrain.runtime.group import Group

CLIP_EPSILON = 1e-6
"""Added to the norm in the clipping factor, as torch.nn.utils.clip_grad_norm_ does."""
SLOTS = 16
"""How many named losses one `minimize` may have where several processes add them up."""


def slots(device: torch.device, least: int = SLOTS) -> Tensor:
    """Zeros for `SLOTS` sums, or for `least` where these are more: float64 on the CPU, float32 on an accelerator."""
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    return torch.zeros(max(SLOTS, least), dtype=dtype, device=device)


class Sums:
    """Loss sums over micro-batches of this rank, or of a lane: Python floats on the CPU, 0-d tensors elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._host = device.type == "cpu"
        self.values: list[Any] = []
        self.labels: list[tuple[str, str]] = []

    def add(self, losses: Mapping[str, Term]) -> None:
        """Add the losses of one micro-batch; every micro-batch must have the same ones."""
        labels: list[tuple[str, str]] = []
        values: list[Any] = []
        for name, term in losses.items():
            labels.append((name, term.over))
            value = term.value.detach()
            if self._host:  # elsewhere it stays on the device, so that nothing waits
                value = float(value)
            values.append(value * term.times)
        if self.labels and self.labels != labels:
            raise ValueError(f"losses differ between micro-batches of one step: {self.labels}, then {labels}")
        self.labels = labels
        if self.values:
            values = [total + value for total, value in zip(self.values, values, strict=True)]
        self.values = values

    def pack(self) -> Tensor:
        """All sums in one tensor of `SLOTS` numbers, the same shape on every rank, to be added up over ranks."""
        if len(self.values) > SLOTS:
            raise ValueError(f"{len(self.values)} named losses; {SLOTS} is the most")
        packed = slots(self.device)
        for slot, value in enumerate(self.values):
            packed[slot] = value
        return packed

    def take(self) -> Tensor:
        """All sums packed; those of the next lane begin anew."""
        packed, self.values = self.pack(), []
        return packed

    def agree(self, group: Group) -> None:
        """Take over the losses' names where this rank has computed none: all ranks must judge alike."""
        told = group.gather_json(self.labels)
        first = next(filter(None, told), [])
        self.labels = [(name, over) for name, over in first]  # JSON has lists for pairs

    def unpack(self, packed: Tensor) -> None:
        """Take over the sums over all ranks (all slots, so that every rank votes on the same numbers)."""
        if self._host:
            self.values = packed.tolist()
        else:
            self.values = list(packed.unbind())


Why = Literal["", "not finite", "overflow", "spike"]
"""Why a step was not made: "" where it was. An overflow is of gradients only, where the loss was scaled."""


def check_finite(sums: Sequence[float], norms: Sequence[float], bounds: Sequence[float] | None, *, scaled: bool) -> Why:
    """What is wrong with loss sums and gradient norms, of which none may be above its bound."""
    if not all(map(math.isfinite, sums)):
        return "not finite"
    if not all(map(math.isfinite, norms)):
        return "overflow" if scaled else "not finite"
    if bounds is not None and any(value > bound for value, bound in zip([*sums, *norms], bounds, strict=True)):
        return "spike"
    return ""


class Scalars(NamedTuple):
    """One `minimize`'s numbers on the host: means by loss, gradient norms (before clipping) by network, why nothing
    moved, the loss scale that it was made with, and the losses' weights where a rule has found them."""

    losses: dict[str, float]
    norms: dict[str, float]
    why: Why = ""
    scale: float | None = None
    weights: Mapping[str, float] = MappingProxyType({})


class PendingScalars(NamedTuple):
    """One `minimize`'s numbers on their way to the host: `values` are loss sums, then norms, then the loss scale where
    it is `scaled`, once `event` has come. `bounds` are those of sums and norms."""

    labels: Sequence[tuple[str, str]]
    counts: Mapping[str, int]
    values: Tensor
    bounds: Sequence[float] | None
    scaled: bool
    event: torch.Event
    weights: Mapping[str, float] = MappingProxyType({})

    def read(self, networks: Sequence[str]) -> Scalars:
        """Those of these networks, waiting for the device where they are not there yet."""
        self.event.synchronize()
        values: list[float] = self.values.tolist()
        scale = values.pop() if self.scaled else None
        cut = len(values) - len(networks)
        sums, norms = values[:cut], values[cut:]
        why = check_finite(sums, norms, self.bounds, scaled=self.scaled)
        losses, by_network = means(self.labels, self.counts, sums), dict(zip(networks, norms, strict=True))
        return Scalars(losses, by_network, why, scale, self.weights)


class StepResult(NamedTuple):
    """Networks that moved together, or stand still where their numbers say why."""

    networks: tuple[str, ...]
    numbers: Scalars | PendingScalars

    def read(self) -> Scalars:
        """The numbers, waiting for the device where they are not there yet."""
        if isinstance(self.numbers, Scalars):
            return self.numbers
        return self.numbers.read(self.networks)


def means(labels: Sequence[tuple[str, str]], counts: Mapping[str, int], sums: Sequence[float]) -> dict[str, float]:
    """The global means of sums that `labels` name, with the unit of each; sums beyond those are empty slots."""
    found = {}
    for (name, over), total in zip(labels, sums, strict=False):
        found[name] = total / counts[over] if counts[over] else 0.0
    return found
