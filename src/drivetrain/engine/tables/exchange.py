"""Rows on their way between who asks for them and who holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from drivetrain.engine.tables.row_plan import RowPlan
from drivetrain.optim.lines import lines_of


class Asked(NamedTuple):
    """What other ranks ask this one for: `rows` int64 of the matrix here, rank after rank, `counts` of each. Of keyed
    tables they are the lines of a `KeyPlanner`, until the step begins."""

    rows: Tensor
    counts: list[int]


class Exchange:
    """Rows of one matrix over the ranks of a group, each of which holds some or, `everywhere`, all. All of them call
    each method, in the same order. Without a group this process holds all rows."""

    def __init__(self, weight: Tensor, group: dist.ProcessGroup | None, *, everywhere: bool = False) -> None:
        self._weight = weight
        self._group = group
        self._everywhere = everywhere

    def pull(self, plan: RowPlan, asked: Asked) -> Tensor:
        """The rows of a plan, float32 [rows, dim]; the whole matrix where this process holds all and it is float32."""
        if self._group is None or self._everywhere:
            if self._weight.dtype == torch.float32:
                return self._weight
            return self._weight.index_select(0, self.addresses(plan, asked)).float()
        own = lines_of(self._weight, asked.rows)
        rows = self._weight.new_empty(len(plan.local), self._weight.shape[1])
        dist.all_to_all_single(rows, own, plan.counts, asked.counts, group=self._group)
        return rows.float()

    def addresses(self, plan: RowPlan, asked: Asked) -> Tensor:
        """Where a plan's rows lie in the matrix here, int64 [rows], where that has all of them."""
        # Each rank is asked for those of all ranks; a process alone for its own, and the plan may have keys for them.
        return plan.addresses if self._everywhere else asked.rows

    def push(self, plan: RowPlan, asked: Asked, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The rows here that any rank has asked for, each once (int64 [n]), and the sums of their gradients, [n, dim].

        Ranks are added as a tree, neighbours first, so a row's sum is the same wherever it lies; and where lanes are
        summed as a tree on each rank, it is the same on any number of ranks.
        """
        if self._group is None:
            return asked.rows, gradients.add_(0.0)
        if self._everywhere:
            gradients = gradients.repeat(len(plan.counts), 1)
        arrived = gradients.new_empty(len(asked.rows), gradients.shape[1])
        dist.all_to_all_single(arrived, gradients.contiguous(), asked.counts, plan.counts, group=self._group)
        ranks = torch.arange(len(asked.counts)).repeat_interleave(torch.tensor(asked.counts))
        sums = row_sums(asked.rows, ranks, tree_of(len(asked.counts)))
        return sums.rows, sums.of(arrived)


class RowSums(NamedTuple):
    """How lines of gradients are added up to those of `rows` (int64, ascending, each once): at each of the `levels`
    neighbours that lie between two of its numbers, int64; at the first one lines in this `order`."""

    rows: Tensor
    order: Tensor
    levels: list[Tensor]

    def of(self, gradients: Tensor, scales: Tensor | None = None) -> Tensor:
        """The sums of lines, [rows, dim]; `scales` are factors of the lines as they lie in `order`."""
        order = self.order
        for segments in self.levels:
            gradients = F.embedding_bag(
                order, gradients, segments, mode="sum", include_last_offset=True, per_sample_weights=scales
            )
            order, scales = torch.arange(len(gradients)), None
        # Where a lane has not asked for a row its gradient is no zero but not there: -0 + 0 is 0, and -0 alone is not.
        # Bags begin at 0.
        return gradients if self.levels else gradients.index_select(0, order).add_(0.0)


def row_sums(rows: Tensor, places: Tensor, shifts: Sequence[int]) -> RowSums:
    """How lines of these rows are added up, int64 [lines] with their `places`, which ascend. Level by level those of a
    row are added whose places are the same without their last bits, so many as `shifts` says more at each level."""
    rows, order = torch.sort(rows, stable=True)
    places = places.index_select(0, order)
    levels: list[Tensor] = []
    for level, shift in enumerate(shifts, start=1):
        places = places >> shift
        first = torch.ones(len(rows), dtype=torch.bool)
        torch.ne(rows[1:], rows[:-1], out=first[1:])
        if level < len(shifts):  # at the last one all places are the same
            first[1:] |= places[1:] != places[:-1]
        starts = torch.from_numpy(np.flatnonzero(first.numpy()))  # in a quarter of the time that torch takes
        levels.append(torch.cat([starts, torch.tensor([len(rows)])]))
        rows, places = rows.index_select(0, starts), places.index_select(0, starts)
    return RowSums(rows, order, levels)


def tree_of(ranks: int) -> list[int]:
    """The shifts by which lines of so many ranks are added as a tree, neighbours first."""
    return [1] * (ranks - 1).bit_length()


def ask(plan: RowPlan, group: dist.ProcessGroup | None) -> Asked:
    """Tell the owners which of their rows are wanted; what is wanted of this rank. Every rank of a group calls it."""
    if group is None:
        return Asked(plan.local, plan.counts)
    counts = torch.tensor(plan.counts)
    wanted = torch.empty_like(counts)
    dist.all_to_all_single(wanted, counts, group=group)
    asked = wanted.tolist()
    rows = plan.local.new_empty(sum(asked), *plan.local.shape[1:])
    dist.all_to_all_single(rows, plan.local, asked, plan.counts, group=group)
    return Asked(rows, asked)


class AskedAhead:
    """What a step's plans ask of other ranks, told while the step before it is made: on a thread of its own, and a
    group of its own, so that these messages meet no others."""

    def __init__(self, asks: Sequence[Callable[[], Asked]], before: AskedAhead | None = None) -> None:
        """`asks` tell what each plan asks for. `before` is that of the step before, which may be under way: a group
        matches messages by their order."""
        self._asks, self._before = asks, before
        self._found: list[Asked] = []
        self._error: BaseException | None = None
        # A daemon: where a peer is lost it may wait for long, and nobody waits for it then.
        self._thread = threading.Thread(target=self._ask, name="rows", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended, be it with an error."""
        self._thread.join()

    def wait(self) -> list[Asked]:
        """What is wanted of this rank, for each plan. Raises RuntimeError where a peer is lost."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._found

    def _ask(self) -> None:
        if self._before is not None:
            self._before.join()
            self._before = None
        try:
            self._found = [ask() for ask in self._asks]
        except BaseException as error:
            self._error = error
