"""Rows of CSV and Parquet files as columns: arrays of many rows, which an encoder of the task's makes block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

ROW = "row"
"""What `Columns.arrays` calls the samples' numbers."""


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


class BadValue(Exception):  # noqa: N818 - it is a value, and who reads the file makes an error of it
    """A value that an encoder cannot take: which row of the block it was given (from 0 on), which column, and why."""

    def __init__(self, row: int, column: str, why: str) -> None:
        super().__init__(f"row {row}: column {column!r}: {why}")
        self.row, self.column, self.why = row, column, why


class Encoder(Protocol):
    """What makes arrays of decoded columns: pure, and pickled for data workers."""

    columns: Mapping[str, str]
    """The columns that are read, and as what: `string`, `integer` (int64), `number` (float64), or `list`, which is as
    the file has it: a list of any of these or, in CSV, a string that the encoder splits."""
    digest: str
    """Of all that decides what `encode` gives."""

    def encode(self, table: Any) -> dict[str, np.ndarray | Ragged]:
        """The arrays of a `pyarrow.Table`: one block, whose columns have one chunk each.

        Strings come as `string` or as `dictionary<int32, string>`. Raises BadValue.
        """
        ...


class Columns(Sequence[dict[str, Any]]):
    """Samples as columns: `arrays` by name, with the samples along the first dimension. `arrays["row"]`, int64, are
    their numbers."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = dict(arrays)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.arrays[ROW])  # type: ignore[arg-type]

    def __getitem__(self, place: Any) -> Any:
        """One sample as a dict, or some of them as `Columns`."""
        if isinstance(place, slice):
            return Columns(gathered(self.arrays, np.arange(len(self))[place]))
        place = range(len(self))[place]
        return {name: _value(column, place) for name, column in self.arrays.items()}


def _value(column: np.ndarray | Ragged, row: int) -> Any:
    if isinstance(column, Ragged):
        return column.values[column.offsets[row] : column.offsets[row + 1]]
    return column[row]


def gathered(arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
    """These rows (int64) of all arrays, copied."""
    found: dict[str, np.ndarray | Ragged] = {}
    for name, column in arrays.items():
        if isinstance(column, Ragged):
            found[name] = _gathered_ragged(column, rows)
        else:
            found[name] = column.take(rows, axis=0)
    return found


def _gathered_ragged(column: Ragged, rows: np.ndarray) -> Ragged:
    starts = column.offsets[rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(column.offsets[rows + 1] - starts, out=offsets[1:])
    # Within a row values stand side by side, so a value's place is its own number and what its row is shifted by.
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
    return Ragged(column.values.take(places, axis=0), offsets)


def concatenated(parts: Sequence[Arrays]) -> dict[str, np.ndarray | Ragged]:
    """The rows of several sets of the same arrays, one after the other."""
    if len(parts) == 1:
        return dict(parts[0])
    found: dict[str, np.ndarray | Ragged] = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if isinstance(columns[0], Ragged):
            found[name] = _concatenated_ragged(columns)  # type: ignore[arg-type]
        else:
            found[name] = np.concatenate(columns)  # type: ignore[arg-type]
    return found


def _concatenated_ragged(columns: Sequence[Ragged]) -> Ragged:
    lengths = [np.diff(column.offsets) for column in columns]
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return Ragged(np.concatenate([column.values for column in columns]), offsets)
