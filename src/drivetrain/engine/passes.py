"""What runs a step's micro-batches: chosen once, when an engine is built, by how its networks lie on processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.by_loss import LossWeights
from drivetrain.engine.recompute import Recompute
from drivetrain.engine.statistics import Probe
from drivetrain.engine.tables.tables import StepRows


class MinimizeInputs(NamedTuple):
    """What one `minimize` call works on: this rank's micro-batches, and the global counts the losses are divided by.

    `limits` are the largest acceptable means and norms by name (`loss/NAME`, `norm/NETWORK`); `probe` measures.
    `gaps`: some rank has no micro-batch. `recompute`: what to compute again, where the step is checked. `spares` have
    no weight: where tensors are cut, each rank makes as many passes as the one with most. `rows`: what micro-batches
    ask for of the networks' tables, where they have some. `rule` weighs losses by their gradients.
    """

    step: int
    call: int
    micros: Sequence[MicroBatch]
    counts: Mapping[str, int]
    limits: Mapping[str, float] = MappingProxyType({})
    probe: Probe | None = None
    gaps: bool = False
    recompute: Recompute | None = None
    spares: Sequence[MicroBatch] = ()
    rows: StepRows | None = None
    rule: LossWeights | None = None


class Passes(NamedTuple):
    """Forward and backward passes over micro-batches.

    `run` (moving, loss, work, sums, inspection) goes over all of a step: gradients add up where the reduction has them,
    losses in `sums`. `alone` (moving, loss, micro, work) makes one by itself, whose gradients nobody sums, and gives
    its losses where they are known here.
    """

    run: Callable[[Any, Any, Any, Any, Any], None]
    alone: Callable[[Any, Any, Any, Any], list[Tensor]]
