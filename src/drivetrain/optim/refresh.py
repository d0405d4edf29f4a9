"""When and how GaLore makes the basis of a matrix anew, and what becomes of its moments then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from drivetrain.optim.bases import Base
from drivetrain.optim.products import matmul
from drivetrain.optim.projections import SIDES, Projection, computed
from drivetrain.optim.recipe import GaLore
from drivetrain.optim.subspace import OVERSAMPLING, exact, orthonormal, subspace
from drivetrain.runtime.mix import mix
from drivetrain.spec.exits import Exit, Failure

NO_MOMENTS = frozenset({"step", "length", *SIDES})
"""Slots of a state that are GaLore's own; all others are the base's."""


@dataclass(frozen=True)
class Turn:
    """Which basis it is: of the matrix at this place among all of them, after so many steps of it."""

    place: int
    count: int


def made_at(count: int, gap: int, offset: int) -> int:
    """The step count at which the basis was made that is in use at `count`: 0, then offset, offset + gap, ..."""
    if count < offset:
        return 0
    return offset + (count - offset) // gap * gap


class Refresh:
    """Makes bases as the settings say; moments are the base's to read and write.

    The next basis depends on the gradient, the last basis, the seed and the turn only, so replicas with the same
    gradients have the same bases, and nobody sends one.
    """

    def __init__(self, settings: GaLore, base: Base) -> None:
        self._settings = settings
        self._base = base

    def renew(self, projection: Projection, gradient: Tensor, state: Mapping[str, Tensor], turn: Turn) -> None:
        """Make the bases of the gradient's rows that are here, and carry the moments over: `state` changes in place.

        Raises Failure(82) where the gradient is not finite, and has not changed the state then.
        """
        gradient = computed(projection.part.gathered(gradient).flatten(1))
        if not bool(gradient.isfinite().all()):
            raise Failure(
                Exit.DIVERGED,
                f"optimizer: a gradient of shape {projection.shape} is not finite where its basis is due",
                "leave out steps whose gradients are not finite, as the loop does",
            )
        fresh = self._bases(projection, gradient, state, turn)
        # Moments are told in the new basis while the old one is still there to tell what they mean.
        if self._settings.moments == "rotate" and turn.count:
            rotations = {side: basis.mT @ computed(state[side]) for side, basis in fresh.items()}
            self._rotate(state, rotations)
        if self._settings.moments == "reset":
            for slot in state.keys() - NO_MOMENTS:
                state[slot].zero_()
        for side, basis in fresh.items():
            state[side].copy_(basis)

    def _bases(
        self, projection: Projection, gradient: Tensor, state: Mapping[str, Tensor], turn: Turn
    ) -> dict[str, Tensor]:
        """The bases that the matrix has: that of the smaller side is found, the other one follows from it."""
        if self._settings.refresh == "random":
            return self._random(gradient, projection, turn)
        near, far = SIDES
        # The smaller side has the smaller Gram matrix and sketch, so it is always made the rows.
        if gradient.shape[0] > gradient.shape[1]:
            gradient, near, far = gradient.mT, far, near
        rank = projection.rank
        # A sketch as wide as the matrix saves nothing.
        if self._settings.refresh == "exact" or rank + OVERSAMPLING >= gradient.shape[0]:
            found = exact(gradient, rank)
        else:
            start = self._normal((gradient.shape[1], rank + OVERSAMPLING), gradient, turn.place, turn.count)
            if self._settings.refresh == "subspace" and turn.count:
                start[:, :rank] = _image(gradient, state.get(near), state.get(far))
            found = subspace(gradient, rank, start, self._settings.iterations)
        bases = {}
        if near in state:
            bases[near] = found
        if far in state:
            bases[far] = orthonormal(matmul(gradient.mT, found))
        return bases

    def _random(self, gradient: Tensor, projection: Projection, turn: Turn) -> dict[str, Tensor]:
        """Random directions that keep lengths on average: numbers of variance 1 / rank."""
        bases = {}
        for side, shape in projection.bases.items():
            numbers = self._normal(shape, gradient, turn.place, turn.count, SIDES.index(side))
            bases[side] = numbers / projection.rank**0.5
        return bases

    def _normal(self, size: tuple[int, ...], like: Tensor, *path: int) -> Tensor:
        """Random numbers by seed and path."""
        generator = torch.Generator(like.device)
        generator.manual_seed(mix(self._settings.seed, *path))
        return torch.randn(size, dtype=like.dtype, device=like.device, generator=generator)

    def _rotate(self, state: Mapping[str, Tensor], rotations: Mapping[str, Tensor]) -> None:
        """Tell the moments in the new basis: C m for first ones; for second ones, as if directions were independent,
        C * C in place of C. C (r, r) is the new basis times the old one."""
        slots = {slot: tensor for slot, tensor in state.items() if slot not in NO_MOMENTS}
        moments = self._base.moments(slots)
        for name, moment in moments.items():
            for side, rotation in rotations.items():
                # Adafactor's means over a side have no directions along it.
                if (name, side) in (("col", "left"), ("row", "right")):
                    continue
                factor = rotation.square() if name in self._base.squares else rotation
                moment = computed(moment)
                moment = factor @ moment if side == "left" else moment @ factor.mT
            moments[name] = moment
        self._base.remember(slots, moments)


def _image(gradient: Tensor, near: Tensor | None, far: Tensor | None) -> Tensor:
    """Columns (n, rank) that are nearly right for the next search, from the last basis of whichever side has one."""
    if near is not None:
        return matmul(gradient.mT, computed(near))
    assert far is not None
    return computed(far)
