"""Embedding tables as a module: plain where nobody moves their rows apart, so that models read and export as usual."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.engine.tables.keyed_recipe import Keyed
from drivetrain.engine.tables.keys import BUCKETS, KEY, TAKEN, bucket_of, edges_of, empty_lines
from drivetrain.runtime.mix import mix
from drivetrain.spec.exits import Exit, Failure

Pooling = Literal["sum", "mean", "none"]
BLOCK = 4096
"""Rows whose initial numbers are drawn together, so that whoever holds some of a table draws little more than those."""
_INITIAL_ROWS = 1 << 39
"""A place in the seeds' path that neither a step nor an initial weight has."""


@dataclass(frozen=True)
class Table:
    """A table of `rows` vectors of `dim` numbers. They begin uniform in +-`bound`; None: rows ** -0.5.

    `keyed`: ids are no rows but keys, whole numbers from 0 to 2^63 - 1, which get rows as they come. Of the rows, at
    least 128, 64 are those of keys that have none. Raises Failure(78) where there are fewer.
    """

    name: str
    rows: int
    dim: int
    bound: float | None = None
    keyed: Keyed | None = None

    def __post_init__(self) -> None:
        if self.keyed is not None and self.rows < 2 * BUCKETS:
            cause = f"table {self.name!r} has {self.rows} rows, and its keys are divided among {BUCKETS} buckets"
            raise Failure(Exit.BAD_RECIPE, cause, f"give it {2 * BUCKETS} rows or more")

    @property
    def reach(self) -> float:
        """The largest number that a row begins at."""
        return self.rows**-0.5 if self.bound is None else self.bound


@dataclass(frozen=True)
class Lookup:
    """Which table a feature's ids are rows of, and what becomes of a sample's rows: their sum, mean, or each one."""

    feature: str
    table: str
    pooling: Pooling = "sum"


class Ids(NamedTuple):
    """What one batch looks up in a module's tables: the arguments of `Embeddings.forward`."""

    ids: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] = MappingProxyType({})


class Embeddings(nn.Module):
    """Tables, and the features that are looked up in them.

    It is built without memory: `draw` gives it whole tables, the engine gives each rank the rows that it holds. The
    parameter of a table is `table_<name>`, [rows, dim]: names alone may be those of methods. That of a keyed table has
    others beside it: `keys_<name>`, a line for each row, `waiting_<name>`, those of keys without one, `clock_<name>`.
    """

    engine: Callable[[Ids], dict[str, Tensor]] | None = None
    """What answers in a table's place, while a step or an evaluation is under way that shares rows out."""

    def __init__(self, tables: Sequence[Table], lookups: Sequence[Lookup]) -> None:
        super().__init__()
        self.tables = {table.name: table for table in tables}
        self.lookups = tuple(lookups)
        self._sorted: dict[str, SortedKeys] = {}
        for table in tables:
            self.put(table.name, nn.Parameter(torch.empty(table.rows, table.dim, device="meta")))
            if table.keyed is not None:
                self.put_keys(table.name, empty_keys(table, "meta"))

    def put(self, table: str, parameter: nn.Parameter) -> None:
        """Let this be a table's parameter: all of its rows, or those that are here."""
        self.register_parameter(parameter_name(table), parameter)

    def put_keys(self, table: str, tensors: Mapping[str, Tensor]) -> None:
        """Let these be what is known of a table's keys: all of them, or those that are here. No optimizer moves it, but
        it is no buffer: ranks have different ones, and training changes them."""
        for kind, tensor in tensors.items():
            self.register_parameter(f"{kind}_{table}", nn.Parameter(tensor, requires_grad=False))

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Give every table memory of its own, and its initial numbers."""
        for name, table in self.tables.items():
            self.put(name, nn.Parameter(initial_rows(table, seed, 0, table.rows)))
            if table.keyed is not None:
                self.put_keys(name, empty_keys(table, "cpu"))

    def forward(
        self, ids: Mapping[str, Tensor], weights: Mapping[str, Tensor] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        """What the ids of each feature come to.

        `ids[feature]` are int64 [samples], or [samples, length] with -1 where there is none; `weights[feature]` float32
        of the same shape. Gives [samples, dim]; with pooling "none" [samples, length, dim], zeros where no id is.
        Features are in the order of the lookups.
        """
        if self.engine is not None:
            answer = self.engine(Ids(ids, weights))  # in an order that who holds what makes
            return {lookup.feature: answer[lookup.feature] for lookup in self.lookups}
        found = {}
        for lookup in self.lookups:
            feature = lookup.feature
            table, own = self.get_parameter(parameter_name(lookup.table)), ids[feature]
            if self.tables[lookup.table].keyed is not None:
                own = self._rows_of_keys(lookup.table, own)
            found[feature] = pooled(table, own, weights.get(feature), lookup.pooling)
        return found

    def _rows_of_keys(self, table: str, keys: Tensor) -> Tensor:
        """The rows of a whole table that keys have, or share with others; -1 stays what it is."""
        known = self._sorted_keys(table, self.get_parameter(f"keys_{table}"))
        return rows_of_keys(keys, known.keys, known.order)

    def _sorted_keys(self, table: str, lines: Tensor) -> SortedKeys:
        """The keys of a table, which are sorted once as long as they stay the same. A graph has them sorted in it."""
        if torch.compiler.is_compiling():
            return SortedKeys(lines, 0, *torch.sort(lines[:, KEY]))
        known = self._sorted.get(table)
        if known is None or known.lines is not lines or known.version != lines._version:
            known = self._sorted[table] = SortedKeys(lines, lines._version, *torch.sort(lines[:, KEY]))
        return known


class SortedKeys(NamedTuple):
    """The keys of `lines` in order, and where each was; those of one `version` of them."""

    lines: Tensor
    version: int
    keys: Tensor
    order: Tensor


def rows_of_keys(keys: Tensor, known: Tensor, order: Tensor) -> Tensor:
    """The rows of a whole table that keys have, or share with others; -1 stays what it is. `known` are what the rows
    have for keys, ascending, and `order` says whose each is: int64 [rows]."""
    places = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
    shared = bucket_of(keys) * len(known) // BUCKETS
    rows = torch.where(known[places] == keys, order[places], shared)
    return torch.where(keys < 0, keys, rows)


def tables_in(network: nn.Module) -> set[nn.Parameter]:
    """The parameters of a network that are tables, which no mesh cuts: ranks share rows out by themselves."""
    found: set[nn.Parameter] = set()
    for module in network.modules():
        if isinstance(module, Embeddings):
            found.update(module.parameters())
    return found


def parameter_name(table: str) -> str:
    """What a table's parameter is called in its module."""
    return f"table_{table}"


