"""One matrix of tables at work that lie whole on a rank each. The shape of it:

An owner looks up the bags of all ranks and sends what they come to, [bags, dim]; what is handed back to them comes the
same way, and the owner adds it up to gradients of rows. So a row is looked up where it lies, its owner alone finds out
which bags have it, and what travels is what networks read. Each sum is made in the order in which it is made where rows
travel (`MatrixRows`): which of both it is changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from drivetrain.engine.tables.bag_plan import BagPlanner, MicroBags, ask_for_bags
from drivetrain.engine.tables.exchange import Exchange
from drivetrain.engine.tables.matrix import Matrix, MatrixRows, PulledRows
from drivetrain.engine.tables.module import Ids


@dataclass
class PulledBags(PulledRows):
    """As `PulledRows`, where `source` are bags."""

    def pooled(self, micro: MicroBags) -> tuple[Tensor, ...]:
        """What a micro-batch's bags come to, [bags, dim] for each lookup."""
        whole = _Stretches.apply(self.leaf, self.source, micro.stretches)
        assert isinstance(whole, Tensor)
        return whole.split(micro.sizes)


class _Stretches(torch.autograd.Function):
    """Some stretches of bags, one after the other."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, source: Tensor, stretches: list[slice]) -> Tensor:
        ctx.stretches, ctx.shape = stretches, leaf.shape
        return torch.cat([source[stretch] for stretch in stretches])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), at = gradients, 0
        if gradient.shape == ctx.shape:  # of the one micro-batch of a step
            return gradient, None, None
        back = gradient.new_zeros(ctx.shape)
        for stretch in ctx.stretches:
            size = stretch.stop - stretch.start
            back[stretch] = gradient[at : at + size]
            at += size
        return back, None, None


class BagExchange(Exchange):
    """As `Exchange`, where bags travel: of a `BagPlan` and `AskedBags`."""

    def pull(self, plan: Any, asked: Any) -> Tensor:
        """What the bags of a plan come to, float32 [bags, dim]."""
        rows, offsets, scales = asked.rows, asked.offsets, asked.scales
        own = F.embedding_bag(
            rows, self._weight, offsets, mode="sum", include_last_offset=True, per_sample_weights=scales
        )
        bags = own.new_empty(sum(plan.bags), own.shape[1])
        dist.all_to_all_single(bags, own, plan.bags, asked.counts, group=self._group)
        return bags

    def push(self, plan: Any, asked: Any, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The rows here that any rank has in its bags, each once (int64 [n]), and the sums of their gradients,
        [n, dim]; `gradients` [bags, dim] are those of a plan's bags."""
        arrived = gradients.new_empty(sum(asked.counts), gradients.shape[1])
        dist.all_to_all_single(arrived, gradients.contiguous(), asked.counts, plan.bags, group=self._group)
        return asked.sums.rows, asked.sums.of(arrived, asked.back_scales)


class BagMatrixRows(MatrixRows):
    """As `MatrixRows`, where bags travel."""

    def __init__(self, matrix: Matrix, group: dist.ProcessGroup) -> None:
        owners = {stretch.table: stretch.owner for stretch in matrix.layout.stretches}
        lookups = tuple(sorted(matrix.lookups, key=lambda lookup: owners[lookup.table]))
        super().__init__(replace(matrix, lookups=lookups), BagExchange(matrix.weight, group))
        self.planner = BagPlanner(matrix.layout, lookups)

    def ask(self, plan: Any, group: dist.ProcessGroup | None) -> Any:
        """Tell the owners what a plan asks for; what is wanted of this rank. Every rank of a group calls it."""
        assert group is not None, "bags travel between ranks"
        return ask_for_bags(plan, group)

    def pull(self, plan: Any, asked: Any, losses: int = 1) -> PulledBags:
        """What the bags of a plan come to, as rows are now, for the gradients of so many losses."""
        return PulledBags(plan, asked, self._exchange.pull(plan, asked), None, losses)

    def stand_in(self, given: Ids) -> tuple[PulledBags, MicroBags]:
        """Numbers in place of the bags of one batch, whose gradients are for nothing."""
        plan = self.planner.plan([given])
        bags = torch.rand(sum(plan.bags), self.matrix.weight.shape[1]) - 0.5
        return PulledBags(plan, None, bags, None), plan.micros[0]
