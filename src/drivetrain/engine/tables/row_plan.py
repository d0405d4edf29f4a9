"""Which rows a step asks for: found beside training, of the ids that its micro-batches look up. No state follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.engine.tables.layout import Layout
from drivetrain.engine.tables.module import Ids, Lookup
from drivetrain.spec.exits import Exit, Failure


class Occurrences(NamedTuple):
    """The ids of one micro-batch, feature after feature and sample after sample: rows numbered over all tables.

    `rows` are int64 [occurrences]; bag k has those from `offsets[k]` to `offsets[k + 1]` (int64 [bags + 1]), each
    times its factor (`scales`, float32 [occurrences]; None: all are 1). `sizes` are the bags of each lookup.
    """

    rows: Tensor
    offsets: Tensor
    scales: Tensor | None
    sizes: tuple[int, ...]


class MicroRows(NamedTuple):
    """One micro-batch's occurrences among the rows of its step, forward and backward.

    `places` int64 [occurrences] are those among the step's rows. Backward adds, for each row that occurs here, what its
    bags hand back: `bags` int64 [occurrences], in the order of rows, cut by `segments` int64 [rows here + 1]; `rows`
    are their places among the step's rows, None where all of them occur.
    """

    places: Tensor
    offsets: Tensor
    scales: Tensor | None
    sizes: tuple[int, ...]
    bags: Tensor
    segments: Tensor
    back_scales: Tensor | None
    rows: Tensor | None


class RowPlan(NamedTuple):
    """What a step asks for of tables of one width: each row once, however often it occurs.

    `addresses` int64 [rows] ascend, rank after rank; `local` are the same as rows of their owner's; `counts` says how
    many each rank is asked for. Where each rank has all rows, nobody is asked, and everybody told: `local` are the rows
    for each of them.
    """

    addresses: Tensor
    local: Tensor
    counts: list[int]
    micros: list[MicroRows]


class RowPlanner:
    """Makes plans for tables of one width, looked up as `lookups` say. It talks to nobody."""

    def __init__(self, layout: Layout, lookups: Sequence[Lookup]) -> None:
        self.lookups = tuple(lookups)
        self._rows = {table.name: table.rows for table in layout.tables}
        self._first, rows = {}, 0
        for table in layout.tables:
            self._first[table.name] = rows
            rows += table.rows
        bases = [0]
        for filled in layout.filled:
            bases.append(bases[-1] + filled)
        self._bases = torch.tensor(bases)
        self._everywhere = layout.everywhere
        # Where each rank has all rows, they lie as in the first one, whoever asks.
        stretches = layout.of(0) if layout.everywhere else layout.stretches
        starts = [self._first[stretch.table] + stretch.start for stretch in stretches]
        moved = []
        for start, stretch in zip(starts, stretches, strict=True):
            moved.append(bases[stretch.owner] + stretch.at - start)
        self._starts, self._moved = torch.tensor(starts), torch.tensor(moved)
        self._still = not any(moved)

    def plan(self, micros: Sequence[Ids]) -> RowPlan:
        """The plan of a step of these micro-batches, of which there may be none. Raises Failure(65) for an id that is
        no row of its table."""
        found = [self._occurrences(ids) for ids in micros]
        if not found:
            nothing = torch.empty(0, dtype=torch.int64)
            return RowPlan(nothing, nothing, [0] * (len(self._bases) - 1), [])
        whole = torch.cat([one.rows for one in found])
        addresses, order, first = in_order(self._addresses(whole))
        unique = addresses.masked_select(first)
        own = micros_of(found, order, first)
        if len(self._bases) == 2:
            return RowPlan(unique, unique, [len(unique)], own)
        if self._everywhere:
            world = len(self._bases) - 1
            return RowPlan(unique, unique.repeat(world), [len(unique)] * world, own)
        edges = torch.searchsorted(unique, self._bases).diff()
        local = unique - self._bases[:-1].repeat_interleave(edges)
        return RowPlan(unique, local, edges.tolist(), own)

    def _addresses(self, rows: Tensor) -> Tensor:
        """Where rows that are numbered over all tables lie, rank after rank."""
        if self._still:
            return rows
        return rows + self._moved.index_select(0, torch.searchsorted(self._starts, rows, right=True).sub_(1))

    def _require(self, lookup: Lookup, ids: Tensor) -> None:
        require_rows(lookup, ids, self._rows[lookup.table])

    def _occurrences(self, given: Ids) -> Occurrences:
        rows: list[Tensor] = []
        lengths: list[Tensor] = []
        scales: list[Tensor | None] = []
        sizes: list[int] = []
        for lookup in self.lookups:
            ids, weights = given.ids[lookup.feature], given.weights.get(lookup.feature)
            self._require(lookup, ids)
            kept, length, scale = bags_of(ids, weights, lookup)
            rows.append(kept.long() + self._first[lookup.table])  # numbers of 32 bits would not hold these
            lengths.append(length)
            scales.append(scale)
            sizes.append(len(length))
        offsets = torch.zeros(sum(sizes) + 1, dtype=torch.int64)
        torch.cumsum(torch.cat(lengths), 0, out=offsets[1:])
        return Occurrences(torch.cat(rows), offsets, joined(scales, rows), tuple(sizes))


def bags_of(ids: Tensor, weights: Tensor | None, lookup: Lookup) -> tuple[Tensor, Tensor, Tensor | None]:
    """A feature's ids that are there, how many each bag has, and the factor of each (None: 1)."""
    if ids.dim() == 1 and weights is None:
        return ids, torch.ones(len(ids), dtype=torch.int64), None
    there = ids >= 0
    kept = ids.masked_select(there)
    scale = None if weights is None else weights[there].float()
    if ids.dim() == 1 or lookup.pooling == "none":
        return kept, there.flatten().long(), scale
    lengths = there.sum(1)
    if lookup.pooling == "mean":
        share = (1.0 / lengths.clamp(min=1)).repeat_interleave(lengths)
        scale = share if scale is None else scale * share
    return kept, lengths, scale