def key_names(table: str) -> list[str]:
    """What the tensors are called in their module that tell of a table's keys."""
    return [f"{kind}_{table}" for kind in ("keys", "waiting", "clock")]


def waiting_lines(table: Table) -> int:
    """How many keys of a keyed table may wait for a row."""
    keyed = table.keyed
    if keyed is None or (keyed.admit.count == 1 and keyed.evict is None):
        return 0
    return keyed.admit.waiting or table.rows


def empty_keys(table: Table, device: str) -> dict[str, Tensor]:
    """What is known of a whole table's keys before any has come."""
    keys, waiting = empty_lines(table.rows, device), empty_lines(waiting_lines(table), device)
    keys[edges_of(table.rows)[:-1], KEY] = TAKEN
    return {"keys": keys, "waiting": waiting, "clock": torch.zeros((), dtype=torch.int64, device=device)}


def pooled(table: Tensor, ids: Tensor, weights: Tensor | None, pooling: Pooling) -> Tensor:
    """Rows of a table [rows, dim] by ids; shapes are as in `Embeddings.forward`. The mean is that over the ids that are
    there, weighted or not; of none it is zero."""
    if ids.dim() == 1 and weights is None:
        return F.embedding(ids, table).float()
    there = ids >= 0
    found = F.embedding(ids.clamp(min=0), table).float()  # of rows that are bf16, too
    share = there.to(found.dtype)
    if weights is not None:
        share = share * weights
    found = found * share.unsqueeze(-1)
    if pooling == "none" or ids.dim() == 1:
        return found
    total = found.sum(1)
    if pooling == "mean":
        total = total / there.sum(1, keepdim=True).clamp(min=1)
    return total


def initial_rows(table: Table, seed: int, start: int, stop: int) -> Tensor:
    """The initial numbers of a table's rows from `start` to `stop`, float32 [stop - start, dim]: a function of the
    run's seed, the table's name and the place, whoever holds the rows."""
    number = int.from_bytes(hashlib.sha256(table.name.encode()).digest()[:7], "little")
    bound = table.reach
    drawn = torch.empty(stop - start, table.dim)
    generator = torch.Generator()
    for first in range(start // BLOCK * BLOCK, stop, BLOCK):
        generator.manual_seed(mix(seed, _INITIAL_ROWS, number, first // BLOCK))
        block = torch.rand(min(BLOCK, table.rows - first), table.dim, generator=generator)
        inside = block[max(0, start - first) : stop - first]
        at = max(0, first - start)
        drawn[at : at + len(inside)] = inside.mul_(2 * bound).sub_(bound)
    return drawn
