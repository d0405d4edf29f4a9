"""Which rows of files in blocks are read: those of a part, and of them those that do not cost too much."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from drivetrain.data.columns import BadValue
from drivetrain.data.hashing import hash_strings
from drivetrain.data.recipe import ColumnFiles
from drivetrain.data.split import choose

_DEAR_HINT = "raise cost.most, or leave such rows out: over: skip"


class RowChoice:
    """The choice that a source's settings make, block by block; `sizes` are the rows of each block, int64."""

    def __init__(self, settings: ColumnFiles, sizes: np.ndarray) -> None:
        self._settings, self._sizes = settings, sizes
        self._firsts = np.cumsum(sizes) - sizes
        self.total = int(sizes.sum())

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns that it follows from, and what they are read as."""
        found = {}
        if self._settings.part != "all" and self._settings.key is not None:
            found[self._settings.key] = "string"
        if self._settings.cost is not None:
            found[self._settings.cost.column] = "integer"
        return found

    def rows(self, number: int, table: Any) -> np.ndarray | None:
        """Which rows of a block, of which `table` has the `columns`, are read: ascending; None: all.

        Raises BadValue for a sample without a cost, or one that costs too much and is not left out.
        """
        rows, cost = self.part(number, table), self._settings.cost
        if cost is None:
            return rows
        if rows is None:
            rows = np.arange(self._sizes[number])
        costs = self.costs(table)[rows]
        dear = costs > cost.most
        if dear.any() and cost.over == "stop":
            why = f"the sample costs {costs[dear][0]}, more than {cost.most}"
            raise BadValue(int(rows[dear][0]), cost.column, why, _DEAR_HINT)
        return rows[~dear]

    def count(self, number: int, table: Any) -> list[int]:
        """How many rows of a block are read, and how many of the part are left out. Raises BadValue as `rows`."""
        part, rows = self.part(number, table), self.rows(number, table)
        whole = int(self._sizes[number]) if part is None else len(part)
        kept = whole if rows is None else len(rows)
        return [kept, whole - kept]

    def place(self, number: int) -> list[int]:
        """Where a block lies among all rows: what decides its part where no key does."""
        return [int(self._firsts[number]), self.total]

    def part(self, number: int, table: Any) -> np.ndarray | None:
        """Which rows of a block are of the part that is read; None: all."""
        settings, first, count = self._settings, int(self._firsts[number]), int(self._sizes[number])
        if settings.part == "all":
            return None
        if settings.by == "range":
            chosen = choose(self.total, settings)
            assert isinstance(chosen, range)
            return np.arange(max(chosen.start, first), min(chosen.stop, first + count)) - first
        keys = np.arange(first, first + count, dtype=np.uint64)
        if settings.key is not None:
            keys = _hashed(table.column(settings.key))
        return np.asarray(choose(count, settings, keys))

    def costs(self, table: Any) -> np.ndarray:
        """What each row of a block costs, int64. Raises BadValue for one that has no cost, or a negative one."""
        assert self._settings.cost is not None, "whoever asks has looked"
        column = self._settings.cost.column
        values = table.column(column)
        found = values.fill_null(-1).to_numpy().astype(np.int64)
        if len(found) and found.min() < 0:
            row = int((found < 0).argmax())
            raise BadValue(row, column, f"a sample costs 0 or more, and this one {values[row].as_py()}")
        return found


def _hashed(column: Any) -> np.ndarray:
    """A key for each value of a column of strings, uint64."""
    import pyarrow as pa

    (chunk,) = column.cast(pa.string()).chunks or [pa.array([], pa.string())]
    return hash_strings(chunk)
