"""The steps of a run in groups of sixteen, with the extremes of each: any zoom is a few hundred of them, and no spike
is lost. What lies deeper is read from the ledger's own lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from drivetrain.board.columns import Column, drawable
from drivetrain.board.steps import AXES, SECONDS, STEP, TOKENS, Numbers, Steps, joined

GROUP = 16
"""Steps of a group; the last one of a stretch may have fewer."""

Reader: TypeAlias = Callable[[int, int, tuple[float, float]], Steps]
"""The steps between two places of the ledger, given the tokens and seconds before them."""


@dataclass
class Stretch:
    """Groups that were made one after the other. `void`: a later attempt or a rollback goes on from before them;
    `opens`: it goes on from a step that is not the last one before it."""

    begin: int
    end: int
    void: bool
    opens: bool


class Groups:
    """All steps of a ledger, also those that are void. A group never has steps of two stretches."""

    def __init__(self) -> None:
        self.first, self.last = Column(len(AXES), "f8"), Column(len(AXES), "f8")
        """Of the first and the last step of each group, by `AXES`."""
        self.spans = Column(3, "i8")
        """Where its lines begin and end in the ledger, and how many steps it has."""
        self.spent = Column(3, "f8")
        """Sums of seconds: steps, waiting for data, compiling."""
        self.series: dict[str, Column] = {}
        """By name: least, largest and mean of each group, NaN where it has none."""
        self.stretches: list[Stretch] = []
        """In the order in which they were made."""
        self.tail: Steps | None = None
        """The steps of the last group where it is not full yet."""
        self._ending: Steps | None = None

    def __len__(self) -> int:
        return len(self.first)

    @property
    def position(self) -> tuple[float, float]:
        """Tokens and seconds up to the last step that counts."""
        row = self._last_row()
        return (0.0, 0.0) if row is None else (float(row[TOKENS]), float(row[SECONDS]))

    @property
    def newest(self) -> Numbers:
        """[5], by `AXES`, of the last step that counts; zeros before the first."""
        row = self._last_row()
        return np.zeros(len(AXES)) if row is None else row

    def add(self, steps: Steps) -> None:
        """More steps, after those that are there."""
        if self.tail is not None:
            steps = joined([self.tail, steps])
            self._cut(len(self) - 1)
        elif not self.stretches or self.stretches[-1].void:
            self.open()
        self._append(steps)
        self.stretches[-1].end = len(self)
        self._ending = steps.cut(len(steps) - 1, len(steps))
        rest = len(steps) % GROUP
        self.tail = steps.cut(len(steps) - rest, len(steps)) if rest else None

    def open(self) -> None:
        """What comes next begins a stretch of its own."""
        self.tail = None
        self.stretches.append(Stretch(len(self), len(self), void=False, opens=bool(self.stretches)))

    def go_back(self, step: int, read: Reader) -> tuple[float, float]:
        """What was made after this step is void; returns the seconds of those steps, and of waiting for their data."""
        self.tail = self._ending = None
        kept: list[Stretch] = []
        lost = np.zeros(3)
        before = list(self.stretches)
        while before:
            stretch = before.pop()
            if stretch.void:
                kept.insert(0, stretch)
                continue
            parts = self._split(stretch, step, read)
            for part in parts:
                if part.void:
                    lost += self.spent.rows[part.begin : part.end].sum(axis=0)
            kept = parts + kept
            # Stretches before one that keeps a step end before that step.
            if any(not part.void for part in parts):
                break
        self.stretches = [*before, *kept]
        return float(lost[0]), float(lost[1])

    def _split(self, stretch: Stretch, step: int, read: Reader) -> list[Stretch]:
        """The stretch as parts that count and that are void, without empty ones."""
        begin, end = stretch.begin, stretch.end
        void = begin + int(np.searchsorted(self.first.rows[begin:end, STEP], step, "right"))
        parts = [Stretch(begin, void, False, stretch.opens), Stretch(void, end, True, False)]
        if void > begin and self.last.rows[void - 1, STEP] > step:
            # The group has steps of both sides. It stays in its place, where no stretch names it any more.
            both = self.read(void - 1, void, read)
            count = int(np.searchsorted(both.axes[:, STEP], step, "right"))
            place = len(self)
            self._append(both.cut(0, count))
            self._append(both.cut(count, len(both)))
            middle = [Stretch(place, place + 1, False, False), Stretch(place + 1, place + 2, True, False)]
            parts = [Stretch(begin, void - 1, False, stretch.opens), *middle, parts[1]]
        parts = [part for part in parts if part.end > part.begin]
        if parts:
            parts[0].opens = stretch.opens
        return parts

    def read(self, begin: int, end: int, read: Reader) -> Steps:
        """The steps of these groups, which lie one after the other in the ledger."""
        offset, stop = int(self.spans.rows[begin, 0]), int(self.spans.rows[end - 1, 1])
        steps = read(offset, stop, (0.0, 0.0))
        # Tokens and seconds up to the first group's first step are known: what was before it follows.
        steps.axes[:, [TOKENS, SECONDS]] += (self.first.rows[begin] - steps.axes[0])[[TOKENS, SECONDS]]
        return steps

    def ending(self, read: Reader) -> Steps | None:
        """The last step that counts; None before the first. It is read where it is not at hand: after steps were made
        void, and after a start from a snapshot."""
        place = self._last_place()
        if self._ending is None and place is not None:
            made = self.read(place, place + 1, read)
            self._ending = made.cut(len(made) - 1, len(made))
        return self._ending

    def _append(self, steps: Steps) -> None:
        begins = np.arange(0, len(steps), GROUP)
        ends = np.minimum(begins + GROUP, len(steps))
        known = len(self)
        self.first.extend(steps.axes[begins])
        self.last.extend(steps.axes[ends - 1])
        self.spans.extend(np.stack([steps.spans[begins, 0], steps.spans[ends - 1, 1], ends - begins], axis=1))
        self.spent.extend(np.add.reduceat(steps.spent, begins, axis=0))
        for name in {**steps.values, **self.series}:
            if name not in self.series:
                self.series[name] = Column(3, "f4", np.full((known, 3), np.nan, "f4"))
            column = steps.values.get(name)
            rows = np.full((len(begins), 3), np.nan) if column is None else _extremes(column, begins)
            self.series[name].extend(rows)

    def _cut(self, length: int) -> None:
        for column in (self.first, self.last, self.spans, self.spent, *self.series.values()):
            column.cut(length)

    def _last_row(self) -> Numbers | None:
        place = self._last_place()
        return None if place is None else self.last.rows[place]

    def _last_place(self) -> int | None:
        """The group of the last step that counts."""
        for stretch in reversed(self.stretches):
            if not stretch.void and stretch.end > stretch.begin:
                return stretch.end - 1
        return None


def _extremes(column: Numbers, begins: NDArray[np.int64]) -> Numbers:
    """[groups, 3]: least, largest and mean of what can be drawn from each place to the next."""
    finite = drawable(column)
    values = np.where(finite, column, np.nan)
    count = np.add.reduceat(finite.astype("f8"), begins)
    total = np.add.reduceat(np.where(finite, column, 0.0), begins)
    mean = np.divide(total, count, out=np.full(len(begins), np.nan), where=count > 0)
    return np.stack([np.fmin.reduceat(values, begins), np.fmax.reduceat(values, begins), mean], axis=1)
