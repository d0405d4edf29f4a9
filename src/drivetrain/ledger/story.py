"""A run as one pass over its ledger leaves it: steps in columns of numbers, and where every second went.

A step's record takes some kilobytes as Python objects and about a hundred bytes here, so that a run of a million steps
is told on a small machine too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal

from drivetrain.ledger.throughput import Throughput, of_work, trained

Record = dict[str, Any]
By = Literal["step", "samples", "tokens", "seconds"]

OF_A_STEP = ("step", "evaluation", "final", "telemetry", "commit", "show", "spike", "statistics", "pause", "command")
"""Records that an attempt or a rollback which goes on from an earlier step makes void."""
BUCKETS: tuple[str, ...] = (
    "start",
    "compile",
    "data wait",
    "step",
    "evaluation",
    "commit",
    "pause",
    "rollback",
    "profile",
    "lost work",
    "restart",
    "other",
)
"""What time is used for, in the order in which it is shown."""
_KEPT = ("attempt", "evaluation", "final", "telemetry", "commit")
_OWN = ("evaluation", "commit", "pause", "rollback")  # records that are named like their bucket


@dataclass(frozen=True)
class Attempt:
    """One start of a run: where it began and ended, when, and why it ended (None where it was cut off)."""

    number: int
    world: int
    from_step: int
    to_step: int
    started: float
    ended: float
    code: int | None
    cause: str


@dataclass
class Curve:
    """A number that some steps have: `rows` are theirs in the columns of all steps."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, row: int, value: float) -> None:
        """The next step's value."""
        self.rows.append(row)
        self.values.append(value)

    def cut(self, row: int) -> None:
        """Forget what comes from this row on."""
        begin = bisect_left(self.rows, row)
        del self.rows[begin:], self.values[begin:]


class Steps:
    """The steps of a history in columns, one row a step: step number, position after it, the samples and tokens that
    it took, whether anything moved, the seconds that it took and those that it waited for data."""

    def __init__(self) -> None:
        self.step, self.stop, self.samples, self.tokens = array("q"), array("q"), array("q"), array("q")
        self.seconds, self.wait = array("d"), array("d")
        self.moved = array("b")
        self.losses: dict[str, Curve] = {}
        self.rates: dict[str, Curve] = {}
        self.skipped: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self.step)

    def add(self, record: Record) -> None:
        """One more step."""
        row = len(self.step)
        self.step.append(record["step"])
        self.stop.append(record["stop"])
        self.samples.append(record["stop"] - record["start"])
        self.tokens.append(record.get("counts", {}).get("tokens", 0))
        self.seconds.append(record["seconds"])
        self.wait.append(record["wait"])
        self.moved.append(trained(record))
        _add(self.losses, row, record["losses"])
        _add(self.rates, row, record.get("lr", {}))
        if skipped := record.get("skipped"):
            self.skipped[row] = set(skipped.values())

    def cut(self, step: int) -> tuple[float, float]:
        """Forget the steps after this one; returns the seconds that they took and those that they waited for data."""
        row = self.row(step) + 1
        lost = sum(self.seconds[row:]), sum(self.wait[row:])
        for column in (self.step, self.stop, self.samples, self.tokens, self.seconds, self.wait, self.moved):
            del column[row:]
        for curve in (*self.losses.values(), *self.rates.values()):
            curve.cut(row)
        self.skipped = {at: why for at, why in self.skipped.items() if at < row}
        return lost

    def row(self, step: int) -> int:
        """The row of a step, or of the last one before it; -1 where there is none."""
        return bisect_right(self.step, step) - 1

    def axis(self, by: By) -> Sequence[float]:
        """Where each step ended: its number, the samples, tokens or seconds of training up to it."""
        if by == "step":
            return self.step
        if by == "samples":
            return self.stop
        taken = self.tokens if by == "tokens" else map(float.__add__, self.seconds, self.wait)
        return list(accumulate(taken))

    def newest(self) -> dict[str, float]:
        """The losses of the last step."""
        last = len(self) - 1
        found = self.losses.items()
        return {name: curve.values[-1] for name, curve in found if curve.rows and curve.rows[-1] == last}

    def work(self, begin: int, end: int) -> tuple[float, int, int]:
        """Of these rows: seconds with those of the data, and the samples and tokens that moved something."""
        rows = slice(begin, end)
        moved = self.moved[rows]
        seconds = sum(self.seconds[rows]) + sum(self.wait[rows])
        return seconds, _where(self.samples[rows], moved), _where(self.tokens[rows], moved)


