"""The pulse: one small asynchronous sum of whole numbers over all ranks, off the training stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from drivetrain.runtime.doubling import Exchange, exchanges, start
from drivetrain.runtime.group import PULSE, Group, all_gather

MOST_GATHERED = 16
"""Ranks up to which rows are gathered and added here, all of it beside the step. Of doubling's exchanges only the first
is, but there are log2 of the ranks, where a ring has as many as ranks, one after the other. Measured with all ranks on
two cores, 16 of them: 38 ms gathered, 29 ms by gloo's all-reduce, 13 ms by doubling."""


class Pulse:
    """Every rank sends `width` int64 numbers and hears their sums over all ranks, modulo 2^64.

    One at a time is under way. Of more than `most_gathered` ranks the first exchange passes beside the step, and the
    others when the sums are wanted.
    """

    def __init__(self, group: Group, width: int, most_gathered: int = MOST_GATHERED) -> None:
        self._group = group
        self._gathers = 1 < group.world <= most_gathered
        self._mine = torch.zeros(width, dtype=torch.int64)
        # Rows that add up to the sums: those of all ranks, or this one's, of which exchanges make the sums.
        self._rows = torch.zeros(group.world * width, dtype=torch.int64) if self._gathers else self._mine
        self._exchanges: Iterator[Exchange] = iter(())
        self._works: list[dist.Work] = []

    def send(self, numbers: Sequence[int]) -> None:
        """Start telling all ranks these numbers, each of 64 bits with a sign."""
        # Into the same memory each step: `receive` has waited for what may still read it.
        self._mine.numpy()[:] = numbers
        if self._gathers:
            self._works = [all_gather(self._rows, self._mine, group=self._group.side, async_op=True)]  # type: ignore
        elif self._group.world > 1:
            self._exchanges = exchanges(self._mine, self._group.rank, self._group.world)
            self._advance()

    def receive(self) -> list[int]:
        """The sums, the same on every rank. Raises RuntimeError where a peer is lost (`Group.translate` names it)."""
        while self._works:
            for work in self._works:
                work.wait()
            self._advance()
        return self._rows.numpy().reshape(-1, len(self._mine)).sum(axis=0).tolist()

    def _advance(self) -> None:
        """Start the next exchange, if there is another one."""
        exchange = next(self._exchanges, None)
        self._works = start(exchange, self._group.side, PULSE) if exchange else []
