"""The states of the last boundaries in host memory, to go back to without a restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from drivetrain.checkpoint.snapshot import Arena, TensorBytes
from drivetrain.loop.recipe import Rollback
from drivetrain.loop.state import StateValues


@dataclass(frozen=True)
class BoundaryState:
    """All that decides later bits after a step: plain values, and a copy of every tensor."""

    values: StateValues
    pieces: list[TensorBytes]
    arena: Arena


class RollbackBuffer:
    """Boundaries to go back to: the last ones of every few steps, of which only the oldest may be `back` steps away."""

    def __init__(self, settings: Rollback) -> None:
        self._settings = settings
        self._kept: deque[BoundaryState] = deque()
        self._free: list[Arena] = []

    def due(self, step: int) -> bool:
        """Whether the state after this step is to be kept: one of every few, and where there is no other."""
        if not self._kept:
            return True
        return step % self._settings.every == 0 and self._kept[-1].values.progress.step != step

    def keep(self, values: StateValues, tensors: Mapping[str, Tensor]) -> None:
        """Copy the state after a step. What the next step would no longer go back to makes room for it."""
        # The next step is the first that could be bad. If the second oldest state is far enough from it, the oldest is
        # never gone back to.
        enough = values.progress.step + 1 - self._settings.back
        while len(self._kept) > 1 and self._kept[1].values.progress.step <= enough:
            self._free.append(self._kept.popleft().arena)
        # Memory that was touched before: a first touch costs far more than the copy.
        arena = self._free.pop() if self._free else Arena()
        self._kept.append(BoundaryState(values, arena.take(tensors), arena))

    def clear(self) -> None:
        """Nobody goes back beyond here."""
        self._free += [boundary.arena for boundary in self._kept]
        self._kept.clear()

    def before(self, step: int) -> BoundaryState:
        """Where to go on after a bad step: `back` steps before it or the next one earlier, or else the oldest there is.
        Those after it are void."""
        while len(self._kept) > 1 and self._kept[-1].values.progress.step > step - self._settings.back:
            self._free.append(self._kept.pop().arena)
        return self._kept[-1]

    @property
    def steps(self) -> list[int]:
        """Those whose states are kept."""
        return [boundary.values.progress.step for boundary in self._kept]
