"""Tables of networks, shared out over ranks and given memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.engine.tables.alike import Alike, Sharing
from drivetrain.engine.tables.at_work import AtWork
from drivetrain.engine.tables.bag_matrix import BagMatrixRows
from drivetrain.engine.tables.exchange import Exchange
from drivetrain.engine.tables.keyed_matrix import KeyedMatrixRows
from drivetrain.engine.tables.layout import Layout, Way, held_by_each, lay_out_everywhere, lay_out_rows
from drivetrain.engine.tables.matrix import Matrix, MatrixRows
from drivetrain.engine.tables.module import Embeddings, Table, initial_rows, tables_in
from drivetrain.engine.tables.recipe import Embeddings as Settings
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.recipe import Schedule
from drivetrain.optim.recipe.rows import RowOptimizer
from drivetrain.optim.rows import HalfRows, RowMover, Stretches
from drivetrain.optim.schedules import Factor, Horizon, build_factor
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_REST = -1
"""The number of the group of those tables that no group's pattern takes."""


def build_tables(
    networks: Mapping[str, nn.Module],
    settings: Settings,
    group: Group,
    seed: int,
    dtype: torch.dtype = torch.float32,
    *,
    exact: bool = False,
) -> Tables | None:
    """The tables of networks, their rows shared out over the ranks of a group; None where there are none.

    The modules' parameters become views of what is here, and train no longer by themselves. Rows of keys that come
    later begin by the run's `seed`; gradients add up as `exact` runs want them. Raises Failure(78) where a network has
    several `Embeddings`, or a pattern takes no table, and what the backend refuses.
    """
    modules = {name: found for name, network in networks.items() if (found := _embeddings_of(name, network))}
    if not modules:
        return None
    _require_taken(settings, list(chain.from_iterable(own.module.tables for own in modules.values())))
    shared_out = _backend(settings.backend)
    at_work: list[AtWork] = []
    filled = (0,) * group.world
    for own in modules.values():
        # Tables that move alike lie in one matrix, whose rows are looked up together.
        alike: dict[tuple[int, int, bool], list[Table]] = {}
        for table in own.module.tables.values():
            alike.setdefault((table.dim, _group_of(table, settings), table.keyed is not None), []).append(table)
        for (_, number, _), tables in alike.items():
            ways: dict[Table, Way] = {table: _way(table, settings) for table in tables}
            asked = Alike(*own, ways, *_moved_by(settings, number))
            for work in shared_out(asked, Sharing(group, filled, dtype, seed, exact)):
                at_work.append(work)
                more = zip(filled, work.matrix.layout.filled, strict=True)
                filled = tuple([before + after for before, after in more])
    return Tables(at_work, {name: own.module for name, own in modules.items()}, group)


def _backend(name: str) -> Callable[[Alike, Sharing], Iterator[AtWork]]:
    if name == "torchrec":
        from drivetrain.engine.tables.torchrec.rows import torchrec_rows  # what an extra brings

        return torchrec_rows
    return _own_rows


def _own_rows(alike: Alike, sharing: Sharing) -> Iterator[AtWork]:
    """Tables at work that pull and push rows by themselves."""
    group = sharing.group
    for layout, by_bags in _layouts(alike, sharing):
        weight = torch.empty(layout.filled[group.rank], layout.tables[0].dim, dtype=sharing.dtype)
        matrix = alike.matrix(layout, group.rank, weight)
        if by_bags:
            yield BagMatrixRows(matrix, group.main)
            continue
        exchange = Exchange(weight, group.main if group.world > 1 else None, everywhere=layout.everywhere)
        yield KeyedMatrixRows(matrix, exchange, sharing.seed) if matrix.keyed else MatrixRows(matrix, exchange)


@torch.no_grad()
def draw_tables(tables: Tables, seed: int) -> None:
    """Give the rows that are here their initial numbers."""
    for work in tables.keyed:
        work.draw()
    for matrix in tables.matrices:
        if matrix.keyed:
            continue
        by_name = {table.name: table for table in matrix.layout.tables}
        for stretch in matrix.stretches:
            rows = initial_rows(by_name[stretch.table], seed, stretch.start, stretch.stop)
            matrix.of(stretch.table, matrix.weight).copy_(rows)


class RowRates(NamedTuple):
    """How a network's rows are to move: as `settings` say, which may have other rates than the tables were built by;
    `schedule` is the network's, for those tables that have none of their own."""

    settings: Settings
    schedule: Schedule
    horizon: Horizon

    def of(self, matrix: Matrix) -> tuple[RowOptimizer, Factor]:
        """What moves a matrix, and the factor of its rate."""
        optimizer, own = _moved_by(self.settings, _group_of(matrix.layout.tables[0], self.settings))
        return optimizer, build_factor(own or self.schedule, self.horizon)


def movers_of(
    tables: Tables, network: str, rates: RowRates, half: Callable[[Stretches], HalfRows | None] = lambda _: None
) -> tuple[RowMover, ...]:
    """What moves a network's rows, along a run that keys come and go in. `half` says how bf16 rows are moved, by whose
    they are."""
    found = []
    for work in tables.at_work:
        matrix = work.matrix
        if matrix.network == network:
            kept = half(_stretches(matrix))
            if kept is not None:
                kept = replace(kept, begun=work.masters)
            mover = work.build_mover(*rates.of(matrix), kept)
            mover.name = _first_alike(tables, matrix)
            found.append(mover)
            for keyed in matrix.keyed:
                keyed.lay_rule(rates.horizon.scale)
    return tuple(found)


