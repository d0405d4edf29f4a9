"""A run as one pass over its ledger leaves it: steps in columns of numbers, and where every second went.

A step's record takes some kilobytes as Python objects and about a hundred bytes here, so that a run of a million steps
is told on a small machine too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, TypeAlias, TypeGuard, get_args

from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import (
    AttemptRecord,
    CommandRecord,
    CommitRecord,
    EvaluationRecord,
    ExitRecord,
    FinalRecord,
    PauseRecord,
    PlanRecord,
    Record,
    RepairRecord,
    RollbackRecord,
    ShowRecord,
    SpikeRecord,
    StatisticsRecord,
    StepRecord,
    TelemetryRecord,
    TrainingRecord,
)
from drivetrain.ledger.throughput import Throughput, of_work, trained

By = Literal["step", "samples", "tokens", "seconds"]

OfStep: TypeAlias = (
    StepRecord
    | EvaluationRecord
    | TrainingRecord
    | FinalRecord
    | TelemetryRecord
    | CommitRecord
    | ShowRecord
    | SpikeRecord
    | StatisticsRecord
    | PauseRecord
    | CommandRecord
)
"""Records that an attempt or a rollback which goes on from an earlier step makes void."""
KeptRecord: TypeAlias = AttemptRecord | EvaluationRecord | FinalRecord | TelemetryRecord | CommitRecord | PlanRecord
"""Records that a summary keeps whole."""
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
_OF_STEP = get_args(OfStep)


@dataclass(frozen=True)
class AttemptSummary:
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

    def cut(self, row: int) -> None:
        """Forget what comes from this row on."""
        begin = bisect_left(self.rows, row)
        del self.rows[begin:], self.values[begin:]


class StepColumns:
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

    def add(self, record: StepRecord) -> None:
        """One more step."""
        row = len(self.step)
        self.step.append(record.step)
        self.stop.append(record.stop)
        self.samples.append(record.stop - record.start)
        self.tokens.append(record.counts.get("tokens", 0))
        self.seconds.append(record.seconds)
        self.wait.append(record.wait)
        self.moved.append(trained(record))
        _add(self.losses, row, record.losses)
        _add(self.rates, row, record.lr)
        if record.skipped:
            self.skipped[row] = set(record.skipped.values())

    def cut(self, step: int) -> tuple[float, float]:
        """Forget the steps after this one; returns the seconds that they took and those that they waited for data."""
        row = self.row(step) + 1
        lost = sum(self.seconds[row:]), sum(self.wait[row:])
        # All in one place: columns of different lengths would tell of a step what another one did.
        for column in (self.step, self.stop, self.samples, self.tokens, self.seconds, self.wait, self.moved):
            del column[row:]
        for curve in (*self.losses.values(), *self.rates.values()):
            curve.cut(row)
        self.skipped = {at: why for at, why in self.skipped.items() if at < row}
        return lost

    def row(self, step: int) -> int:
        """The row of a step, or of the last one before it; -1 where there is none."""
        # Steps may have gaps (guard.skip), but only rise: a row that goes back is cut off first.
        return bisect_right(self.step, step) - 1

    def axis(self, by: By) -> Sequence[float]:
        """Where each step ended: its number, the samples, tokens or seconds of training up to it."""
        if by == "step":
            return self.step
        if by == "samples":
            return self.stop
        if by == "tokens":
            return list(accumulate(self.tokens))
        return list(accumulate(map(float.__add__, self.seconds, self.wait)))

    def newest(self) -> dict[str, float]:
        """The losses of the last step."""
        last = len(self) - 1
        found = {}
        for name, curve in self.losses.items():
            # A loss that the last step did not have is no newest one: another network may have moved in it.
            if curve.rows and curve.rows[-1] == last:
                found[name] = curve.values[-1]
        return found

    def work(self, begin: int, end: int) -> tuple[float, int, int]:
        """Of these rows: seconds with those of the data, and the samples and tokens that moved something."""
        rows = slice(begin, end)
        moved = self.moved[rows]
        seconds = sum(self.seconds[rows]) + sum(self.wait[rows])
        return seconds, _where(self.samples[rows], moved), _where(self.tokens[rows], moved)


class RunSummary:
    """What a ledger tells, record by record: the history that counts, all attempts, and where the time went."""

    def __init__(self) -> None:
        self.steps = StepColumns()
        self.records: list[KeptRecord] = []
        """Of the history: attempts, evaluations, final scores, telemetry, commits and plans, in order."""
        self.rollbacks: list[RollbackRecord] = []
        self._tallies: list[AttemptTally] = []
        self._lost: dict[str, float] = {}

    def add(self, record: Record) -> None:
        """The next record of the ledger."""
        if isinstance(record, StepRecord):
            self.steps.add(record)
        else:
            self._add_other(record)
        # A repair is made before an attempt, and belongs to none.
        if self._tallies and not isinstance(record, RepairRecord):
            self._tallies[-1].add(record)

    def _add_other(self, record: Record) -> None:
        if (begin := goes_back_to(record)) is not None:
            self._back_to(begin)
        if isinstance(record, AttemptRecord):
            self._tallies.append(AttemptTally(record, len(self.steps)))
        elif isinstance(record, RollbackRecord):
            self.rollbacks.append(record)
        if isinstance(record, KeptRecord):
            self.records.append(record)

    @property
    def attempts(self) -> list[AttemptSummary]:
        """All attempts, those that were cut off too."""
        return [made.told() for made in self._tallies]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by use; they add up to the time from the first attempt's start to the last attempt's last record.

        Lost work is all time of steps, with their data, evaluations and commits, that a later attempt made void.
        Restart is from an attempt's last record to the start of the next: what a killed process did after its last
        record, the time in which nothing ran, and starts that failed. Other is what no record tells. Where the clock
        was set back meanwhile, restart or other is below zero.
        """
        return seconds_by_use(self._tallies, self._lost)

    @property
    def goodput(self) -> float:
        """The share of the time from the first start to the last record in which steps were made that count."""
        spent = self.seconds
        whole = sum(spent.values())
        return spent["step"] / whole if whole else 0.0

    @property
    def budget(self) -> int:
        """Steps that the newest attempt was to reach."""
        return self._tallies[-1].first.budget.steps if self._tallies else 0

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
        total, begin = Throughput(), 0
        if last is not None:
            begin = max(0, len(self.steps) - last)
        # By attempts: each has its own number of processes, and a peak of its own machine.
        for row, end, attempt in self._stretches():
            row = max(row, begin)
            if end > row:
                total += of_work(*self.steps.work(row, end), attempt)
        return total

    def _back_to(self, begin: int) -> None:
        """What was done after this step is void, and its time lost."""
        for bucket, seconds in zip(("step", "data wait"), self.steps.cut(begin), strict=True):
            self._lose(bucket, seconds)
        void = [record for record in self.records if is_void(record, begin)]
        for record in void:
            for bucket, seconds in spent_by(record):
                self._lose(bucket, seconds)
        if void:
            self.records = [record for record in self.records if not is_void(record, begin)]
        # An attempt whose first steps are void begins where the history now ends.
        for made in self._tallies:
            # Rows only shrink here: attempts after it get theirs when they begin.
            made.row = min(made.row, len(self.steps))

    def _lose(self, bucket: str, seconds: float) -> None:
        self._lost[bucket] = self._lost.get(bucket, 0.0) + seconds

    def _stretches(self) -> Iterator[tuple[int, int, AttemptRecord]]:
        """The first row of each attempt, the one after its last, and its record."""
        for number, made in enumerate(self._tallies, start=1):
            end = len(self.steps)
            if number < len(self._tallies):
                end = self._tallies[number].row
            yield made.row, end, made.first


