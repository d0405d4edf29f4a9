"""Which rank holds which rows of which table. Plain arithmetic: it changes what a run costs, and no number in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drivetrain.engine.tables.keys import BUCKETS, edges_of
from drivetrain.engine.tables.module import Table
from drivetrain.spec.exits import Exit, Failure

Way = Literal["auto", "table", "row", "each"]
"""How a table is held: whole by one rank, by rows by all of them, whole by each of them, or as suits it."""
SMALL_BYTES = 64 << 10
"""Tables of one width that together have no more (float32) each rank holds whole: then no rank asks for their rows."""


@dataclass(frozen=True)
class Stretch:
    """Rows `start` to `stop` of a table lie on rank `owner`, from its row `at` on."""

    table: str
    start: int
    stop: int
    owner: int
    at: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Where the rows of tables of one width lie: every row of each table once.

    `stretches` are in the order of the tables and of their rows; `filled` is how many rows each rank has. Or every rank
    has every row: `everywhere`.
    """

    tables: tuple[Table, ...]
    stretches: tuple[Stretch, ...]
    filled: tuple[int, ...]
    everywhere: bool = False

    def of(self, rank: int) -> list[Stretch]:
        """What a rank holds."""
        return [stretch for stretch in self.stretches if stretch.owner == rank]

    def only(self, tables: Sequence[Table]) -> Layout:
        """Some of the tables, held by whom they are; their rows lie close together."""
        names, own = {table.name for table in tables}, [0] * len(self.filled)
        stretches = []
        for stretch in self.stretches:
            if stretch.table in names:
                stretches.append(replace(stretch, at=own[stretch.owner]))
                own[stretch.owner] += stretch.rows
        return Layout(tuple(tables), tuple(stretches), tuple(own))


def lay_out_rows(tables: Sequence[Table], ways: Sequence[Way], filled: Sequence[int]) -> Layout:
    """Tables of one width over ranks that hold `filled` rows already, in the order of the ranks.

    Those that are larger than a rank's share of all of them are held by rows, unless their way says otherwise. The rest
    goes whole to the rank that has least, the largest first. Raises Failure(78) where a keyed table is to be held by
    rows, and has fewer buckets than there are ranks.
    """
    world, fill = len(filled), list(filled)
    own = [0] * world
    share = sum(table.rows for table in tables) / world
    placed: dict[int, list[Stretch]] = {}
    whole: list[int] = []
    for place, (table, way) in enumerate(zip(tables, ways, strict=True)):
        if way == "table" or (way == "auto" and (table.rows <= share or _too_few_buckets(table, world))):
            whole.append(place)
            continue
        if _too_few_buckets(table, world):
            cause = f"table {table.name!r} has {BUCKETS} buckets of keys, too few for {world} processes to hold by rows"
            raise Failure(Exit.BAD_RECIPE, cause, f"let one hold it: embeddings.hold: {{{table.name}: table}}")
        placed[place] = _by_rows(table, own)
        for stretch in placed[place]:
            fill[stretch.owner] += stretch.rows
    for place in sorted(whole, key=lambda place: (-tables[place].rows, place)):
        table = tables[place]
        owner = min(range(world), key=lambda rank: (fill[rank], rank))
        placed[place] = [Stretch(table.name, 0, table.rows, owner, own[owner])]
        fill[owner] += table.rows
        own[owner] += table.rows
    stretches = [stretch for place in sorted(placed) for stretch in placed[place]]
    return Layout(tuple(tables), tuple(stretches), tuple(own))


def _too_few_buckets(table: Table, world: int) -> bool:
    """Whether some rank would have nothing of a keyed table that is held by rows."""
    return table.keyed is not None and world > BUCKETS


def held_by_each(ways: Mapping[Table, Way], world: int) -> list[Table]:
    """Which of these tables of one width each of so many ranks holds whole: those that are to be and, if the others are
    small together, these too, as long as nothing else is asked of any. Some of them would save no message."""
    if world == 1:
        return []
    rest = [table for table, way in ways.items() if way != "each"]
    size = sum(4 * table.rows * table.dim for table in rest)
    if size <= SMALL_BYTES and all(ways[table] == "auto" for table in rest):
        return list(ways)
    return [table for table in ways if table not in rest]


def lay_out_everywhere(tables: Sequence[Table], world: int) -> Layout:
    """Tables of one width, all of which each of so many ranks has, in their order."""
    stretches, at = [], 0
    for table in tables:
        stretches += [Stretch(table.name, 0, table.rows, rank, at) for rank in range(world)]
        at += table.rows
    return Layout(tuple(tables), tuple(stretches), (at,) * world, everywhere=True)


def _by_rows(table: Table, own: list[int]) -> list[Stretch]:
    """A table cut into as equal stretches as there are ranks, between buckets where it has some; `own` are their rows
    so far, and grow."""
    ends = edges_of(table.rows).tolist() if table.keyed is not None else range(table.rows + 1)
    last = len(ends) - 1
    size = -(-last // len(own))
    found = []
    for rank, at in enumerate(own):
        start, stop = ends[min(rank * size, last)], ends[min((rank + 1) * size, last)]
        if start < stop:
            found.append(Stretch(table.name, start, stop, rank, at))
            own[rank] += stop - start
    return found
