"""The pulse: one small asynchronous sum of whole numbers over all ranks, off the training stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from drivetrain.runtime.group import Group, all_gather

MOST_GATHERED = 16
"""Ranks up to which rows are gathered and added here: measured, that is less work than an all-reduce up to 16 ranks,
and more from 32 on. Gloo's all-reduce sends a row as up to two segments a rank, twice around the ring. That is
constant; gathered rows grow with the ranks."""


class Pulse:
    """Every rank sends `width` int64 numbers and hears their sums over all ranks, modulo 2^64.

    One at a time is under way.
    """

    def __init__(self, group: Group, width: int, most_gathered: int = MOST_GATHERED) -> None:
        self._group = group
        self._gathers = 1 < group.world <= most_gathered
        self._mine = torch.zeros(width, dtype=torch.int64)
        # Rows that add up to the sums: those of all ranks, or this one's, into which an all-reduce puts the sums.
        self._rows = torch.zeros(group.world * width, dtype=torch.int64) if self._gathers else self._mine
        self._work: dist.Work | None = None

    def send(self, numbers: Sequence[int]) -> None:
        """Start telling all ranks these numbers, each of 64 bits with a sign."""
        # Into the same memory each step: `receive` has waited for what may still read it.
        self._mine.numpy()[:] = numbers
        if self._gathers:
            self._work = all_gather(self._rows, self._mine, group=self._group.side, async_op=True)
        elif self._group.world > 1:
            self._work = dist.all_reduce(self._mine, group=self._group.side, async_op=True)

    def receive(self) -> list[int]:
        """The sums, the same on every rank. Raises RuntimeError where a peer is lost (`Group.translate` names it)."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._rows.numpy().reshape(-1, len(self._mine)).sum(axis=0).tolist()
