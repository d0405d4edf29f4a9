"""Makes one optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from drivetrain.data.batch_reader import LocalBatch, MicroBatch
from drivetrain.engine.engine import Engine
from drivetrain.loop.checks import StepChecks
from drivetrain.loop.guard import Guard
from drivetrain.loop.reader import Reader
from drivetrain.loop.step import Step
from drivetrain.loop.task import Task
from drivetrain.loop.training_scores import TrainingScores
from drivetrain.runtime.mistakes import returned


@dataclass(frozen=True)
class OpenStep:
    """A step that is being made, or is made and not recorded yet. `counts` are global, by unit."""

    step: Step
    batch: LocalBatch
    counts: Mapping[str, int]


class StepRunner:
    """Runs `Task.update` on one batch after the other."""

    def __init__(
        self, task: Task, engine: Engine, guard: Guard, checks: StepChecks, reader: Reader, scores: TrainingScores
    ) -> None:
        self.open: OpenStep | None = None
        """The step that no record is kept of yet."""
        self.updated = False
        """Whether everything that the open step moves has moved."""
        self._task = task
        self._engine = engine
        self._guard = guard
        self._checks = checks
        self._reader = reader
        self._scores = scores
        self._spare: MicroBatch | None = None  # the last one that this rank had

    def run(self, batch: LocalBatch, counts: Mapping[str, int]) -> None:
        """Make the step of a batch, unless the recipe or the quarantine leaves it out.

        Raises whatever the task raises, Failure(70) where its first update asks for nothing, and Failure(83) where
        another rank comes to other bits.
        """
        engine, checks, number = self._engine, self._checks, batch.step
        if self._scores.due(batch):  # between steps, as any evaluation is
            whole = engine.placement.replicated
            self._scores.score(batch if whole else batch._replace(spare=self._spare_of(batch)))
        for network_optimizer in engine.network_optimizers.values():  # 4 schedules stand at the step's end
            network_optimizer.advance(batch.stop)
        engine.buffers.begin()  # before a step that is left out, too: `changed` speaks of the step that begins here
        probe = checks.probe(batch)
        limits = partial(self._guard.limits, number)
        if not engine.placement.mesh.replicated:
            batch = batch._replace(spare=self._spare_of(batch))
        checks.compare_kernels(self._task, batch, counts)
        step = Step(engine, batch, counts, limits, probe, checks.recompute(batch, self._reader))
        self.open, self.updated = OpenStep(step, batch, counts), False
        if not self._guard.leaves_out(number, counts):
            self._task.update(step)  # 2, 3 seeds, forward, backward, reduction, vote, optimizer
            if number == 1 and not step.asked:  # every network is tried in step 1
                cause = "the task's update calls no step.minimize in step 1: nothing trains"
                raise returned(self._task.update, cause, "call it for each network; whose turn it is the recipe says")
        if engine.averages:  # also where nothing moved: a step that is left out is the same for whatever reason
            turns = [name for name in engine.network_optimizers if engine.network_settings[name].moves(number)]
            engine.averages.update(number, turns)
        self.updated = True  # before the report, a collective: if a peer dies in it, this step is whole all the same
        checks.report(probe, step.calls, number, counts)

    def _spare_of(self, batch: LocalBatch) -> MicroBatch | None:
        """A micro-batch for passes of no weight: of this step, whose numbers count anyway. One of another step may not
        be finite, and nothing times NaN is NaN.

        A stream is not read a second time for it where this rank has had a micro-batch before."""
        if batch.micro_batches:
            self._spare = batch.micro_batches[0]
            return self._spare
        batches = self._reader.batches
        if batches.ending is not None and self._spare is not None:
            return self._spare
        spares = (batches.first(rank, batch.step) for rank in range(batches.geometry.processes))
        return next(chain.from_iterable(spares), None)

    def close_step(self) -> OpenStep:
        """The open step, which is from now on the records' to keep."""
        step, self.open = self.open, None
        assert step is not None, "a step is closed once"
        return step
