"""Records of steps, whose numbers may still be on their way from the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from drivetrain.loop.divergence import not_again
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.outcome import outcome_of
from drivetrain.loop.rollback import BadStep, Judge
from drivetrain.loop.state import RunState
from drivetrain.loop.step_runner import OpenStep
from drivetrain.loop.step_sync import StepSync


class StepEntry(NamedTuple):
    """A step that is made, and not in the ledger yet.

    `samples` is the digest of all ranks' sample ids, `rates` are learning rates by network, `time` is Unix time,
    `wait` (for data), `compile` and `seconds` (the rest of the step) are durations.
    """

    made: OpenStep
    samples: int
    rates: Mapping[str, float]
    time: float
    wait: float
    compile: float
    seconds: float


class StepRecords:
    """Keeps steps until their numbers have arrived, then tells the ledger and judges them, in order.

    An accelerator's numbers are read a step later: by then they have arrived, and nothing waits. Where a step may be
    undone they are waited for: the state is then still the one that they were made with.
    """

    def __init__(self, state: RunState, ledger: LedgerWriter, sync: StepSync, judge: Judge) -> None:
        self.bad: BadStep | None = None
        """The step that has just been made, where it is to be undone."""
        self._state = state
        self._ledger = ledger
        self._sync = sync
        self._judge = judge
        waits = state.engine.device.type == "cpu" or state.guard.settings.undoes
        self._lag = 0 if waits else 1
        self._entries: deque[StepEntry] = deque()

    def add(self, made: OpenStep, samples: int, wait: float, before: float) -> None:
        """The step is made: the run is one further. `before` are seconds of it that passed before it was fetched."""
        engine = self._state.engine
        # The step counts from now on, on every rank; which networks have moved follows with its numbers.
        self._state.progress = self._state.progress.after(made.batch.stop)
        rates: dict[str, float] = {}
        for optimizer in engine.network_optimizers.values():
            rates |= optimizer.rates
        seconds = before + self._ledger.lap("step")
        engine.heartbeat.seconds = seconds
        self._entries.append(StepEntry(made, samples, rates, time.time(), wait, self._ledger.compiled(), seconds))
        self.drain(self._lag)

    def drain(self, lag: int = 0) -> None:
        """Tell the ledger of all steps but the newest `lag`, waiting for their numbers.

        Raises Failure(82) where these end the run.
        """
        while len(self._entries) > lag:
            self._record(self._entries.popleft())

    def _record(self, entry: StepEntry) -> None:
        state, made = self._state, entry.made
        number = made.batch.step
        outcome = outcome_of(made.step, state.guard, made.counts)
        state.progress = state.progress.moved(outcome.moved)
        unequal = self._ledger.step(
            step=number,
            start=made.batch.start,
            stop=made.batch.stop,
            samples=entry.samples,
            losses=outcome.losses,
            counts=made.counts,
            norm=outcome.norms,
            lr=entry.rates,
            seconds=entry.seconds,
            wait=entry.wait,
            compile=entry.compile,
            time=entry.time,
            skipped=outcome.skipped,
            scale=outcome.scale,
            weights=outcome.weights,
        )
        # Only who keeps the ledger sees it: the next pulse tells all ranks, and it commits nothing until then.
        if unequal:
            self._sync.failure = not_again(number, unequal)
        # While a step waits to be undone, those after it are made of a state that is not kept: nobody judges them.
        self.bad = self.bad or self._judge.decide(outcome, number)
