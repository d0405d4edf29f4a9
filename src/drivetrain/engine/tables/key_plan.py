"""Which keys a step asks for. Their rows are the owner's to know: a plan of keys is right whoever comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drivetrain.engine.tables.keys import BUCKETS, bucket_of, edges_of
from drivetrain.engine.tables.layout import Layout
from drivetrain.engine.tables.module import Ids, Lookup
from drivetrain.engine.tables.row_plan import Occurrences, RowPlan, RowPlanner, in_order, micros_of
from drivetrain.spec.exits import Exit, Failure


class KeyPlanner(RowPlanner):
    """Makes plans for keyed tables of one width. `local` are int64 [keys, 3]: the key, the place of its table among
    those of the layout, and how often it occurs; they ascend by owner, table and key."""

    def __init__(self, layout: Layout, lookups: Sequence[Lookup]) -> None:
        self.lookups = tuple(lookups)
        names = [table.name for table in layout.tables]
        self._first = dict.fromkeys(names, 0)
        self._world, self._count = len(layout.filled), len(names)
        self._places = torch.tensor([names.index(lookup.table) for lookup in lookups])
        self._owners = torch.empty(len(names), BUCKETS, dtype=torch.int64)
        for stretch in layout.stretches:
            place = names.index(stretch.table)
            begin = torch.from_numpy(edges_of(layout.tables[place].rows)[:-1])
            self._owners[place, (begin >= stretch.start) & (begin < stretch.stop)] = stretch.owner

    def plan(self, micros: Sequence[Ids]) -> RowPlan:
        """The plan of a step of these micro-batches, of which there may be none. Raises Failure(65) for a negative
        key."""
        found = [self._occurrences(ids) for ids in micros]
        if not found:
            nothing = torch.empty(0, 3, dtype=torch.int64)
            return RowPlan(nothing[:, 0], nothing, [0] * self._world, [])
        keys = torch.cat([one.rows for one in found])
        tables = torch.cat([self._tables(one) for one in found])
        owners = self._owners.view(-1)[tables * BUCKETS + bucket_of(keys)]
        places = owners * self._count + tables
        ordered, order, first = in_order(keys)
        if self._world * self._count > 1:
            _, again = torch.sort(places[order], stable=True)
            ordered, order = ordered[again], order[again]
            groups = places[order]
            first[1:] = (ordered[1:] != ordered[:-1]) | (groups[1:] != groups[:-1])
        starts = first.nonzero().squeeze(1)
        counts = torch.cat([starts, torch.tensor([len(keys)])]).diff()
        unique = ordered[starts]
        local = torch.stack([unique, tables[order[starts]], counts], 1)
        of_ranks = torch.bincount(owners[order[starts]], minlength=self._world)
        return RowPlan(unique, local, of_ranks.tolist(), micros_of(found, order, first))

    def _require(self, lookup: Lookup, ids: Tensor) -> None:
        """Raises Failure(65) for a negative key. In a feature of several a sample -1 is none."""
        least = int(ids.min()) if ids.numel() else 0
        if least < -1 or (least < 0 and ids.dim() == 1):
            cause = f"feature {lookup.feature!r}: {least} is no key of table {lookup.table!r}"
            raise Failure(Exit.BAD_DATA, cause, "keys are whole numbers from 0 to 2^63 - 1")

    def _tables(self, occurrences: Occurrences) -> Tensor:
        """The place of each occurrence's table."""
        ends = torch.tensor([0, *occurrences.sizes]).cumsum(0)
        return self._places.repeat_interleave(occurrences.offsets[ends].diff())
