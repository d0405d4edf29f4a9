"""Tables at work whose rows TorchRec looks up and moves. The shape of it:

A step looks its bags up once, ahead of its passes, and these find them as leaves of their graphs. What they hand back
is kept, and passed back through TorchRec's graph once, when the network moves: rows move within that pass, so it
comes after the vote. Rows' own gradients are known to nobody before: norms have those of bags in their place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.tables.alike import Alike, Sharing
from drivetrain.engine.tables.exchange import Asked
from drivetrain.engine.tables.layout import Layout, Stretch, Way, lay_out_rows
from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.module import Ids, Table
from drivetrain.engine.tables.row_plan import Part, bags_of, require_rows
from drivetrain.engine.tables.torchrec.collection import Bags, Collection
from drivetrain.engine.tables.torchrec.library import require, versions
from drivetrain.optim.recipe.rows import RowOptimizer
from drivetrain.optim.rows import HalfRows, RowMover
from drivetrain.optim.schedules import Factor
from drivetrain.spec.exits import Exit, Failure


class CollectionPlan(NamedTuple):
    """What a rank looks up in a step, and the samples (first, last + 1) of each of its micro-batches among them."""

    bags: Bags
    micros: list[tuple[int, int]]


class CollectionPlanner:
    """Makes plans of bags. It talks to nobody."""

    def __init__(self, matrix: Matrix) -> None:
        self._lookups = matrix.lookups
        self._rows = {table.name: table.rows for table in matrix.layout.tables}

    def plan(self, micros: Sequence[Ids]) -> CollectionPlan:
        """The plan of a step of these micro-batches, of which there may be none. Raises Failure(65) for an id that is
        no row of its table."""
        parts, ends = [], [0]
        for given in micros:
            ends.append(ends[-1] + len(given.ids[self._lookups[0].feature]))
        for lookup in self._lookups:
            for given in micros:
                own = given.ids[lookup.feature]
                require_rows(lookup, own, self._rows[lookup.table])
                parts.append(Part(own, given.weights.get(lookup.feature), lookup.pooling))
        found = bags_of(parts)
        bags = Bags(found.rows, found.offsets.diff(), found.scales, ends[-1])
        return CollectionPlan(bags, list(pairwise(ends)))


@dataclass
class PulledCollection:
    """The bags that a step has looked up, `found` float32 [samples, lookups x dim], and what is handed back to them:
    each micro-batch has a leaf of its own."""

    plan: CollectionPlan
    found: Tensor
    dim: int
    leaves: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.leaves = []
        for start, stop in self.plan.micros:
            self.leaves.append(self.found.detach()[start:stop].requires_grad_())

    def pooled(self, micro: tuple[int, int]) -> tuple[Tensor, ...]:
        """What a micro-batch's bags come to, [samples, dim] for each lookup."""
        return self.leaves[self.plan.micros.index(micro)].split(self.dim, 1)

    def take_gradient(self) -> Tensor:
        """What was handed back so far, [samples, lookups x dim]; it begins anew."""
        given = [torch.empty(0, self.found.shape[1])]
        for leaf in self.leaves:
            given.append(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
            leaf.grad = None
        return given[1] if len(given) == 2 else torch.cat(given)

    def keep(self, loss: int) -> None:
        """Nothing keeps gradients of losses apart: a rule that weighs them was refused."""
        raise NotImplementedError

    def close_lane(self) -> None:
        """Nothing adds lanes up as a tree: `exact` was refused."""
        raise NotImplementedError


class FusedMover(RowMover[RowOptimizer]):
    """Moves rows by fbgemm's kernels: in the pass back of bags that were looked up. `gradient` is that of bags,
    [bags, dim], and rows have none of their own."""

    def __init__(self, optimizer: RowOptimizer, factor: Factor, collection: Collection) -> None:
        super().__init__(optimizer, collection.weight, factor)
        self.slots = collection.sums
        self.found: Tensor | None = None
        """What was looked up, with its graph."""
        self._collection = collection

    def advance(self, position: int, *, waits: bool) -> None:
        """Set the learning rate, the kernel's too."""
        super().advance(position, waits=waits)
        self._collection.set_rate(self.lr)

    def drop(self) -> None:
        """Forget the gradient, and what it is passed back through."""
        super().drop()
        self.found = None

    @torch.no_grad()
    def move(self) -> None:
        """Pass the gradient back, which moves the rows. All ranks do so alike."""
        self.moves += 1
        found, gradient = self.found, self.gradient
        self.drop()
        assert found is not None
        assert gradient is not None
        self._collection.pass_back(found, gradient.view(found.shape))


class FusedRows:
    """One matrix at work, as `MatrixRows` is; its bags are looked up where its rows are."""

    summed = False

    def __init__(self, matrix: Matrix, collection: Collection, group: dist.ProcessGroup | None) -> None:
        self.matrix = matrix
        self.planner = CollectionPlanner(matrix)
        self.pulled: PulledCollection | None = None
        self.mover: RowMover | None = None
        self.masters: Tensor | None = None
        self._collection = collection
        self._group = group
        self._weighted = any(lookup.pooling == "mean" for lookup in matrix.lookups)

    @property
    def claim(self) -> dict[str, Any]:
        """What bits depend on beside the number of ranks: who has which rows, and whose kernels these are."""
        held = json.dumps([asdict(stretch) for stretch in self.matrix.layout.stretches])
        return {"rows": hashlib.sha256(held.encode()).hexdigest()[:12], **versions()}

    def ask(self, plan: CollectionPlan, group: dist.ProcessGroup | None) -> Asked:
        """TorchRec tells ids when it looks them up."""
        return Asked(plan.bags.ids[:0], [])

    def pull(self, plan: CollectionPlan, asked: Asked, losses: int = 1) -> PulledCollection:
        """What the bags of a plan come to, as rows are now."""
        found = self._collection(self._matched(plan.bags))[: plan.bags.samples]
        return PulledCollection(plan, found, self.matrix.weight.shape[1])

    def stand_in(self, given: Ids) -> tuple[PulledCollection, tuple[int, int]]:
        """Numbers in place of the bags of one batch, whose gradients are for nothing."""
        plan = self.planner.plan([given])
        dim = self.matrix.weight.shape[1]
        found = torch.rand(plan.bags.samples, dim * len(self.matrix.lookups)) - 0.5
        return PulledCollection(plan, found, dim), plan.micros[0]

    def push(self, *, by_lane: bool) -> None:
        """Hand the mover what bags were looked up, and what was handed back to them."""
        assert self.pulled is not None, "bags are looked up before their gradients are pushed"
        assert isinstance(self.mover, FusedMover)
        pulled, self.pulled = self.pulled, None
        self.mover.found = pulled.found
        self.mover.gradient = pulled.take_gradient().reshape(-1, pulled.dim)

    def build_mover(self, optimizer: RowOptimizer, factor: Factor, half: HalfRows | None) -> RowMover:
        """What moves the rows that are here."""
        return FusedMover(optimizer, factor, self._collection)

    def _matched(self, bags: Bags) -> Bags:
        """Bags as other ranks have them: as many samples, the last ones of which have no ids, and factors where those
        of any rank have some. Messages of ranks have the same parts then, and on gloo the same sizes."""
        weighted = self._weighted or bags.scales is not None
        samples = bags.samples
        if self._group is not None:
            most = torch.tensor([samples, int(weighted)])
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self._group)
            samples, weighted = most.tolist()
        if samples > bags.samples:
            lengths = bags.lengths.new_zeros(len(self.matrix.lookups), samples)
            lengths[:, : bags.samples] = bags.lengths.view(len(lengths), bags.samples)
            bags = bags._replace(lengths=lengths.flatten(), samples=samples)
        if weighted and bags.scales is None:
            bags = bags._replace(scales=torch.ones(len(bags.ids)))
        return bags


