"""One matrix of keyed tables at work. The shape of it:

A rank never knows which row a key has. Its plan (`KeyPlanner`) numbers the keys that its micro-batches ask for, the
owners are told the keys, and send rows back in the same order; gradients go the same way. The owner alone turns keys
into rows, in `pull`, at the beginning of the step. So keys may be told during the step before: one that this step lets
in is found by the next, and nothing that was told ahead has to be told again.

Keys without a row share the first one of their bucket. An owner adds up gradients key by key, in the tree of ranks and
lanes, and then those of a shared row in the order of its keys: a sum that has the same bits on any number of ranks.

Once a step has moved the rows, the owner counts what was asked for, lets keys in and takes rows away (`KeyedTable`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.engine.tables.exchange import Asked, Exchange
from drivetrain.engine.tables.key_plan import KeyPlanner
from drivetrain.engine.tables.keyed import KeyedTable
from drivetrain.engine.tables.keys import key_rows
from drivetrain.engine.tables.matrix import Matrix, MatrixRows, PulledRows
from drivetrain.engine.tables.row_plan import RowPlan
from drivetrain.engine.tables.turnover import Seen
from drivetrain.optim.rows import MASTER


class Resolved(NamedTuple):
    """What all ranks together have asked for, key by key, ascending by table and key: of each table what was `seen`,
    and of all keys the `rows` of the matrix here, of which keys share some where they have none (`own` is false)."""

    seen: tuple[Seen, ...]
    rows: Tensor
    own: Tensor


class KeyedMatrixRows(MatrixRows):
    """As `MatrixRows`, where ids are keys."""

    def __init__(self, matrix: Matrix, exchange: Exchange, seed: int) -> None:
        """`seed` is the run's, which initial numbers follow from."""
        super().__init__(matrix, exchange)
        self.planner = KeyPlanner(matrix.layout, matrix.lookups)
        self.tables = matrix.keyed
        self._seed = seed
        self._pulled: Resolved | None = None
        self._pushed: Resolved | None = None

    def pull(self, plan: RowPlan, asked: Asked, losses: int = 1) -> PulledRows:
        """The rows of a plan, as they are now: of each key its own, or the one that it shares."""
        self._pulled, numbers = self._resolved(asked)
        self._pushed = None
        pulled = super().pull(plan, asked._replace(rows=self._pulled.rows[numbers]), losses)
        pulled.asked = asked._replace(rows=numbers)  # gradients are added up by key, and not by row
        return pulled

    def push(self, *, by_lane: bool) -> None:
        """Hand the mover what the step at work has come to, and count what it has asked for once rows have moved."""
        super().push(by_lane=by_lane)
        assert self.mover is not None
        assert self.mover.gradient is not None
        assert self._pulled is not None
        self._pushed, self._pulled = self._pulled, None
        self.mover.rows, self.mover.gradient = _shared(self._pushed, self.mover.gradient)
        self.mover.moved = self._observe

    def draw(self) -> None:
        """Rows that keys share have initial numbers; the others wait for a key."""
        self.matrix.weight.zero_()
        for table in self.tables:
            lines = table.rows.edges[:-1]
            names = -1 - np.arange(table.first, table.first + len(lines))
            self._begin(table, lines, names)

    def _resolved(self, asked: Asked) -> tuple[Resolved, Tensor]:
        """Of a `KeyPlanner`'s lines, rank after rank; and which of the keys each line has."""
        keys, places, counts = asked.rows.numpy().T
        numbers = np.empty(len(keys), np.int64)
        seen, rows, own, before = [], [], [], 0
        for place, table in enumerate(self.tables):
            at = np.flatnonzero(places == place)
            unique, inverse, total = keys[at], np.arange(len(at)), counts[at]
            if len(asked.counts) > 1:  # what one rank asks for ascends, and has each key once
                unique, inverse = np.unique(unique, return_inverse=True)
                total = np.bincount(inverse, total, len(unique)).astype(np.int64)
            found = table.look_up(unique, total)
            numbers[at] = before + inverse
            before += len(unique)
            seen.append(found)
            own.append(found.lines >= 0)
            rows.append(table.at + np.where(own[-1], found.lines, table.defaults(found)))
        together = Resolved(tuple(seen), torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(own)))
        return together, torch.from_numpy(numbers)

    def _observe(self, position: int) -> None:
        """The rows have moved, in the step that ends at this position."""
        assert self._pushed is not None
        pushed, self._pushed = self._pushed, None
        for table, seen in zip(self.tables, pushed.seen, strict=True):
            changes = table.observe(seen, position)
            if len(changes.freed):
                self._reset(table, changes.freed)
            if len(changes.filled):
                self._begin(table, changes.filled, changes.keys)

    def _reset(self, table: KeyedTable, lines: np.ndarray) -> None:
        """Nothing is left of the keys whose rows these were."""
        assert self.mover is not None
        rows = torch.from_numpy(table.at + lines)
        self.matrix.weight[rows] = 0.0
        for name, slot in self.mover.slots.items():
            slot[rows] = 0.0 if name == MASTER else self.mover.initial

    def _begin(self, table: KeyedTable, lines: np.ndarray, keys: np.ndarray) -> None:
        """Rows have the initial numbers of their keys."""
        of = table.table
        drawn = key_rows(keys, of.name, of.reach, of.dim, self._seed)
        rows = torch.from_numpy(table.at + lines)
        self.matrix.weight[rows] = drawn.to(self.matrix.weight.dtype)
        if self.mover is not None and MASTER in self.mover.slots:
            self.mover.slots[MASTER][rows] = drawn


def _shared(resolved: Resolved, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Rows, each once, and their gradients, of gradients by key, [keys, dim]: those of a row that keys share are added
    in the order of the keys."""
    if bool(resolved.own.all()):
        return resolved.rows, gradients
    others = (~resolved.own).nonzero().squeeze(1)
    rows, order = torch.sort(resolved.rows[others], stable=True)
    first = torch.ones(len(rows), dtype=torch.bool)
    torch.ne(rows[1:], rows[:-1], out=first[1:])
    segments = torch.cat([first.nonzero().squeeze(1), torch.tensor([len(rows)])])
    sums = F.embedding_bag(others[order], gradients, segments, mode="sum", include_last_offset=True)
    own = resolved.own.nonzero().squeeze(1)
    return torch.cat([resolved.rows[own], rows[first]]), torch.cat([gradients[own], sums])
