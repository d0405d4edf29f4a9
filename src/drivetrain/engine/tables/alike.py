"""Tables of a network that have one width and move alike: what a backend is asked to share out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drivetrain.engine.tables.keyed import KeyedTable
from drivetrain.engine.tables.layout import Layout, Way
from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.module import Embeddings, Lookup, Table
from drivetrain.optim.recipe import Schedule
from drivetrain.optim.recipe.rows import RowOptimizer
from drivetrain.runtime.group import Group


@dataclass(frozen=True)
class Alike:
    """The tables and the `ways` in which they are to be held; `network` and `path` say where their module is.
    `optimizer` and `schedule` (None: the network's) move them."""

    network: str
    path: str
    module: Embeddings
    ways: Mapping[Table, Way]
    optimizer: RowOptimizer
    schedule: Schedule | None

    def lookups(self, layout: Layout) -> tuple[Lookup, ...]:
        """Those of a layout's tables, in the order of the module."""
        names = {table.name for table in layout.tables}
        return tuple([lookup for lookup in self.module.lookups if lookup.table in names])

    def matrix(self, layout: Layout, rank: int, weight: Tensor) -> Matrix:
        """The matrix of those that a layout has: the parameters of their module become views of its `weight`."""
        stretches = {stretch.table: stretch for stretch in layout.of(rank)}
        keyed = [KeyedTable(table, stretches.get(table.name)) for table in layout.tables if table.keyed is not None]
        own = tuple(stretches.values())
        moved_by = self.optimizer, self.schedule
        matrix = Matrix(self.network, self.path, layout, own, weight, self.lookups(layout), *moved_by, tuple(keyed))
        for table in layout.tables:
            self.module.put(table.name, nn.Parameter(matrix.of(table.name, weight), requires_grad=False))
        for keys in keyed:
            self.module.put_keys(keys.table.name, keys.tensors)
        return matrix


@dataclass(frozen=True)
class Sharing:
    """Who shares tables out: the ranks of a group, which have so many rows each before (`filled`). Rows are of type
    `dtype`; `seed` is the run's. `lanes`: gradients are summed as a tree of lanes."""

    group: Group
    filled: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    lanes: bool = False
