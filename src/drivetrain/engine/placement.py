"""Which part of every tensor each rank holds, and what that makes of sums, comparisons and commits.

Everything that must know whether tensors are whole here asks a `Placement`: the gradient norm, the reduction, buffers,
the comparison of replicas, commits, the step's sync, evaluation. Nobody else compares ranks to decide such a thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from drivetrain.runtime.group import Group


class Placement(Protocol):
    """This rank's place among all, and the parts of tensors that it holds.

    Ranks that read the same samples share a place in the batch; ranks that hold the same parts are replicas of each
    other. Of the ranks that have something in common, exactly one counts it.
    """

    @property
    def data(self) -> Group:
        """One rank for each place in the batch, this one among them: they share out the lanes, and their gradients add
        up."""
        ...

    @property
    def replicas(self) -> Group:
        """The ranks that hold the same parts as this one, bit for bit at every boundary."""
        ...

    @property
    def speaks(self) -> bool:
        """Whether this rank counts for its place in the batch: samples, digests and metrics are added up over those
        that do."""
        ...

    def norm(self, own: Tensor) -> Tensor:
        """The 2-norm of a network's whole gradients (0-d), from that of this rank's parts."""
        ...

    def counted(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Those of this rank's tensors that it writes into a commit: of equal parts exactly one rank's."""
        ...

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor of a commit, by the name that it has there."""
        ...


@dataclass(frozen=True)
class Replicated:
    """Every rank holds every tensor whole, and reads samples of its own: the leader counts what all have in common."""

    group: Group

    @property
    def data(self) -> Group:
        """All ranks."""
        return self.group

    @property
    def replicas(self) -> Group:
        """All ranks."""
        return self.group

    @property
    def speaks(self) -> bool:
        """Each rank reads samples that no other one reads."""
        return True

    def norm(self, own: Tensor) -> Tensor:
        """It is whole already."""
        return own

    def counted(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All of them on the leader, nothing on the others."""
        return tensors if self.group.leader else {}

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The tensor itself."""
        return whole