def joined(scales: Sequence[Tensor | None], rows: Sequence[Tensor]) -> Tensor | None:
    """The factors of all features; None where all are 1."""
    if all(scale is None for scale in scales):
        return None
    found: list[Tensor] = []
    for scale, of_feature in zip(scales, rows, strict=True):
        found.append(torch.ones(len(of_feature)) if scale is None else scale)
    return torch.cat(found)


def require_rows(lookup: Lookup, ids: Tensor, rows: int) -> None:
    """Raises Failure(65) for an id that is no row. In a feature of one id a sample -1 is none, too, unless weighted."""
    if not ids.numel():
        return
    least, most = map(int, torch.aminmax(ids))
    if most >= rows or least < -1 or (least < 0 and ids.dim() == 1):
        wrong = most if most >= rows else least
        cause = f"feature {lookup.feature!r}: id {wrong} is no row of table {lookup.table!r}, which has 0 to {rows - 1}"
        raise Failure(Exit.BAD_DATA, cause, "give the table more rows, or hash the ids")


def micros_of(found: Sequence[Occurrences], order: Tensor, first: Tensor) -> list[MicroRows]:
    """The micro-batches of a step, whose occurrences were sorted together: where each of them was, and whether it is
    the first of its row."""
    # By `scatter_`, as by `index_select` elsewhere here: brackets take several times as long.
    places = torch.empty_like(order).scatter_(0, order, first.cumsum(0).sub_(1))
    if len(found) == 1:  # what is sorted already need not be sorted again
        return [_micro(found[0], places, order, first, None)]
    parts = places.split([len(one.rows) for one in found])
    return [_alone(one, part) for one, part in zip(found, parts, strict=True)]


def in_order(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values in order, where each was, and whether it is the first of its kind. Equal ones stay in their order: sums
    are made in the same one wherever rows lie."""
    ordered, order = torch.sort(values, stable=True)
    first = torch.ones(len(ordered), dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    return ordered, order, first


def _alone(occurrences: Occurrences, places: Tensor) -> MicroRows:
    """A micro-batch that has some of its step's rows."""
    ordered, order, first = in_order(places)
    return _micro(occurrences, places, order, first, ordered.masked_select(first))


def _micro(occurrences: Occurrences, places: Tensor, order: Tensor, first: Tensor, rows: Tensor | None) -> MicroRows:
    _, offsets, scales, sizes = occurrences
    bags = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff(), output_size=len(places))
    segments = torch.cat([first.nonzero().squeeze(1), torch.tensor([len(places)])])
    back_scales = None if scales is None else scales[order]
    return MicroRows(places, offsets, scales, sizes, bags.index_select(0, order), segments, back_scales, rows)
