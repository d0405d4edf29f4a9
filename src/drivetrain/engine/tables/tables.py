"""All tables of a run's networks: their rows are pulled before a step's passes, and their gradients pushed after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.tables.at_work import AtWork, Pulled
from drivetrain.engine.tables.exchange import Asked, AskedAhead
from drivetrain.engine.tables.keyed_matrix import KeyedMatrixRows
from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.module import Embeddings, Ids
from drivetrain.optim.rows import RowMover
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

Lookups = Callable[[Any], Mapping[str, Ids]]
"""What each network looks up of a batch: a task's `lookups`."""


@dataclass
class StepRows:
    """What a step's micro-batches ask for: a plan for each matrix, and the place of each micro-batch in them, by the
    position at which it starts. `ahead` is what others ask for, where the ranks have begun to tell each other."""

    plans: tuple[Any, ...]
    places: Mapping[int, int]
    ahead: AskedAhead | None = None


class Tables:
    """The matrices of a run. Every rank of `group` calls `training`, `push` and `evaluating` alike."""

    def __init__(self, at_work: Sequence[AtWork], modules: Mapping[str, Embeddings], group: Group) -> None:
        """`modules` are the networks' embeddings, by network."""
        self.group = group
        self._side: Any = dist.new_group(backend=group.side_backend) if self._main else None
        self._last: AskedAhead | None = None
        self._modules = dict(modules)
        self.at_work = tuple(at_work)
        self.matrices = tuple([work.matrix for work in at_work])
        self.keyed = tuple([work for work in at_work if isinstance(work, KeyedMatrixRows)])
        self._places: Mapping[int, int] = {}
        self._place: int | None = None

    def move_by(self, network: str, movers: Sequence[RowMover]) -> None:
        """Let these move a network's rows: one for each of its matrices, in their order."""
        own = [work for work in self.at_work if work.matrix.network == network]
        for work, mover in zip(own, movers, strict=True):
            work.mover = mover
            mover.counts = self.group.leader or not work.matrix.layout.everywhere

    def arrange(self, lookups: Lookups, micros: Sequence[MicroBatch]) -> StepRows:
        """What these micro-batches of a step ask for. It talks to nobody, and may be made ahead of the step.

        Raises Failure(65) for an id that is no row, 78 where a network's embeddings are told nothing.
        """
        asked = [lookups(micro.batch) for micro in micros]
        for network in self._modules:
            if any(network not in ids for ids in asked):
                cause = f"the task's lookups say nothing of {network!r}, which has embeddings"
                raise Failure(Exit.BAD_RECIPE, cause, "return what each network looks up of a batch, by network")
        plans = []
        for work in self.at_work:
            plans.append(work.planner.plan([ids[work.matrix.network] for ids in asked]))
        return StepRows(tuple(plans), {micro.start: place for place, micro in enumerate(micros)})

    def announce(self, rows: StepRows) -> None:
        """Begin to tell the other ranks what the next step asks for."""
        if self._side is not None:
            asks = [partial(work.ask, plan, self._side) for work, plan in zip(self.at_work, rows.plans, strict=True)]
            rows.ahead = self._last = AskedAhead(asks, self._last)

    @contextmanager
    def training(self, rows: StepRows, losses: int = 1) -> Iterator[None]:
        """While entered, networks look up the rows of this step, as they are now. Gradients of several `losses` are
        kept apart, by `PulledRows.keep`."""
        for work, plan, asked in zip(self.at_work, rows.plans, self._asked(rows), strict=True):
            if work.mover:
                work.mover.drop()  # what a step has come to that was left out
            work.pulled = work.pull(plan, asked, losses)
        self._places = rows.places
        with self._answering(self._step_rows):
            yield

    def enter(self, start: int) -> None:
        """The micro-batch that starts at this position comes next. One that is none of this step's, of a pass without
        weight, finds numbers in place of rows: the ranks have told each other what they ask for before."""
        self._place = self._places.get(start)

    def close_lane(self) -> None:
        """A lane's micro-batches are through."""
        for pulled in self.pulled:
            pulled.close_lane()

    def push(self, networks: Sequence[str], *, by_lane: bool) -> None:
        """Hand the gradients of rows, of all losses beside each other, to the movers of these networks; those of others
        are dropped. `by_lane`: they are the trees of lanes that were closed."""
        for work in self.at_work:
            if work.matrix.network in networks:
                work.push(by_lane=by_lane)
            work.pulled = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While entered, each pass asks for its own rows: every rank makes as many passes."""
        if self.group.world == 1 and not self.keyed:  # tables are whole here, and ids are rows
            yield
            return
        with self._answering(self._own_rows):
            yield

    @property
    def pulled(self) -> list[Pulled]:
        """The rows of the step at work, which backward passes hand gradients back to."""
        return [work.pulled for work in self.at_work if work.pulled]

    @property
    def _main(self) -> dist.ProcessGroup | None:
        """The group whose ranks hold rows; None where this process holds all."""
        return self.group.main if self.group.world > 1 else None

    @contextmanager
    def _answering(self, rows_of: Callable[[AtWork, Ids], tuple[Pulled, Any]]) -> Iterator[None]:
        """While entered, these rows are what modules find."""

        def answer(network: str, given: Ids) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for work in self.at_work:
                if work.matrix.network == network:
                    found |= _features(work.matrix, *rows_of(work, given), given)
            return found

        for network, module in self._modules.items():
            module.engine = partial(answer, network)
        try:
            yield
        finally:
            for module in self._modules.values():
                module.engine = None

    def _asked(self, rows: StepRows) -> list[Asked]:
        """What is wanted of this rank in a step. Only the first one after a start was not announced."""
        if rows.ahead is None:
            return [work.ask(plan, self._main) for work, plan in zip(self.at_work, rows.plans, strict=True)]
        return rows.ahead.wait()

    def _own_rows(self, work: AtWork, given: Ids) -> tuple[Pulled, Any]:
        plan = work.planner.plan([given])
        return work.pull(plan, work.ask(plan, self._main)), plan.micros[0]

    def _step_rows(self, work: AtWork, given: Ids) -> tuple[Pulled, Any]:
        if self._place is None:
            return work.stand_in(given)
        assert work.pulled is not None, "rows are pulled before the passes of their step"
        return work.pulled, work.pulled.plan.micros[self._place]


def _features(matrix: Matrix, pulled: Pulled, micro: Any, given: Ids) -> dict[str, Tensor]:
    """What each feature comes to, in the shapes of `Embeddings.forward`.

    Raises Failure(70) where a network looks up others than its task's `lookups` have told.
    """
    found: dict[str, Tensor] = {}
    for lookup, bags in zip(matrix.lookups, pulled.pooled(micro), strict=True):
        ids = given.ids[lookup.feature]
        shape = ids.shape if lookup.pooling == "none" else ids.shape[:1]
        if len(bags) != shape.numel():
            cause = (
                f"a network looks up {list(ids.shape)} ids of {lookup.feature!r}, and its task's lookups told others"
            )
            raise Failure(Exit.INTERNAL, cause, "look up what `lookups` gives of the batch")
        found[lookup.feature] = bags.view(*shape, -1)
    return found
