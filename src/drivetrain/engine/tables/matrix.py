"""Tables of one width that move alike, as one matrix of the rows that are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from drivetrain.engine.exact import TreeAccumulator
from drivetrain.engine.reduce import Flat
from drivetrain.engine.tables.exchange import Asked, Exchange, ask
from drivetrain.engine.tables.keyed import KeyedTable
from drivetrain.engine.tables.layout import Layout, Stretch
from drivetrain.engine.tables.module import Ids, Lookup, Table, parameter_name
from drivetrain.engine.tables.row_plan import MicroRows, RowPlan, RowPlanner
from drivetrain.optim.recipe.rows import RowOptimizer
from drivetrain.optim.recipe.schedules import Schedule
from drivetrain.optim.rows import HalfRows, RowMover, build_mover
from drivetrain.optim.schedules import Factor
from drivetrain.spec.box import Box


@dataclass(frozen=True)
class Matrix:
    """`weight` float32 or bf16 [rows here, dim] has this rank's `stretches` of the tables, one after the other.

    `network` and `module` say whose they are, by name; `optimizer` and `schedule` (None: the network's) move them.
    """

    network: str
    module: str
    layout: Layout
    stretches: tuple[Stretch, ...]
    weight: Tensor
    lookups: tuple[Lookup, ...]
    optimizer: RowOptimizer
    schedule: Schedule | None
    keyed: tuple[KeyedTable, ...] = ()
    """Where the tables are keyed: what is known of their keys here, in the layout's order."""

    def path(self, table: str) -> str:
        """NETWORK/NAME of a table's parameter."""
        return self.beside(parameter_name(table))

    def beside(self, parameter: str) -> str:
        """NETWORK/NAME of a parameter of the tables' module."""
        return f"{self.network}/{self.module}.{parameter}".replace("/.", "/")

    def of(self, table: str, tensor: Tensor) -> Tensor:
        """A table's lines of a tensor that has one for each row here: a view, empty where none of its rows is."""
        for stretch in self.stretches:
            if stretch.table == table:
                return tensor[stretch.at : stretch.at + stretch.rows]
        return tensor[:0]

    def box(self, table: Table) -> Box:
        """Which rows of a table are here."""
        for stretch in self.stretches:
            if stretch.table == table.name:
                return Box((table.rows, table.dim), (stretch.start, 0), (stretch.rows, table.dim))
        return Box((table.rows, table.dim), (0, 0), (0, table.dim))


@dataclass
class PulledRows:
    """The rows that a step has asked for of one matrix, and what is handed back to them.

    `source` are the rows, [rows, dim], and `addresses` None; or it is the whole matrix, and they lie at `addresses`.
    `leaf` [rows, dim] has no memory: it is there for its gradient. That of several `losses` is kept apart.
    """

    plan: Any
    asked: Any
    source: Tensor
    addresses: Tensor | None
    losses: int = 1
    leaf: Tensor = field(init=False)
    _kept: dict[int, Tensor] = field(init=False, default_factory=dict)
    _lanes: TreeAccumulator = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.source if self.addresses is None else self.addresses)
        dim = self.source.shape[1]
        # Of one number that is shown [rows, dim]: autograd wants a tensor of the gradient's shape, and nobody reads it.
        self.leaf = torch.zeros((), dtype=self.source.dtype).expand(rows, dim).requires_grad_()
        self._lanes = TreeAccumulator(lambda: Flat(torch.empty(rows, self.losses * dim), []))

    @property
    def leaves(self) -> list[Tensor]:
        """What backward passes hand gradients to."""
        return [self.leaf]

    def pooled(self, micro: Any) -> tuple[Tensor, ...]:
        """What a micro-batch's bags come to, [bags, dim] for each lookup."""
        places = micro.places if self.addresses is None else self.addresses[micro.places]
        whole = _Pool.apply(self.leaf, self.source, places, micro)
        assert isinstance(whole, Tensor)
        return whole.split(micro.sizes)

    def keep(self, loss: int) -> None:
        """What was handed back since the last call is the gradient of the loss of this number."""
        found, self.leaf.grad = self.leaf.grad, None
        if found is not None:
            # In place: the leaf has let go of it, so nobody else reads it.
            self._kept[loss] = self._kept[loss].add_(found) if loss in self._kept else found

    def take_gradient(self) -> Tensor:
        """The sum of what was handed back so far, [rows, losses x dim]: loss beside loss; it begins anew."""
        if self.losses == 1:
            self.keep(0)
        kept, self._kept = self._kept, {}
        for loss in range(self.losses):
            if loss not in kept:
                kept[loss] = torch.zeros(self.leaf.shape, dtype=self.leaf.dtype)
        if self.losses == 1:
            return kept[0]
        return torch.cat([kept[loss] for loss in range(self.losses)], dim=1)

    def close_lane(self) -> None:
        """What was handed back since the lane before joins the tree of lanes."""
        flat = self._lanes.take()
        flat.whole.copy_(self.take_gradient())
        self._lanes.push(flat)

    @property
    def of_lanes(self) -> Tensor:
        """The sum over all lanes of this rank, [rows, losses x dim]."""
        return self._lanes.total


