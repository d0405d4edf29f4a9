"""What computes modules in their classes' place, held against them on the first batch of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.data.batch_reader import LocalBatch
from drivetrain.engine.by_loss import LossWeights
from drivetrain.engine.engine import Engine, LossFunction
from drivetrain.engine.kernels import comparing, first_wrong, kernels_of, require_alike
from drivetrain.engine.transfer import to_device
from drivetrain.ledger.records import NoteRecord
from drivetrain.loop.step import Step
from drivetrain.loop.task import Task
from drivetrain.runtime.compiling import eager

_COMPARED = 1 << 35  # the seed's "minimize call", which no step has


class _Losses(Step):
    """A step that moves nothing: it computes its losses once, of the first samples, without gradients and in evaluation
    mode, in which modules that draw are still."""

    def __init__(self, engine: Engine, batch: LocalBatch, counts: Mapping[str, int]) -> None:
        super().__init__(engine, batch, counts)
        self._own, self._first = engine, next(iter(batch.micro_batches), batch.spare)

    def minimize(self, names: str | Sequence[str], loss: LossFunction, rule: LossWeights | None = None) -> None:
        """Compute this loss."""
        engine, micro = self._own, self._first
        if micro is None:  # this rank has no samples, and the others need nothing of it
            return
        engine.span = micro.start, micro.start + micro.size
        with engine.evaluating() as networks:
            engine.seed(self.index, _COMPARED, micro.start)
            loss(networks, to_device(micro.batch, engine.device))


def compare_kernels(task: Task, engine: Engine, batch: LocalBatch, counts: Mapping[str, int]) -> NoteRecord | None:
    """Hold all kernels of the networks against the modules that they compute; every rank calls it. What the ledger is
    told; None where there are none.

    Raises Failure(78), on all ranks, where one is not alike.
    """
    kernels = kernels_of(engine.networks.values())
    if not kernels:
        return None
    engine.heartbeat.enter("evaluation")
    # The compiler would look into what compares.
    with eager(), comparing(kernels, engine.device):
        task.update(_Losses(engine, batch, counts))
    had_samples = bool(batch.micro_batches) or batch.spare is not None
    wrong = first_wrong(kernels) if had_samples else ""
    require_alike(engine.placement.group.gather_json(wrong))
    worst = 0.0
    for kernel in kernels:
        if kernel.verdict:
            worst = max(worst, kernel.verdict.difference)
    kinds = ", ".join(dict.fromkeys(kernel.kind for kernel in kernels))
    text = f"kernels: {len(kernels)} modules are computed by {kinds}; the largest difference is {worst:.1e} of a number"
    return NoteRecord(text=text)
