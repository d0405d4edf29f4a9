"""Rows as arrays, and what is told of a value that is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Rows of any length: row k has values[offsets[k] : offsets[k + 1]].

    `offsets` are int64 [rows + 1], from 0 on.
    """

    values: np.ndarray
    offsets: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.offsets.nbytes


Arrays = Mapping[str, "np.ndarray | Ragged"]
"""Arrays [rows], [rows, d] or ragged, by name."""


class BadValue(ValueError):  # noqa: N818 - it is a value, and who reads the file makes an error of it
    """A value that cannot be taken: which row of the block (from 0 on), which column, why, and what to do about it."""

    def __init__(self, row: int, column: str, why: str, hint: str = "") -> None:
        super().__init__(f"row {row}: column {column!r}: {why}")
        self.row, self.column, self.why, self.hint = row, column, why, hint


class Place(NamedTuple):
    """Where values stand, for messages: their column and, where they are those of lists, int64 [rows + 1] of where each
    list begins."""

    column: str
    offsets: np.ndarray | None = None

    def bad(self, index: int, why: str) -> BadValue:
        """That the value at this place is none."""
        row = index
        if self.offsets is not None:
            row = int(np.searchsorted(self.offsets, index, side="right")) - 1
        return BadValue(row, self.column, why)


def gathered(arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
    """These rows (int64) of all arrays, copied."""
    found: dict[str, np.ndarray | Ragged] = {}
    for name, column in arrays.items():
        if isinstance(column, Ragged):
            found[name] = gathered_ragged(column, rows)
        else:
            found[name] = column.take(rows, axis=0, mode="clip")  # all are there, and the check would take longer
    return found


def gathered_ragged(column: Ragged, rows: np.ndarray) -> Ragged:
    """These rows (int64), copied."""
    starts = column.offsets[rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(column.offsets[rows + 1] - starts, out=offsets[1:])
    # Within a row values stand side by side, so a value's place is its own number and what its row is shifted by.
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
    return Ragged(column.values.take(places, axis=0, mode="clip"), offsets)


def padded(lists: Ragged, empty: int) -> np.ndarray:
    """Lists side by side, [rows, longest or 1]."""
    lengths = np.diff(lists.offsets)
    shape = len(lengths), max(1, int(lengths.max(initial=0)))
    found = np.full(shape, empty, lists.values.dtype)
    # Row by row, as the values stand.
    found[np.arange(shape[1]) < lengths[:, None]] = lists.values
    return found