def begin_masters(tables: Tables) -> dict[str, Tensor]:
    """Let the masters of bf16 rows begin apart from the weights: those of the rows here, by NETWORK/NAME."""
    found: dict[str, Tensor] = {}
    for work in tables.at_work:
        work.masters = work.matrix.weight.float()
        for table in work.matrix.layout.tables:
            found[work.matrix.path(table.name)] = work.matrix.of(table.name, work.masters)
    return found


def retune(tables: Tables, network: str, rates: RowRates) -> None:
    """Let a network's rows move by other rates from the next step on."""
    for work in tables.at_work:
        if work.matrix.network == network and work.mover is not None:
            work.mover.retune(*rates.of(work.matrix))


def moved_alone(networks: Mapping[str, nn.Module], tables: Tables | None, frozen: Collection[str]) -> set[str]:
    """The networks that have tables and no other parameter, and train by their rows: those that are not frozen."""
    found: set[str] = set()
    for name in {matrix.network for matrix in tables.matrices} - set(frozen) if tables else ():
        if tables_in(networks[name]) == set(networks[name].parameters()):
            found.add(name)
    return found


def _first_alike(tables: Tables, matrix: Matrix) -> str:
    """The first by name of the tables that move as those of a matrix do. It does not depend on who holds what."""
    names: list[str] = []
    for other in tables.matrices:
        if (other.network, other.optimizer, other.schedule) == (matrix.network, matrix.optimizer, matrix.schedule):
            names += [table.name for table in other.layout.tables]
    return min(names)


def _stretches(matrix: Matrix) -> Stretches:
    ordered = sorted(matrix.stretches, key=lambda stretch: stretch.at)
    names = tuple([matrix.path(stretch.table) for stretch in ordered])
    at = torch.tensor([stretch.at for stretch in ordered], dtype=torch.int64)
    first = torch.tensor([stretch.start for stretch in ordered], dtype=torch.int64)
    return Stretches(names, at, first)


def _layouts(alike: Alike, sharing: Sharing) -> Iterator[tuple[Layout, bool]]:
    """Where tables that move alike lie, and whether bags travel: those that each rank holds by themselves, then those
    whose rows travel."""
    ways, filled = alike.ways, sharing.filled
    each = held_by_each({table: way for table, way in ways.items() if table.keyed is None}, len(filled))
    if each:
        yield lay_out_everywhere(each, len(filled)), False
    if rest := [table for table in ways if table not in each]:
        layout = lay_out_rows(rest, [ways[table] for table in rest], filled)
        by_bags = _by_bags(layout, alike, sharing)
        for tables in ([table for table in rest if table not in by_bags], by_bags):
            if tables:
                yield layout.only(tables), tables is by_bags


def _by_bags(layout: Layout, alike: Alike, sharing: Sharing) -> list[Table]:
    """The tables whose bags travel: those that one rank has whole. Rows travel of keyed ones, where each row is read by
    itself, where ranks add them up by lane, and where they are bf16, as a bag would be rounded."""
    if sharing.group.world == 1 or sharing.lanes or sharing.dtype != torch.float32:
        return []
    parts = Counter([stretch.table for stretch in layout.stretches])
    by_rows = {lookup.table for lookup in alike.module.lookups if lookup.pooling == "none"}
    by_rows.update([table.name for table in layout.tables if table.keyed is not None or parts[table.name] > 1])
    return [table for table in layout.tables if table.name not in by_rows]


class _Found(NamedTuple):
    """A network's tables, and where in it they are."""

    network: str
    path: str
    module: Embeddings


def _embeddings_of(name: str, network: nn.Module) -> _Found | None:
    found = [_Found(name, path, part) for path, part in network.named_modules() if isinstance(part, Embeddings)]
    found = [one for one in found if one.module.tables]  # of numbers alone a ranking has none
    if len(found) > 1:
        cause = f"network {name!r} has {len(found)} Embeddings: {', '.join(one.path for one in found)}"
        raise Failure(Exit.BAD_RECIPE, cause, "give it one, with all tables and features")
    return found[0] if found else None


def _moved_by(settings: Settings, number: int) -> tuple[RowOptimizer, Schedule | None]:
    """What moves the tables of a group, and its schedule where that is not the network's."""
    if number == _REST:
        return settings.optimizer, settings.schedule
    group = settings.groups[number]
    return group.optimizer, group.schedule or settings.schedule


def _group_of(table: Table, settings: Settings) -> int:
    for number, group in enumerate(settings.groups):
        if re.search(group.match, table.name):
            return number
    return _REST


def _way(table: Table, settings: Settings) -> Way:
    for pattern, way in settings.hold.items():
        if re.search(pattern, table.name):
            if way == "each" and table.keyed is not None:
                cause = f"embeddings.hold: {pattern!r} has each process hold {table.name!r}, whose rows belong to keys"
                raise Failure(Exit.BAD_RECIPE, cause, "a key has one owner: hold it by table or by row")
            return way
    return "auto"


def _require_taken(settings: Settings, tables: Sequence[str]) -> None:
    """Raises Failure(78) for a pattern that takes no table."""
    asked = [("groups", group.match) for group in settings.groups]
    asked += [("hold", pattern) for pattern in settings.hold]
    for key, pattern in asked:
        if not any(re.search(pattern, table) for table in tables):
            cause = f"embeddings.{key}: {pattern!r} takes no table"
            raise Failure(Exit.BAD_RECIPE, cause, f"there are {', '.join(tables)}")
