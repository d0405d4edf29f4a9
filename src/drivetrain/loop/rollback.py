"""What becomes of a step whose numbers are wrong: a note, the end, or the way back without a restart."""

from __future__ import annotations

from typing import NamedTuple

from drivetrain.ledger.records import RollbackRecord, SpikeRecord
from drivetrain.loop.divergence import diverged, guilty_samples, shown, what_diverged
from drivetrain.loop.guard import Undone
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.outcome import StepOutcome
from drivetrain.loop.reader import Reader
from drivetrain.loop.rollback_buffer import RollbackBuffer
from drivetrain.loop.state import RunState
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_HINT = "lower the learning rate, or look at the samples"


class BadStep(NamedTuple):
    """A step that is to be undone: why, and the samples that did it."""

    step: int
    why: str
    samples: tuple[int, ...]


class Judge:
    """Decides, with the guard, what follows from a step's numbers. All ranks call it alike, at that step's boundary."""

    def __init__(self, state: RunState, group: Group, ledger: LedgerWriter, reader: Reader) -> None:
        self._engine = state.engine
        self._guard = state.guard
        self._group = group
        self._ledger = ledger
        self._reader = reader

    def decide(self, outcome: StepOutcome, step: int) -> BadStep | None:
        """The step where it is to be undone, None where it stays. Raises Failure(82) where the run ends."""
        guard = self._guard
        # What is not finite has not moved its networks: all ranks can run the micro-batches again to find the samples.
        if outcome.culprit and guard.settings.nonfinite == "stop":
            raise diverged(self._engine, self._group, outcome.culprit)
        if outcome.spikes:
            self._ledger.record(SpikeRecord(step=step, text=outcome.spikes))
        if outcome.culprit or (outcome.spikes and guard.undoes_spikes):
            return self._bad_step(outcome, step)
        too_many = guard.count(left_out=outcome.left_out, moved=bool(outcome.moved))
        why = outcome.spikes if guard.stops_at_spikes else ""
        if why or too_many:
            raise Failure(Exit.DIVERGED, why or too_many, _HINT, step=step)
        return None

    def _bad_step(self, outcome: StepOutcome, step: int) -> BadStep:
        """Who made a step go wrong: the micro-batches that are not finite when run again alone, else the whole step.

        Raises Failure(82) where there were too many such steps.
        """
        culprit, samples = outcome.culprit, []
        if culprit:
            for _, ids in guilty_samples(self._engine, self._group, culprit):
                samples += ids
        samples = (
            samples or self._reader.batches.samples(step).ids.tolist()
        )  # a spike, or each micro-batch alone is finite
        why = outcome.spikes
        if culprit:
            why = what_diverged(culprit)
        if too_many := self._guard.too_many(step):
            raise Failure(Exit.DIVERGED, f"{too_many}; {why}", _HINT, step=step, sample_ids=shown(samples))
        return BadStep(step, why, tuple(dict.fromkeys(samples)))


class Rewind:
    """Puts an earlier boundary's state back, on every rank alike."""

    def __init__(self, state: RunState, ledger: LedgerWriter, buffer: RollbackBuffer | None) -> None:
        """`buffer` is None where no step is ever undone."""
        self._state = state
        self._ledger = ledger
        self._buffer = buffer

    def keep(self) -> None:
        """Remember this boundary's state, where the run may have to go back to it."""
        progress = self._state.progress
        if self._buffer is not None and self._buffer.due(progress.step):
            self._state.engine.heartbeat.enter("snapshot")
            self._buffer.keep(self._state.values, self._state.tensors)

    def clear(self) -> None:
        """Never go back beyond this boundary: it is committed, or a command has changed what follows."""
        if self._buffer is not None:
            self._buffer.clear()

    def undo(self, bad: BadStep) -> int:
        """Go back before a bad step; the step whose state is now here. Its samples are left out from there on.

        Raises Failure(83) where the memory of that state has changed.
        """
        assert self._buffer is not None, "only a guard that undoes steps finds bad ones"
        self._state.engine.heartbeat.enter("rollback")
        boundary = self._buffer.before(bad.step)
        to = boundary.values.progress.step
        self._state.go_back(boundary.values, boundary.pieces, Undone(bad.step, to, bad.samples))
        seconds = self._ledger.lap("rollback")
        self._ledger.record(RollbackRecord(step=bad.step, to=to, why=bad.why, samples=bad.samples, seconds=seconds))
        return to