class Story:
    """What a ledger tells, record by record: the history that counts, all attempts, and where the time went."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.records: list[Record] = []
        """Of the history: attempts, evaluations, final scores, telemetry and commits, in order."""
        self.rollbacks: list[Record] = []
        self._tries: list[_Try] = []
        self._lost: dict[str, float] = {}

    def add(self, record: Record) -> None:
        """The next record of the ledger."""
        kind = record["kind"]
        if (begin := goes_back_to(record)) is not None:
            self._back_to(begin)
        if kind == "attempt":
            self._tries.append(_Try(record, len(self.steps)))
        if kind == "rollback":
            self.rollbacks.append(record)
        if kind in _KEPT:
            self.records.append(record)
        if self._tries and kind != "repair":  # which is made before an attempt and belongs to none
            self._tries[-1].add(record)
        if kind == "step":
            self.steps.add(record)

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts, those that were cut off too."""
        return [made.told() for made in self._tries]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by use; they add up to the time from the first attempt's start to the last attempt's last record.

        Lost work is all time of steps, with their data, evaluations and commits, that a later attempt made void.
        Restart is from an attempt's last record to the start of the next: what a killed process did after its last
        record, the time in which nothing ran, and starts that failed. Other is what no record tells. Where the clock
        was set back meanwhile, restart or other is below zero.
        """
        total = dict.fromkeys(BUCKETS, 0.0)
        for made in self._tries:
            for bucket, seconds in made.seconds.items():
                total[bucket] = total.get(bucket, 0.0) + seconds
            total["other"] += made.ended - made.first["started"] - sum(made.seconds.values())
        for before, after in pairwise(self._tries):
            total["restart"] += after.first["started"] - before.ended
        for bucket, seconds in self._lost.items():
            total[bucket] -= seconds
            total["lost work"] += seconds
        return total

    @property
    def goodput(self) -> float:
        """The share of the time from the first start to the last record in which steps were made that count."""
        spent = self.seconds
        whole = sum(spent.values())
        return spent["step"] / whole if whole else 0.0

    @property
    def budget(self) -> int:
        """Steps that the newest attempt was to reach."""
        return self._tries[-1].first["budget"]["steps"] if self._tries else 0

    @property
    def left_out(self) -> dict[str, int]:
        """How many steps of the history something did not move in, by the reason."""
        found: dict[str, int] = {}
        for whys in self.steps.skipped.values():
            for why in whys:
                found[why] = found.get(why, 0) + 1
        return found

    def throughput(self, last: int | None = None) -> Throughput:
        """That of the last steps, of all where `last` is None, by the time of steps and of their data."""
        total, begin = Throughput(), 0 if last is None else max(0, len(self.steps) - last)
        for row, end, attempt in self._stretches():
            if end > (row := max(row, begin)):
                total += of_work(*self.steps.work(row, end), attempt)
        return total

    def _back_to(self, begin: int) -> None:
        """What was done after this step is void, and its time lost."""
        for bucket, seconds in zip(("step", "data wait"), self.steps.cut(begin), strict=True):
            self._lose(bucket, seconds)
        void = [record for record in self.records if _void(record, begin)]
        for record in void:
            for bucket, seconds in _spent(record):
                self._lose(bucket, seconds)
        if void:
            self.records = [record for record in self.records if not _void(record, begin)]
        for made in self._tries:
            made.row = min(made.row, len(self.steps))

    def _lose(self, bucket: str, seconds: float) -> None:
        self._lost[bucket] = self._lost.get(bucket, 0.0) + seconds

    def _stretches(self) -> Iterator[tuple[int, int, Record]]:
        """The first row of each attempt, the one after its last, and its record."""
        ends = [*(made.row for made in self._tries[1:]), len(self.steps)]
        for made, end in zip(self._tries, ends, strict=False):
            yield made.row, end, made.first


def goes_back_to(record: Record) -> int | None:
    """The step that this record goes on from, where it is an attempt or a rollback: what came after it is void."""
    if record["kind"] == "attempt":
        return record["from_step"]
    return record["to"] if record["kind"] == "rollback" else None


def story(records: Iterable[Record]) -> Story:
    """The story that a ledger's records tell."""
    told = Story()
    for record in records:
        told.add(record)
    return told


class _Try:
    """One attempt while its records come. `row` is that of its first step in the history."""

    def __init__(self, first: Record, row: int) -> None:
        self.first = first
        self.row = row
        self.ended = first["time"]
        self.seconds: dict[str, float] = {}
        self._reached = first["from_step"]
        self._exit: Record | None = None

    def add(self, record: Record) -> None:
        self.ended = record["time"]
        if record["kind"] in ("step", "rollback"):
            self._reached = record["step" if record["kind"] == "step" else "to"]
        for bucket, seconds in _spent(record):
            self.seconds[bucket] = self.seconds.get(bucket, 0.0) + seconds
        if record["kind"] == "exit":
            self._end(record)

    def _end(self, record: Record) -> None:
        """The loop's own sums have what no record of its own tells, such as a commit that was missed."""
        self._exit = record
        for name, seconds in record["seconds"].items():
            bucket = "data wait" if name == "wait" else name
            if bucket != "step":  # its sum has steps that were never whole, which count for nothing
                self.seconds[bucket] = max(seconds, self.seconds.get(bucket, 0.0))

    def told(self) -> Attempt:
        return Attempt(
            number=self.first["attempt"],
            world=self.first["world"],
            from_step=self.first["from_step"],
            to_step=self._reached,
            started=self.first["started"],
            ended=self.ended,
            code=self._exit["code"] if self._exit else None,
            cause=self._exit["cause"] if self._exit else "cut off",
        )


def _spent(record: Record) -> list[tuple[str, float]]:
    """The seconds that a record tells, by bucket."""
    kind = record["kind"]
    if kind == "step":
        return [("step", record["seconds"]), ("data wait", record["wait"])]
    if kind == "attempt":
        return [("start", sum(record["startup"].values()))]
    if kind == "final":
        return [("evaluation", record["seconds"])]
    return [(kind, record["seconds"])] if kind in _OWN else []


def _void(record: Record, begin: int) -> bool:
    """Whether what begins after this step makes the record void."""
    return record["kind"] in OF_A_STEP and record["step"] > begin


def _add(curves: dict[str, Curve], row: int, values: dict[str, float | str]) -> None:
    for name, value in values.items():
        if name not in curves:
            curves[name] = Curve()
        curves[name].add(row, float(value))


def _where(numbers: Sequence[int], moved: Sequence[int]) -> int:
    return sum(number for number, counts in zip(numbers, moved, strict=True) if counts)
