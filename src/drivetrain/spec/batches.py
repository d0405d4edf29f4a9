"""How many samples each step takes, and where it begins: plain arithmetic on steps and positions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Change(NamedTuple):
    """After this many steps, a step takes another number of samples."""

    after: int
    size: int


class _Stage(NamedTuple):
    after: int  # steps before it
    start: int  # samples before it
    size: int


@dataclass(frozen=True)
class Batches:
    """`size` samples a step, with a `ramp` of later changes in ascending order."""

    size: int
    ramp: tuple[Change, ...] = ()

    @cached_property
    def _stages(self) -> tuple[_Stage, ...]:
        stages = [_Stage(0, 0, self.size)]
        for after, size in self.ramp:
            last = stages[-1]
            stages.append(_Stage(after, last.start + (after - last.after) * last.size, size))
        return tuple(stages)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(change.after for change in self.ramp)

    @property
    def even(self) -> bool:
        """Whether lanes have as many samples as each other in every step."""
        return True

    @property
    def sizes(self) -> list[int]:
        """The number of samples in a step, from stage to stage."""
        return [stage.size for stage in self._stages]

    def span(self, step: int) -> tuple[int, int]:
        """The positions [start, stop) of a step; the first one is 1."""
        stage = self._stages[bisect_left(self._ends, step)]
        start = stage.start + (step - 1 - stage.after) * stage.size
        return start, start + stage.size

    def shares(self, step: int, lanes: int) -> Sequence[int]:
        """Where the lanes' shares of a step begin, and where the last one ends."""
        start, stop = self.span(step)
        each = (stop - start) // lanes
        return range(start, start + lanes * each + 1, each)  # no list: there may be as many as processes

    def samples(self, steps: int) -> int:
        """How many samples the first steps take."""
        return self.span(steps + 1)[0]

    def steps(self, samples: int) -> int:
        """How many steps it takes to have consumed as many samples."""
        # The last stage that begins before that many; the first one (after 0 steps) also for none at all.
        stage = next(stage for stage in reversed(self._stages) if stage.start < samples or not stage.after)
        return stage.after + -(-(samples - stage.start) // stage.size)

    def since(self, steps: int) -> Batches:
        """The batches that come after so many steps, counted from there."""
        later = [Change(after - steps, size) for after, size in self.ramp if after > steps]
        return Batches(self._stages[bisect_left(self._ends, steps + 1)].size, tuple(later))

    def changes_after(self, step: int) -> bool:
        """Whether the step after this one takes another number of samples."""
        return step in self._ends
