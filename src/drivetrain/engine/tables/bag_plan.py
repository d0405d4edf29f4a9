"""What a step looks up of tables that lie whole on one rank each: their owners are told bags, as they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.tables.exchange import RowSums, row_sums, tree_of
from drivetrain.engine.tables.layout import Layout
from drivetrain.engine.tables.module import Ids, Lookup
from drivetrain.engine.tables.row_plan import Occurrences, RowPlanner

_KINDS = 4
"""What an owner is told: the bags of each micro-batch, the lengths of bags, rows of its own, and factors of these."""


class MicroBags(NamedTuple):
    """One micro-batch: the bags of each lookup (`sizes`), and where they lie among the step's, for each owner."""

    sizes: tuple[int, ...]
    stretches: list[slice]


class BagPlan(NamedTuple):
    """What a rank looks up in a step, owner after owner and micro-batch after micro-batch.

    `told` int64 is what owners are told, and `counts` int64 [ranks, 4] how many numbers of each kind; `bags` are those
    of each owner.
    """

    told: Tensor
    counts: Tensor
    bags: list[int]
    micros: list[MicroBags]


class AskedBags(NamedTuple):
    """What all ranks ask this one for, rank after rank: bags of rows of the matrix here, as `Occurrences` have them;
    `counts` are the bags of each rank.

    `sums` says how gradients of bags are added up to those of rows, and `back_scales` times what, in its order.
    """

    rows: Tensor
    offsets: Tensor
    scales: Tensor | None
    counts: list[int]
    sums: RowSums
    back_scales: Tensor | None


class BagPlanner(RowPlanner):
    """Makes plans for tables of one width that lie whole on a rank each. It talks to nobody."""

    def __init__(self, layout: Layout, lookups: Sequence[Lookup]) -> None:
        """`lookups` are in the order of their tables' owners."""
        owners = {stretch.table: stretch.owner for stretch in layout.stretches}
        self.lookups = tuple(lookups)
        self._rows = {table.name: table.rows for table in layout.tables}
        self._first = {stretch.table: stretch.at for stretch in layout.stretches}
        counts = [0] * len(layout.filled)
        for lookup in lookups:
            counts[owners[lookup.table]] += 1
        self._of_owner = [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))]

    def plan(self, micros: Sequence[Ids]) -> Any:
        """The `BagPlan` of a step of these micro-batches, of which there may be none. Raises Failure(65) for an id that
        is no row of its table."""
        found = [self._occurrences(ids) for ids in micros]
        told: list[Tensor] = []
        counts = torch.zeros(len(self._of_owner), _KINDS, dtype=torch.int64)
        bags: list[int] = []
        stretches: list[list[slice]] = [[] for _ in found]
        for owner, lookups in enumerate(self._of_owner):
            own = [_cut(one, lookups) for one in found]
            sizes = [len(one.lengths) for one in own]
            for place, (start, stop) in enumerate(pairwise(accumulate(sizes, initial=sum(bags)))):
                stretches[place].append(slice(start, stop))
            bags.append(sum(sizes))
            parts = torch.tensor(sizes, dtype=torch.int64), *map(_joined, zip(*own, strict=True))
            counts[owner, : len(parts)] = torch.tensor([len(part) for part in parts])
            told += parts
        own_micros = [MicroBags(one.sizes, at) for one, at in zip(found, stretches, strict=True)]
        return BagPlan(_joined(told), counts, bags, own_micros)


class _Told(NamedTuple):
    """What one owner is told of a micro-batch: int64, factors as the bits of float32."""

    lengths: Tensor
    rows: Tensor
    scales: Tensor


def _cut(occurrences: Occurrences, lookups: slice) -> _Told:
    """What is one owner's."""
    rows, offsets, scales, sizes = occurrences
    first = sum(sizes[: lookups.start])
    ends = offsets[first : first + sum(sizes[lookups]) + 1]
    own = slice(int(ends[0]), int(ends[-1]))
    factors = rows[:0] if scales is None else scales[own].view(torch.int32).long()
    return _Told(ends.diff(), rows[own], factors)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def ask_for_bags(plan: BagPlan, group: dist.ProcessGroup) -> AskedBags:
    """Tell the owners which bags are wanted; what is wanted of this rank. Every rank of a group calls it."""
    wanted = torch.empty_like(plan.counts)
    dist.all_to_all_single(wanted, plan.counts, group=group)
    arrived = plan.told.new_empty(int(wanted.sum()))
    lengths = wanted.sum(1).tolist(), plan.counts.sum(1).tolist()
    dist.all_to_all_single(arrived, plan.told, *lengths, group=group)
    return asked_bags(arrived, wanted)


def asked_bags(arrived: Tensor, counts: Tensor) -> AskedBags:
    """What the ranks have told, rank after rank, and how many numbers of each kind (int64 [ranks, 4])."""
    world = len(counts)
    told = arrived.split(counts.flatten().tolist())
    of_micros, lengths, rows = (_joined(told[kind::_KINDS]) for kind in range(3))
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    # A rank's micro-batches follow each other, a rank has room for as many as any has: places that ascend.
    bits = max(0, int(counts[:, 0].max()) - 1).bit_length()
    places = [(rank << bits) + micro for rank, micros in enumerate(counts[:, 0].tolist()) for micro in range(micros)]
    of_bags = torch.tensor(places, dtype=torch.int64).repeat_interleave(of_micros)
    bags = torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=len(rows))
    # First what each micro-batch has of a row, then a rank's micro-batches, then ranks: as where rows are pulled.
    sums = row_sums(rows, of_bags.index_select(0, bags), [0, *([bits] if bits else []), *tree_of(world)])
    scales = _scales(told[3::_KINDS], told[2::_KINDS])
    back_scales = None if scales is None else scales.index_select(0, sums.order)
    sums = sums._replace(order=bags.index_select(0, sums.order))
    of_ranks = [len(one) for one in told[1::_KINDS]]
    return AskedBags(rows, offsets, scales, of_ranks, sums, back_scales)


def _scales(told: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor | None:
    """The factors of all ranks' rows; None where all are 1. A rank that has told none has ones."""
    if not any(map(len, told)):
        return None
    found: list[Tensor] = []
    for own, of_rank in zip(told, rows, strict=True):
        found.append(own.int().view(torch.float32) if len(own) else torch.ones(len(of_rank)))
    return torch.cat(found)
