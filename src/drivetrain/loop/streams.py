"""A run's streams: where each stands and ends, as all ranks know it alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.data.stream import Mark, StreamSource
from drivetrain.ledger.records import StreamEndRecord
from drivetrain.runtime.group import Group

Marks = Mapping[str, Mapping[str, Any]]
"""By source: in how many `lanes` it is read, and by lane the `marks` from which it can go on, as JSON data."""


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
        self._missing = 0
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
            usable = {}
            if known.get("lanes") == source.lanes:
                usable = {int(lane): Mark(*mark) for lane, mark in known["marks"].items()}
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
            found[name] = {"lanes": source.lanes, "marks": marks}
        self.marks = found

    def hear(self, missing: int, left: int) -> None:
        """Of the upcoming step's samples so many are `missing`, on all ranks together, and so many are `left`: where
        one is, some stream has ended. Every rank calls it with the same numbers."""
        self.exhausted = not left
        if missing == self._missing:
            return
        self._missing = missing
        ends: dict[str, dict[int, int]] = {name: {} for name in self._sources}
        for told in self._group.gather_json({name: source.found_ends for name, source in self._sources.items()}):
            for name, lanes in told.items():
                ends[name] |= {int(lane): count for lane, count in lanes.items()}
        for name, source in self._sources.items():
            source.ends = ends[name]

    def ended(self, step: int) -> list[StreamEndRecord]:
        """What the ledger should be told of ends before the next step, and was not told yet."""
        found = []
        for name, source in self._sources.items():
            ends = tuple(source.ends.get(lane) for lane in range(source.lanes))
            if any(end is not None for end in ends) and ends != self._told.get(name):
                self._told[name] = ends
                found.append(StreamEndRecord(step=step, source=name, samples=ends))
        return found