def torchrec_rows(alike: Alike, sharing: Sharing) -> Iterator[FusedRows]:
    """Tables at work on TorchRec. Raises Failure(78) for what it cannot do, and where it is not there."""
    _require_plain(alike)
    group = sharing.group.main if sharing.group.world > 1 else None
    # Alone, a process needs the kernels: TorchRec, which takes seconds to import, is for what others have.
    require("fbgemm_gpu", *(["torchrec"] if group else []))
    for layout in _layouts(alike, sharing.filled):
        names = [table.name for table in layout.tables]
        lookups = sorted(alike.lookups(layout), key=lambda lookup: names.index(lookup.table))
        collection = Collection(layout, lookups, alike.optimizer, group)
        matrix = alike.matrix(layout, sharing.group.rank, collection.weight)
        yield FusedRows(replace(matrix, lookups=tuple(lookups)), collection, group)


def _layouts(alike: Alike, filled: Sequence[int]) -> Iterator[Layout]:
    """Where tables lie: those that are cut by rows, and those that are whole, in the order in which each rank has them.
    TorchRec has two ways of carrying bags for them."""
    ways: list[Way] = [_way(table, way, len(filled)) for table, way in alike.ways.items()]
    layout = lay_out_rows(list(alike.ways), ways, filled)
    owners: dict[str, list[int]] = {}
    for stretch in layout.stretches:
        owners.setdefault(stretch.table, []).append(stretch.owner)
    cut = [table for table in layout.tables if len(owners[table.name]) > 1]
    whole = [table for table in layout.tables if len(owners[table.name]) == 1]
    whole.sort(key=lambda table: owners[table.name])
    for tables in filter(None, (cut, whole)):
        yield _stacked(layout, tables)


