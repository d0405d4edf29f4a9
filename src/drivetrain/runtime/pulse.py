"""The pulse: one small asynchronous all-gather of whole numbers, off the training stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from drivetrain.runtime.group import Group, all_gather


class Pulse:
    """Every rank sends one row of `width` int64 numbers and hears the rows of all. One at a time is under way."""

    def __init__(self, group: Group, width: int) -> None:
        self._group = group
        self._mine = torch.zeros(width, dtype=torch.int64)
        self._all = torch.zeros(group.world * width, dtype=torch.int64)
        self._rows = self._all.numpy().reshape(group.world, width)
        self._work: dist.Work | None = None

    def send(self, row: Sequence[int]) -> None:
        """Start telling all ranks this row."""
        # Into the same memory each step: `receive` has waited for the gather that may still read it.
        self._mine.numpy()[:] = row
        if self._group.world == 1:
            self._all.copy_(self._mine)
        else:
            self._work = all_gather(self._all, self._mine, group=self._group.side, async_op=True)

    def receive(self) -> np.ndarray:
        """All ranks' rows, int64 [world, width], valid until the next `send`."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._rows
