"""Tables of networks, shared out over ranks and given memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import nn

from drivetrain.engine.tables.layout import Layout, Way, lay_out_rows
from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.module import Embeddings, Table, initial_rows
from drivetrain.engine.tables.recipe import Embeddings as Settings
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.recipe import Schedule
from drivetrain.optim.rows import RowMover, build_mover
from drivetrain.optim.schedules import Horizon, build_factor
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_REST = -1
"""The number of the group of those tables that no group's pattern takes."""


def build_tables(networks: Mapping[str, nn.Module], settings: Settings, group: Group) -> Tables | None:
    """The tables of networks, their rows shared out over the ranks of a group; None where there are none.

    The modules' parameters become views of what is here, and train no longer by themselves. Raises Failure(78) where a
    network has several `Embeddings`, or a pattern takes no table.
    """
    modules = {name: found for name, network in networks.items() if (found := _embeddings_of(name, network))}
    if not modules:
        return None
    _require_taken(settings, list(chain.from_iterable(module.tables for _, module in modules.values())))
    matrices: list[Matrix] = []
    filled = [0] * group.world
    for name, (path, module) in modules.items():
        # Tables that move alike lie in one matrix, whose rows are looked up together.
        alike: dict[tuple[int, int], list[Table]] = {}
        for table in module.tables.values():
            alike.setdefault((table.dim, _group_of(table, settings)), []).append(table)
        for (dim, number), tables in alike.items():
            layout = lay_out_rows(tables, [_way(table, settings) for table in tables], filled)
            filled = [before + own for before, own in zip(filled, layout.filled, strict=True)]
            weight = torch.empty(layout.filled[group.rank], dim)
            matrices.append(_matrix(name, path, module, layout, weight, settings, number, group.rank))
    return Tables(matrices, {name: module for name, (_, module) in modules.items()}, group)


@torch.no_grad()
def draw_tables(tables: Tables, seed: int) -> None:
    """Give the rows that are here their initial numbers."""
    for matrix in tables.matrices:
        by_name = {table.name: table for table in matrix.layout.tables}
        for stretch in matrix.stretches:
            rows = initial_rows(by_name[stretch.table], seed, stretch.start, stretch.stop)
            matrix.of(stretch.table, matrix.weight).copy_(rows)


def movers_of(tables: Tables, network: str, schedule: Schedule, horizon: Horizon) -> tuple[RowMover, ...]:
    """What moves a network's rows; `schedule` is the network's, for those tables that have none of their own."""
    found = []
    for matrix in tables.matrices:
        if matrix.network == network:
            factor = build_factor(matrix.schedule or schedule, horizon)
            found.append(build_mover(matrix.optimizer, matrix.weight, factor))
    return tuple(found)


def _embeddings_of(name: str, network: nn.Module) -> tuple[str, Embeddings] | None:
    """A network's tables, and where in it they are."""
    found = [(path, module) for path, module in network.named_modules() if isinstance(module, Embeddings)]
    if len(found) > 1:
        cause = f"network {name!r} has {len(found)} Embeddings: {', '.join(path for path, _ in found)}"
        raise Failure(Exit.BAD_RECIPE, cause, "give it one, with all tables and features")
    return found[0] if found else None


def _matrix(
    name: str,
    path: str,
    module: Embeddings,
    layout: Layout,
    weight: torch.Tensor,
    settings: Settings,
    number: int,
    rank: int,
) -> Matrix:
    names = {table.name for table in layout.tables}
    group = None if number == _REST else settings.groups[number]
    matrix = Matrix(
        network=name,
        module=path,
        layout=layout,
        stretches=tuple(layout.of(rank)),
        weight=weight,
        lookups=tuple([lookup for lookup in module.lookups if lookup.table in names]),
        optimizer=group.optimizer if group else settings.optimizer,
        schedule=(group and group.schedule) or settings.schedule,
    )
    for table in names:
        module.put(table, nn.Parameter(matrix.of(table, weight), requires_grad=False))
    return matrix


def _group_of(table: Table, settings: Settings) -> int:
    for number, group in enumerate(settings.groups):
        if re.search(group.match, table.name):
            return number
    return _REST


def _way(table: Table, settings: Settings) -> Way:
    for pattern, way in settings.hold.items():
        if re.search(pattern, table.name):
            return way
    return "auto"


def _require_taken(settings: Settings, tables: Sequence[str]) -> None:
    """Raises Failure(78) for a pattern that takes no table."""
    asked = [("groups", group.match) for group in settings.groups] + [("hold", pattern) for pattern in settings.hold]
    for key, pattern in asked:
        if not any(re.search(pattern, table) for table in tables):
            cause = f"embeddings.{key}: {pattern!r} takes no table"
            raise Failure(Exit.BAD_RECIPE, cause, f"there are {', '.join(tables)}")
