"""What is looked at within a step, where it is due: statistics of gradients, and micro-batches that are made twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.engine.engine import Engine
from drivetrain.engine.recipe import Statistics
from drivetrain.engine.recompute import Recompute
from drivetrain.engine.statistics import Probe
from drivetrain.ledger.records import StatisticsRecord
from drivetrain.loop.kernel_check import compare_kernels
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.reader import Reader
from drivetrain.loop.step import MinimizeCall
from drivetrain.loop.task import Task
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Amount


class StepChecks:
    """Decides which steps are measured or made twice, and tells the ledger what was measured."""

    def __init__(
        self,
        statistics: Statistics | None,
        recompute: Amount | None,
        timetable: Timetable,
        engine: Engine,
        group: Group,
        ledger: LedgerWriter,
    ) -> None:
        """`statistics` is None where nothing is measured, `recompute` where nothing is made twice."""
        self._statistics = statistics
        self._recompute = recompute
        self._timetable = timetable
        self._engine = engine
        self._group = group
        self._ledger = ledger
        self._compared = False

    def compare_kernels(self, task: Task, batch: LocalBatch, counts: Mapping[str, int]) -> None:
        """Before the first step, hold what computes modules in their classes' place against them.

        Raises Failure(78) where it is not alike."""
        if self._compared:
            return
        self._compared = True
        if note := compare_kernels(task, self._engine, batch, counts):
            self._ledger.record(note)

    def probe(self, batch: LocalBatch) -> Probe | None:
        """What measures this step. A step that ends early has ranks with nothing to measure."""
        settings, batches = self._statistics, self._timetable.scale.batches
        if settings is None or not self._due(settings.every, batch):
            return None
        ragged = (batch.start, batch.stop) != batches.span(batch.step)
        if ragged or batch.gaps:
            return None
        return Probe(settings, self._engine.network_optimizers, self._engine.placement)

    def recompute(self, batch: LocalBatch, reader: Reader) -> Recompute | None:
        """What this rank makes again in a step: the first micro-batch of the rank before it."""
        if self._recompute is None or not self._due(self._recompute, batch):
            return None
        self._engine.heartbeat.enter("data")
        rank_before = (self._group.rank - 1) % self._group.world
        return Recompute(reader.batches.first(rank_before, batch.step), batch.micro_batches[:1])

    def report(self, probe: Probe | None, calls: Sequence[MinimizeCall], step: int, counts: Mapping[str, int]) -> None:
        """Tell the ledger what was measured, if anything was."""
        if probe is None or not calls:
            return
        norms: dict[str, float] = {}
        for call in calls:
            norms |= call.result.read().norms
        measured = probe.result(norms, counts["samples"])
        self._ledger.record(StatisticsRecord(step=step, networks=measured, histograms=probe.histograms() or None))

    def _due(self, every: Amount, batch: LocalBatch) -> bool:
        return self._timetable.due(every, Progress(batch.step, batch.stop))
