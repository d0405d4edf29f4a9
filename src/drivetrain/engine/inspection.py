"""What looks at the gradients of single micro-batches, before they are summed over ranks: statistics and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.losses import Term
from drivetrain.engine.recompute import GradientChecksums
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.statistics import Probe
from drivetrain.optim.network_optimizer import NetworkOptimizer


class Inspection:
    """Of one `minimize`: a probe, a check, or both."""

    def __init__(
        self,
        probe: Probe | None,
        checksums: GradientChecksums | None,
        network_optimizers: Sequence[NetworkOptimizer],
        samples: int,
        scaler: Scaler | None,
    ) -> None:
        """`samples` are those of the whole batch; `scaler` the one that the losses are scaled by."""
        self._probe = probe
        self.checksums = checksums
        self._network_optimizers = network_optimizers
        self._samples = samples
        self._scaler = scaler

    def wants(self, *, fresh: bool) -> bool:
        """Whether it looks at a micro-batch; `fresh`: nothing was added to the gradients before it.

        A check wants all of them, so that what it compares is made in the same way in each step that it looks at.
        """
        return self.checksums is not None or self._probes(fresh)

    def look(self, micro: MicroBatch, losses: Mapping[str, Term], *, fresh: bool) -> None:
        """After the backward pass of a micro-batch."""
        if self.checksums:
            self.checksums.look(micro.batch, losses, self._network_optimizers)
        if self._probe and self._probes(fresh):
            scale = 1.0
            if self._scaler:
                scale = float(self._scaler.scale)
            self._probe.look(self._network_optimizers, micro, self._samples, scale)

    def _probes(self, fresh: bool) -> bool:
        """Whether the probe looks at gradients; the norm of a sum of micro-batches tells nothing of one."""
        return fresh and self._probe is not None and self._probe.gradients