def _way(table: Table, way: Way, world: int) -> Way:
    """How a table is held. Raises Failure(78) where it is to be cut by rows, and has none for some rank: fbgemm takes a
    kernel without rows for one of another device."""
    each = -(-table.rows // world)
    if way == "table" or table.rows > each * (world - 1):
        return way
    if way == "row":
        cause = f"embeddings.hold: table {table.name!r} has {table.rows} rows, too few for {world} processes to hold"
        raise Failure(Exit.BAD_RECIPE, cause, "with backend: torchrec each has some: hold it by table")
    return "table"


def _stacked(layout: Layout, tables: Sequence[Table]) -> Layout:
    """Some of a layout's tables by themselves, one after the other on each rank."""
    found: list[Stretch] = []
    filled = [0] * len(layout.filled)
    for table in tables:
        for stretch in layout.stretches:
            if stretch.table == table.name:
                found.append(replace(stretch, at=filled[stretch.owner]))
                filled[stretch.owner] += stretch.rows
    return Layout(tuple(tables), tuple(found), tuple(filled))


def _require_plain(alike: Alike) -> None:
    """Raises Failure(78) for tables and lookups that only our own rows have: what the recipe says was looked at."""
    refused: dict[str, bool] = {}
    for table in alike.ways:
        refused[f"table {table.name!r}, whose rows belong to keys,"] = table.keyed is not None
        refused[f"table {table.name!r}, whose dim {table.dim} is no multiple of 4,"] = table.dim % 4 != 0
        looked_up = [lookup for lookup in alike.module.lookups if lookup.table == table.name]
        refused[f"table {table.name!r}, which no feature looks up,"] = not looked_up
        for lookup in looked_up:
            refused[f'feature {lookup.feature!r}, of which each row is given (pooling "none"),'] = (
                lookup.pooling == "none"
            )
    for what, asked in refused.items():
        if asked:
            cause = f"{what} does not go with embeddings.backend: torchrec"
            raise Failure(Exit.BAD_RECIPE, cause, "use backend: own, which has it")
