"""A run's ledger as the board keeps it: steps in groups, other records by their place, attempts as tallies. It follows
the file as it grows; the ledger is the base, and whatever is not here is read from its lines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from drivetrain.board.groups import Groups
from drivetrain.board.others import Others
from drivetrain.board.steps import AXES, BEGIN, STEP, TIME, Numbers, Steps, read_steps
from drivetrain.board.zoom import Curve, Window, curves
from drivetrain.ledger import records
from drivetrain.ledger.ledger import chain_of, ending, following
from drivetrain.ledger.records import AttemptRecord, CommandRecord, PauseRecord, Record, RepairRecord, StepRecord
from drivetrain.ledger.run_summary import (
    AttemptTally,
    KeptRecord,
    goes_back_to,
    is_of_step,
    spent_by,
)
from drivetrain.ledger.throughput import full_rate
from drivetrain.watch.scalars import scalars

BLOCK = 1 << 20
"""Bytes that are read at a time: between two of them others may ask."""
_GOING_BACK = (b'{"kind":"attempt",', b'{"kind":"rollback",')
_OTHER_FORMS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)
"""What comes of a line that a run does not write."""
SKIP = "skip"
"""The kind under which a step stands among the other records in which a network did not move."""


class ChangedError(FileNotFoundError):
    """The ledger has something else where a record was read. It was cut back or replaced, and is read anew soon."""


class Index:
    """What is known of one ledger. Methods may be called from any thread."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.lock = threading.RLock()
        self.damage = ""
        """Why the ledger is not read on from `offset`; empty where nothing is wrong."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.offset = self.records = self.size = 0
        self.chain = ""
        self.groups = Groups()
        self.others = Others()
        self.tallies: list[AttemptTally] = []
        self.lost: dict[str, float] = {}
        self.paused = False
        self.commands: dict[str, int] = {}
        """Where the record of each command begins, by its id."""

    @property
    def read(self) -> float:
        """The share of the ledger that is here."""
        return self.offset / self.size if self.size else 1.0

    def follow(self) -> bool:
        """Read one block more; returns whether there may be another. A ledger that was replaced or cut back is read
        anew. Raises FileNotFoundError where there is none."""
        with self.lock, self.ledger.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if not _goes_on(self, file):
                self._begin_anew()
                self.size = os.fstat(file.fileno()).st_size
            file.seek(self.offset)
            block = file.read(BLOCK)
            end = block.rfind(b"\n") + 1
            # A line may be longer than a block: it is read on to its end, which a torn one does not have.
            while not end and len(block) % BLOCK == 0 and (more := file.read(BLOCK)):
                block += more
                end = block.rfind(b"\n") + 1
            self.damage = ""
            before = self.offset
            self._take(block[:end].splitlines(keepends=True))
            return self.offset > before and self.offset < self.size

    def follow_all(self) -> None:
        """Read to the end."""
        while self.follow():
            pass

    def _take(self, lines: Sequence[bytes]) -> None:
        """Take whole lines, up to the first that does not follow, or is of another form."""
        whole, _ = following(lines, self.chain)
        for stretch in _stretches(lines[:whole]):
            if not self._take_all(stretch):
                return
        if whole < len(lines):
            number = self.records + 1
            self.damage = f"record {number} does not follow from the one before: edited, dropped or damaged"

    def _take_all(self, stretch: Sequence[bytes]) -> bool:
        """Take lines up to the first that has another form; returns whether there was none."""
        try:
            self._take_stretch(stretch)
        except _OTHER_FORMS as error:
            if len(stretch) == 1:
                self.damage = f"record {self.records + 1} has another form than a run writes: {error}"
                return False
            half = len(stretch) // 2
            return self._take_all(stretch[:half]) and self._take_all(stretch[half:])
        self.offset += sum(map(len, stretch))
        self.chain = chain_of(stretch[-1])
        self.records += len(stretch)
        return True

    def _take_stretch(self, lines: Sequence[bytes]) -> None:
        """Steps all at once, then what stands between them. Lines of another form raise before anything is taken."""
        steps = [line.startswith(BEGIN) for line in lines]
        others = [(place, _other(lines[place])) for place, step in enumerate(steps) if not step]
        spans = _spans(lines, self.offset)
        if others and (begin := goes_back_to(others[0][1][0])) is not None:
            self._go_back(begin)
        before = self.groups.newest.copy()
        axes = np.empty((0, len(AXES)))
        if any(steps):
            axes = self._take_steps([line for line, step in zip(lines, steps, strict=True) if step], spans[steps])
        number = np.cumsum(steps)
        for place, (record, numbers) in others:
            made = int(number[place])
            row = self._take_other(record, axes[made - 1] if made else before, int(spans[place, 0]))
            for name, value in numbers:
                self.others.tell(row, name, value)
        if self.tallies and steps[-1]:
            self.tallies[-1].ended = float(axes[-1, TIME])

    def _take_steps(self, lines: Sequence[bytes], spans: NDArray[np.int64]) -> Numbers:
        """Returns where they stand on the axes."""
        rate = full_rate(self.tallies[-1].first) if self.tallies else 0.0
        made = read_steps(lines, spans, self.groups.position, rate)
        self.groups.add(made)
        for place in made.skipped:
            self.others.add(SKIP, made.axes[place], int(made.spans[place, 0]), 0.0, of_step=True)
        if self.tallies:
            last = made.axes[-1]
            self.tallies[-1].add_steps(int(last[STEP]), float(last[TIME]), *map(float, made.spent.sum(axis=0)))
        return made.axes

    def _take_other(self, record: Record, place: Numbers, offset: int) -> int:
        """A record that is no step, after the step that stands at this place of the axes; returns its row."""
        if isinstance(record, AttemptRecord):
            self.tallies.append(AttemptTally(record))
        # A repair is made before an attempt, and belongs to none.
        if self.tallies and not isinstance(record, RepairRecord):
            self.tallies[-1].add(record)
        if isinstance(record, CommandRecord):
            self.commands[record.id] = offset
            if record.refused is None and record.verb in ("pause", "resume"):
                self.paused = record.verb == "pause"
        elif isinstance(record, (PauseRecord, AttemptRecord)):
            self.paused = False
        place = place.copy()
        place[STEP] = getattr(record, "step", getattr(record, "from_step", place[STEP]))
        place[TIME] = record.time
        # Of other records the time is not lost where they are void: as `RunSummary`.
        lost = 0.0
        if isinstance(record, KeptRecord):
            lost = sum(seconds for _, seconds in spent_by(record))
        return self.others.add(record.kind, place, offset, lost, of_step=is_of_step(record))

    def _go_back(self, step: int) -> None:
        """What was done after this step is void, and its time lost."""
        if self.groups.stretches:
            lost = self.groups.go_back(step, self.reader)
            for bucket, seconds in zip(("step", "data wait"), lost, strict=True):
                self.lost[bucket] = self.lost.get(bucket, 0.0) + seconds
            self.groups.open()
        for kind, seconds in self.others.go_back(step).items():
            if seconds:
                bucket = "commit" if kind == "commit" else "evaluation"
                self.lost[bucket] = self.lost.get(bucket, 0.0) + seconds

    def curves(self, names: Sequence[str], window: Window) -> dict[str, Curve]:
        """What is drawn of each name. Raises KeyError for a name that is not there."""
        with self.lock:
            of_steps = [name for name in names if name in self.groups.series]
            found = curves(self.groups, of_steps, window, self.reader)
            for name in names:
                if name not in found:
                    found[name] = self.others.curve(name, window)
            return found

    def line(self, offset: int) -> bytes:
        """The line that begins there."""
        with self.ledger.open("rb") as file:
            file.seek(offset)
            return file.readline()

    def record(self, offset: int) -> Record:
        """The record whose line begins there. Raises ChangedError."""
        try:
            return records.parse(json.loads(self.line(offset)))
        except _OTHER_FORMS as error:
            raise ChangedError(f"at byte {offset} there is no record any more") from error

    def reader(self, begin: int, end: int, before: tuple[float, float]) -> Steps:
        """The steps between two places of the ledger, which were checked when they were taken. Raises ChangedError."""
        with self.ledger.open("rb") as file:
            file.seek(begin)
            block = file.read(end - begin)
        lines = block.splitlines(keepends=True)
        rate = full_rate(_attempt_at(self, begin)) if self.tallies else 0.0
        of_steps = [place for place, line in enumerate(lines) if line.startswith(BEGIN)]
        try:
            spans = _spans(lines, begin)[of_steps]
            return read_steps([lines[place] for place in of_steps], spans, before, rate)
        except _OTHER_FORMS as error:
            raise ChangedError(f"from byte {begin} to {end} there are other steps, or none") from error


def _other(line: bytes) -> tuple[Record, list[tuple[str, float]]]:
    """The record of a line that is no step's, and the numbers that it tells. Raises ValueError and others."""
    told = from_json(line)
    _require_floats(told)
    record = records.parse(told)
    if isinstance(record, StepRecord):
        raise ValueError("a step's line begins with its kind")
    if record.kind == SKIP:
        raise ValueError(f"{SKIP!r} is no kind of record")
    return record, list(scalars(record))