def seconds_by_use(tallies: Sequence[AttemptTally], lost: Mapping[str, float]) -> dict[str, float]:
    """Seconds by use as `RunSummary.seconds` has them; `lost` are those of void work, by the use that they had."""
    total = dict.fromkeys(BUCKETS, 0.0)
    for made in tallies:
        for bucket, seconds in made.by_use().items():
            total[bucket] = total.get(bucket, 0.0) + seconds
    for before, after in pairwise(tallies):
        total["restart"] += after.first.started - before.ended
    for bucket, seconds in lost.items():
        total[bucket] -= seconds
        total["lost work"] += seconds
    return total


def goes_back_to(record: Record) -> int | None:
    """The step that this record goes on from, where it is an attempt or a rollback: what came after it is void."""
    if isinstance(record, AttemptRecord):
        return record.from_step
    if isinstance(record, RollbackRecord):
        return record.to
    return None


def is_void(record: Record, begin: int) -> bool:
    """Whether what goes on from this step makes the record void."""
    return is_of_step(record) and record.step > begin


def is_of_step(record: Record) -> TypeGuard[OfStep]:
    """Whether a record is of a step, as a step itself, an evaluation or a commit are."""
    return isinstance(record, _OF_STEP)


def summarize(records: Iterable[Record]) -> RunSummary:
    """The story that a ledger's records tell."""
    told = RunSummary()
    for record in records:
        told.add(record)
    return told


