"""The networks' buffers that training changes, such as running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.runtime.group import Group


class Kept(NamedTuple):
    """A buffer, and what it held before."""

    buffer: Tensor
    before: Tensor


class Buffers:
    """Which buffers a step changes is found by comparing them around the first step that is made: not every kernel
    counts what it changes in place (batch normalization does not)."""

    def __init__(self, networks: Mapping[str, nn.Module], group: Group) -> None:
        self._group = group
        self._all = [buffer for network in networks.values() for buffer in network.buffers()]
        self._moving: list[Tensor] | None = None
        self._first: list[Kept] = []

    def begin(self) -> None:
        """A step begins: every rank has rank 0's. Running statistics are of a rank's own samples, and rank 0's are
        kept; it is done before every step, so that a commit in between changes nothing."""
        if self._moving is None:
            self._first = self.keep()
        self.share()

    def share(self) -> None:
        """Give every rank rank 0's. Before the first step no rank has changed any."""
        if self._group.world > 1:
            for buffer in self._moving or ():
                dist.broadcast(buffer, src=0, group=self._group.main)

    def learn(self) -> None:
        """After a step in which everything moved: what it has changed, on any rank. Collective, the first time."""
        if self._moving is not None:
            return
        mine = [place for place, (now, then) in enumerate(self._first) if not torch.equal(now, then)]
        anywhere = sorted({place for places in self._group.gather_json(mine) for place in places})
        self._moving = [self._all[place] for place in anywhere]
        self._first = []

    @property
    def known(self) -> bool:
        """Whether it is known which ones a step changes."""
        return self._moving is not None

    def keep(self) -> list[Kept]:
        """Copies of those that a step may change, to put back."""
        moving = self._all if self._moving is None else self._moving
        return [Kept(buffer, buffer.clone()) for buffer in moving]
