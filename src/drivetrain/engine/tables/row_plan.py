"""Which rows a step asks for: found beside training, of the ids that its micro-batches look up. No state follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.engine.tables.layout import Layout
from drivetrain.engine.tables.module import Ids, Lookup, Pooling
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
        parts, first = [], []
        for lookup in self.lookups:
            ids = given.ids[lookup.feature]
            self._require(lookup, ids)
            parts.append(Part(ids, given.weights.get(lookup.feature), lookup.pooling))
            first.append(self._first[lookup.table])
        found = bags_of(parts)
        ends = torch.tensor([0, *found.sizes]).cumsum(0)
        counts = found.offsets.index_select(0, ends).diff()
        found.rows.add_(torch.tensor(first, dtype=torch.int64).repeat_interleave(counts, output_size=len(found.rows)))
        return found


class Part(NamedTuple):
    """What one batch has of a feature: ids and weights (None: all are 1), as in `Embeddings.forward`."""

    ids: Tensor
    weights: Tensor | None
    pooling: Pooling

    @property
    def bags(self) -> int:
        """How many there are: one for each sample, or for each place."""
        return self.ids.numel() if self.pooling == "none" else len(self.ids)

    @property
    def width(self) -> int:
        """How many places each bag has."""
        return 1 if self.ids.dim() == 1 or self.pooling == "none" else self.ids.shape[1]


def bags_of(parts: Sequence[Part]) -> Occurrences:
    """The ids that are there, part after part, their bags and factors; `sizes` are the bags of each part. All parts
    together: for each by itself a step pays as much for Python as for tensors."""
    nothing = torch.empty(0, dtype=torch.int64)
    flat = torch.cat([nothing, *[part.ids.reshape(-1) for part in parts]])  # numbers of 32 bits become those of 64
    there = flat >= 0
    sizes = tuple([part.bags for part in parts])
    widths = torch.tensor([part.width for part in parts], dtype=torch.int64)
    before = torch.zeros(len(flat) + 1, dtype=torch.int64)
    torch.cumsum(there, 0, out=before[1:])
    ends = torch.zeros(sum(sizes) + 1, dtype=torch.int64)
    torch.cumsum(widths.repeat_interleave(torch.tensor(sizes, dtype=torch.int64)), 0, out=ends[1:])
    offsets = before.index_select(0, ends)
    return Occurrences(flat.masked_select(there), offsets, _scales(parts, there, offsets.diff()), sizes)


def _scales(parts: Sequence[Part], there: Tensor, lengths: Tensor) -> Tensor | None:
    """The factors of ids that are `there`, in bags of these lengths; None where all are 1."""
    if all(part.weights is None and part.pooling != "mean" for part in parts):
        return None
    weights, shares = [], []
    for part, own in zip(parts, lengths.split([part.bags for part in parts]), strict=True):
        weights.append(torch.ones(part.ids.numel()) if part.weights is None else part.weights.reshape(-1).float())
        shares.append(1.0 / own.clamp(min=1) if part.pooling == "mean" and part.ids.dim() > 1 else torch.ones(len(own)))
    return torch.cat(weights).masked_select(there) * torch.cat(shares).repeat_interleave(lengths)


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
