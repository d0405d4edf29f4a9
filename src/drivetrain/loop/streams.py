"""A run's streams: where each stands and ends, as all ranks know it alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from drivetrain.data.source import ENDLESS
from drivetrain.data.stream import Mark, StreamSource
from drivetrain.ledger.records import StreamEndRecord
from drivetrain.runtime.group import Group

Marks = Mapping[str, Mapping[str, Any]]
"""By source: in how many `lanes` it is read, by lane the `marks` from which it can go on, and of the lanes that have
ended the `ends`, as JSON data."""


def marks_by_lane(known: Mapping[str, Any]) -> dict[int, Mark]:
    """The marks of what `Marks` has of one source."""
    return {int(lane): Mark(*mark) for lane, mark in known["marks"].items()}


class Streams:
    """The training sources that are streams, by name; `own` are the lanes that this rank reads."""

    def __init__(self, sources: Mapping[str, StreamSource], own: Sequence[int], group: Group) -> None:
        self.marks: Marks = {}
        """What a commit of the newest boundary holds; at or before every later one, so that it can go on from there."""
        self.exhausted = False
        """Whether no stream, and no other source, has a sample left."""
        self._sources = sources
        self._own = own
        self._group = group
        self._told: dict[str, tuple[int | None, ...]] = {}

    def resume(self, marks: Marks, positions: Mapping[str, int], accepted: Sequence[str]) -> list[str]:
        """Stand where a commit's marks say; notes of all ranks on how it goes on. Every rank calls it.

        `positions` are the samples of each source that were read, `accepted` the sources that may give other samples.
        Raises Failure(76) where another one does.
        """
        self.marks = marks
        notes: list[str] = []
        for name, source in self._sources.items():
            known = marks.get(name, {})
            usable: dict[int, Mark] = {}
            if known.get("lanes") == source.lanes:
                usable = marks_by_lane(known)
                # What has ended stays so, as it would have without a stop, also where it has grown since.
                if name not in accepted:
                    source.ends = {int(lane): count for lane, count in known.get("ends", {}).items()}
            source.resume(usable, positions[name], self._own, accepts_change=name in accepted)
            notes += [f"{name}: {note}" for note in source.stream.notes]
        return sorted({note for own in self._group.gather_json(notes) for note in own})

    def mark(self, positions: Mapping[str, int]) -> None:
        """Look where each stream stands, for the commit that begins at this boundary. Every rank calls it."""
        own = {}
        for name, source in self._sources.items():
            own[name] = {str(lane): list(mark) for lane, mark in source.marks(positions[name]).items()}
        gathered = self._group.gather_json(own)
        found: dict[str, Any] = {}
        for name, source in self._sources.items():
            marks: dict[str, Any] = {}
            for told in reversed(gathered):  # where each rank reads the whole stream, the first one's count
                marks |= told[name]
            # By lane, since commits are the same bytes however many ranks have read them.
            in_order = {lane: marks[lane] for lane in sorted(marks, key=int)}
            number, ends = positions[name] // source.lanes, {}
            for lane, count in sorted(source.ends.items()):
                if count <= number:
                    ends[str(lane)] = count
            found[name] = {"lanes": source.lanes, "marks": in_order, "ends": ends}
        self.marks = found

    def hear(self, stops: Mapping[str, int]) -> None:
        """Learn of all ranks which streams end before these positions, where the upcoming step ends: it has other
        samples than the known ends leave. Every rank calls it."""
        gathered = self._group.gather_json({name: source.found_ends for name, source in self._sources.items()})
        for name, source in self._sources.items():
            met: dict[int, int] = {}
            for lane, count in chain.from_iterable(told[name].items() for told in gathered):
                # What a thread that reads further ahead has found is told in its own step, whenever it was found.
                if count < stops[name] // source.lanes:
                    met[int(lane)] = count
            source.ends = met

    def look(self, starts: Mapping[str, int], wanted: Iterable[str]) -> None:
        """See whether a sample is left: the upcoming step begins at these positions, and reads, as those after it, of
        the `wanted` sources. That it has none itself says nothing: all may be in quarantine, or of streams that have
        ended, while others go on."""
        self.exhausted = all(self._has_ended(name, starts[name]) for name in wanted)

    def _has_ended(self, name: str, position: int) -> bool:
        source = self._sources.get(name)
        if source is None:
            return False
        number = position // source.lanes
        return all(source.ends.get(lane, ENDLESS) <= number for lane in range(source.lanes))

    def ended(self, step: int) -> list[StreamEndRecord]:
        """What the ledger should be told of ends before the next step, and was not told yet."""
        found = []
        for name, source in self._sources.items():
            ends = tuple(source.ends.get(lane) for lane in range(source.lanes))
            if any(end is not None for end in ends) and ends != self._told.get(name):
                self._told[name] = ends
                found.append(StreamEndRecord(step=step, source=name, samples=ends))
        return found
