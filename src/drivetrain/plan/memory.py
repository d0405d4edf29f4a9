"""Memory of a step, from what a meter has seen: who is alive when, by kind, and what a deeper network takes.

Pure functions of a timeline; no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from drivetrain.spec.exits import Exit, Failure

KINDS = ("weights", "gradients", "optimizer", "activations", "communication", "temporary")
"""What memory is for. `communication` is what collectives read and write, such as weights that are gathered for a
layer; `temporary` is what goes again within the phase that has made it."""

Bytes = tuple[int, ...]
"""Bytes of each of `KINDS`, in their order."""


class Event(NamedTuple):
    """A block of memory grows (or begins), or shrinks (or ends), by so many bytes."""

    block: int
    change: int


class Stretch(NamedTuple):
    """A phase of a step: the events from `start` to `stop`."""

    phase: str
    start: int
    stop: int


@dataclass(frozen=True)
class Timeline:
    """The events of a step in their order. `before` is what was alive at its beginning; `kinds` has that of each block
    as a place in `KINDS`."""

    before: Bytes
    events: Sequence[Event]
    kinds: Sequence[int]
    stretches: Sequence[Stretch]

    @property
    def peak(self) -> Bytes:
        """What is alive where most is."""
        return largest(self.levels(0, len(self.events)))

    @property
    def phases(self) -> list[str]:
        """Those of all stretches."""
        return [stretch.phase for stretch in self.stretches]

    def levels(self, start: int, stop: int) -> Iterator[list[int]]:
        """What is alive before the event `start`, and after each one up to `stop`; always the same list."""
        # One list for all levels, of which there are as many as events: who keeps one copies it.
        alive = list(self.before)
        for number, (block, change) in enumerate(self.events[:stop]):
            if number == start:
                yield alive
            alive[self.kinds[block]] += change
            if number >= start:
                yield alive
        if start >= stop:
            yield alive


class Window(NamedTuple):
    """A part of a phase, and what is alive in it where most is."""

    phase: str
    part: str
    peak: Bytes


@dataclass(frozen=True)
class StepMemory:
    """A step's memory by window, in their order."""

    windows: Sequence[Window]

    @property
    def peak(self) -> Window:
        """The window that takes most."""
        return max(self.windows, key=lambda window: sum(window.peak))

    def to_json(self) -> dict[str, Any]:
        """Bytes by kind, and when that is."""
        peak = self.peak
        return {"bytes": sum(peak.peak), "phase": peak.phase, **by_kind(peak.peak)}


def by_kind(sizes: Bytes) -> dict[str, int]:
    """With the names of the kinds."""
    return dict(zip(KINDS, sizes, strict=True))


def largest(levels: Iterator[list[int]]) -> Bytes:
    """The level whose sum is largest; the first of several."""
    most, found = -1, tuple([0] * len(KINDS))
    for level in levels:
        if (total := sum(level)) > most:
            most, found = total, tuple(level)
    return found


def measured(timeline: Timeline) -> StepMemory:
    """What a step takes that was seen whole."""
    windows = []
    for phase, start, stop in timeline.stretches:
        windows.append(Window(phase, "whole", largest(timeline.levels(start, stop))))
    return StepMemory(windows)


def deepened(shallow: Timeline, deep: Timeline, more: int) -> StepMemory:
    """What a step takes of a network with `more` layers than that of `deep`, which has one more than `shallow`'s.

    What is alive at a place of a step grows by as much with each layer. Places are the same as long as the events of
    both steps are, from the beginning of a phase on, or back from its end. From layer to layer it rises or falls
    evenly, so most is alive near one of the ends. Raises Failure(70) where the steps do not have the same phases.
    """
    phases, others = shallow.phases, deep.phases
    if phases != others:
        cause = f"a layer more makes another step: {' '.join(phases)}, then {' '.join(others)}"
        raise Failure(Exit.INTERNAL, cause, "plan it whole: --whole")
    found, levels = [], [_levels(each) for each in (shallow, deep)]
    for one, two in zip(shallow.stretches, deep.stretches, strict=True):
        for part, pairs in _parts(shallow, deep, one, two):
            grown = [_grown(levels[0][few], levels[1][many], more) for few, many in pairs]
            found.append(Window(two.phase, part, max(grown, key=sum)))
    return StepMemory(found)


def _levels(timeline: Timeline) -> list[Bytes]:
    """What is alive before each event, and at the end."""
    return list(map(tuple, timeline.levels(0, len(timeline.events))))


def _grown(few: Bytes, many: Bytes, more: int) -> Bytes:
    return tuple([last + more * (last - first) for first, last in zip(few, many, strict=True)])


def _parts(
    shallow: Timeline, deep: Timeline, one: Stretch, two: Stretch
) -> Iterator[tuple[str, Sequence[tuple[int, int]]]]:
    """The same places of a phase in both steps, as pairs: counted from its beginning, and from its end."""
    few, many = shallow.events[one.start : one.stop], deep.events[two.start : two.stop]
    same = _in_common(few, many)
    # One level more than events: what is alive before the first of them is a level, too.
    yield "first layers", [(one.start + at, two.start + at) for at in range(same + 1)]
    same = _in_common(few[::-1], many[::-1])
    yield "last layers", [(one.stop - at, two.stop - at) for at in range(same, -1, -1)]


def _in_common(some: Sequence[Event], others: Sequence[Event]) -> int:
    """How many events come to the same, from the first one on."""
    for number, (one, other) in enumerate(zip(some, others, strict=False)):
        if one.change != other.change:
            return number
    return min(len(some), len(others))


def stretches(marks: Sequence[tuple[int, str]], stop: int) -> list[Stretch]:
    """From where each phase begins to the phases: two of a kind that follow each other are one, empty ones are none."""
    found: list[Stretch] = []
    for (start, phase), (end, _) in pairwise([*marks, (stop, "")]):
        if start == end:
            continue
        if found and found[-1].phase == phase:
            found[-1] = found[-1]._replace(stop=end)
        else:
            found.append(Stretch(phase, start, end))
    return found


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Both together, by name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