def _require_floats(told: Any) -> None:
    """Raises OverflowError for a whole number that is larger than any float: no sum could be made of it."""
    if isinstance(told, int):
        float(told)
    elif isinstance(told, (dict, list)):
        for part in told.values() if isinstance(told, dict) else told:
            _require_floats(part)


def _attempt_at(index: Index, offset: int) -> AttemptRecord:
    """The attempt that wrote what stands at this place."""
    begins = np.sort(np.fromiter(index.others.offsets(["attempt"]), "i8"))
    number = int(np.searchsorted(begins, offset, "right")) - 1
    return index.tallies[max(0, number)].first


def _goes_on(index: Index, file: BinaryIO) -> bool:
    """Whether the file still has what was read: its last record is where it was."""
    if index.size < index.offset:
        return False
    if not index.offset:
        return True
    end = ending(index.chain)
    file.seek(index.offset - len(end))
    return file.read(len(end)) == end


def _stretches(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Lines that are taken together. What goes back stands alone: steps after it are another attempt's, or others."""
    begin = 0
    for place, line in enumerate(lines):
        if line.startswith(_GOING_BACK):
            if place > begin:
                yield lines[begin:place]
            yield lines[place : place + 1]
            begin = place + 1
    if begin < len(lines):
        yield lines[begin:]


def _spans(lines: Sequence[bytes], begin: int) -> NDArray[np.int64]:
    ends = begin + np.cumsum(np.fromiter(map(len, lines), "i8", len(lines)))
    return np.stack([np.concatenate([[begin], ends[:-1]]), ends], axis=1)