class _Pool(torch.autograd.Function):
    """Sums of rows by bag. Backward sums, for each row, what its bags hand back, through the transposed index: nothing
    is sorted there, and nothing is added out of order."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, source: Tensor, places: Tensor, micro: MicroRows) -> Tensor:
        ctx.micro, ctx.rows = micro, len(leaf)
        return F.embedding_bag(
            places, source, micro.offsets, mode="sum", include_last_offset=True, per_sample_weights=micro.scales
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        micro, (gradient,) = ctx.micro, gradients
        back = F.embedding_bag(
            micro.bags,
            gradient.contiguous(),
            micro.segments,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=micro.back_scales,
        )
        if micro.rows is not None:
            # The rows of other micro-batches get zeros: all gradients of a leaf have its shape.
            back = back.new_zeros(ctx.rows, back.shape[1]).index_copy_(0, micro.rows, back)
        return back, None, None, None


class MatrixRows:
    """One matrix at work: plans, rows that were pulled, gradients that are pushed. All ranks call `pull` and `push` in
    the same order."""

    summed = True

    def __init__(self, matrix: Matrix, exchange: Exchange) -> None:
        self.matrix = matrix
        self.planner = RowPlanner(matrix.layout, matrix.lookups)
        self.pulled: PulledRows | None = None
        self.mover: RowMover | None = None
        """What moves the rows that are here."""
        self.masters: Tensor | None = None
        """Of bf16 rows whose masters begin at other numbers: these, float32 [rows here, dim]."""
        self._exchange = exchange

    def pull(self, plan: RowPlan, asked: Asked, losses: int = 1) -> PulledRows:
        """The rows of a plan, as they are now, for the gradients of so many losses."""
        source = self._exchange.pull(plan, asked)
        addresses = self._exchange.addresses(plan, asked) if source is self.matrix.weight else None
        return PulledRows(plan, asked, source, addresses, losses)

    @property
    def claim(self) -> Mapping[str, Any]:
        """Nothing: who holds which rows changes no bit."""
        return {}

    def ask(self, plan: RowPlan, group: dist.ProcessGroup | None) -> Asked:
        """Tell the owners what a plan asks for; what is wanted of this rank. Every rank of a group calls it."""
        return ask(plan, group)

    def build_mover(self, optimizer: RowOptimizer, factor: Factor, half: HalfRows | None) -> RowMover:
        """What moves the rows that are here; `half` where they are bf16."""
        return build_mover(optimizer, self.matrix.weight, factor, half)

    def stand_in(self, given: Ids) -> tuple[PulledRows, Any]:
        """Numbers in place of the rows of one batch, whose gradients are for nothing."""
        plan = self.planner.plan([given])
        source = torch.rand(len(plan.addresses), self.matrix.weight.shape[1]) - 0.5
        return PulledRows(plan, Asked(plan.local, plan.counts), source, None), plan.micros[0]

    def push(self, *, by_lane: bool) -> None:
        """Hand the mover what the step at work has come to: the rows here that any rank has asked for, and the sums of
        their gradients."""
        assert self.pulled is not None, "rows are pulled before their gradients are pushed"
        assert self.mover is not None
        pulled, self.pulled = self.pulled, None
        gradient = pulled.of_lanes if by_lane else pulled.take_gradient()
        self.mover.rows, self.mover.gradient = self._exchange.push(pulled.plan, pulled.asked, gradient)