def summary_of(run: Path) -> RunSummary:
    """The story that a run directory's ledger tells. Raises Failure as `read`."""
    return summarize(read(run / "ledger.jsonl"))


class AttemptTally:
    """One attempt while its records come. `row` is that of its first step in the history, for who keeps rows."""

    def __init__(self, first: AttemptRecord, row: int = 0) -> None:
        self.first = first
        self.row = row
        self.ended = first.time
        """Time of its last record."""
        self.reached = first.from_step
        self.exit: ExitRecord | None = None
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By use."""

    def add(self, record: Record) -> None:
        """The next record of the attempt."""
        if isinstance(record, StepRecord):
            self.add_steps(record.step, record.time, record.seconds, record.wait, record.compile or 0.0)
            return
        self.ended = record.time
        for bucket, seconds in spent_by(record):
            self.seconds[bucket] += seconds
        if isinstance(record, RollbackRecord):
            self.reached = record.to
        elif isinstance(record, ExitRecord):
            self._end(record)

    def add_steps(self, last: int, time: float, seconds: float, wait: float, compiled: float) -> None:
        """Steps up to this one, whose record is of this time, with the sums of their seconds."""
        self.ended = time
        self.reached = last
        self.seconds["step"] += seconds
        self.seconds["data wait"] += wait
        self.seconds["compile"] += compiled

    def _end(self, record: ExitRecord) -> None:
        """The loop's own sums have what no record of its own tells, such as a commit that was missed."""
        self.exit = record
        for name, seconds in record.seconds.items():
            bucket = "data wait" if name == "wait" else name
            # The sum of steps has some that were never whole, which count for nothing.
            if bucket != "step":
                self.seconds[bucket] = max(seconds, self.seconds[bucket])

    def by_use(self) -> dict[str, float]:
        """Its seconds by use. `other` is by difference: they add up to the whole time, whatever a record leaves out."""
        whole = self.ended - self.first.started
        return {**self.seconds, "other": whole - sum(self.seconds.values())}

    def told(self) -> AttemptSummary:
        """The attempt so far."""
        code, cause = None, "cut off"
        if self.exit is not None:
            code, cause = self.exit.code, self.exit.cause
        return AttemptSummary(
            number=self.first.attempt,
            world=self.first.world,
            from_step=self.first.from_step,
            to_step=self.reached,
            started=self.first.started,
            ended=self.ended,
            code=code,
            cause=cause,
        )


def spent_by(record: Record) -> list[tuple[str, float]]:
    """The seconds that a record other than a step's tells, by bucket."""
    match record:
        case AttemptRecord():
            return [("start", sum(record.startup.values()))]
        case FinalRecord() | TrainingRecord():
            return [("evaluation", record.seconds)]
        case EvaluationRecord() | CommitRecord() | PauseRecord() | RollbackRecord():
            return [(record.kind, record.seconds)]
    return []


def _add(curves: dict[str, Curve], row: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        curve = curves.get(name)
        if curve is None:
            curve = curves[name] = Curve()
        curve.rows.append(row)
        curve.values.append(value)


def _where(numbers: Sequence[int], moved: Sequence[int]) -> int:
    return sum(number for number, counts in zip(numbers, moved, strict=True) if counts)
