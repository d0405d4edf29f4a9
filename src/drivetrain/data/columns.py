"""Rows of files as columns: arrays of many rows, which an encoder of the task's makes, block by block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from drivetrain.data.block_cache import BlockCache
from drivetrain.data.fingerprint import combined
from drivetrain.data.lane_order import Blocks, LaneOrder, Window
from drivetrain.data.plain_rows import taken
from drivetrain.data.recipe import ColumnFiles
from drivetrain.serving.arrays import Arrays, Ragged, gathered, gathered_ragged
from drivetrain.serving.arrays import BadValue as BadValue

_AHEAD = 3  # windows, or in the files' order blocks, that are made ahead
_DECODING, _LAYING_OUT = 2, 4  # threads: of the second kind most wait for the first
_LOOKS = 16  # at what is read next, in the time that a window takes

ROW = "row"
"""What `Columns.arrays` calls the samples' numbers."""


class BadColumn(Exception):  # noqa: N818 - it is a column, and who reads the file makes an error of it
    """A column whose type cannot be read as it is to be, in words."""


class Encoder(Protocol):
    """What makes arrays of decoded columns: pure, and pickled for data workers."""

    columns: Mapping[str, str]
    """The columns that are read, and as what: `string`, `integer` (int64), `number` (float32 where a file has these,
    else float64), or `list`, which is as the file has it: a list of any of these or, in CSV, a string that the encoder
    splits."""
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


def _concatenated_ragged(columns: Sequence[Ragged]) -> Ragged:
    lengths = [np.diff(column.offsets) for column in columns]
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return Ragged(np.concatenate([column.values for column in columns]), offsets)


class Stretch(NamedTuple):
    """The rows [start, stop) of arrays."""

    arrays: Arrays
    start: int
    stop: int

    def column(self, name: str) -> np.ndarray | Ragged:
        """One of the arrays; a plain one is a view."""
        column = self.arrays[name]
        if isinstance(column, Ragged):
            offsets = column.offsets[self.start : self.stop + 1]
            return Ragged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        return column[self.start : self.stop]


def concatenated(parts: Sequence[Stretch], types: Mapping[str, np.dtype]) -> dict[str, np.ndarray | Ragged]:
    """The rows of stretches of the same arrays, one after the other; copied, those that are named to these types."""
    found: dict[str, np.ndarray | Ragged] = {}
    for name, first in parts[0].arrays.items():
        columns: list[Any] = [part.column(name) for part in parts]
        if isinstance(first, Ragged):
            found[name] = _concatenated_ragged(columns)
        else:
            found[name] = np.concatenate(columns, dtype=types.get(name))
    return found


class Layout:
    """Lays rows out anew. What it works in is kept, since memory that is written for the first time costs more than the
    work: each thread has its own."""

    def __init__(self) -> None:
        self._own = threading.local()

    def lay_out(self, parts: Sequence[Stretch], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        """These rows (int64) of stretches of the same arrays, one after the other; copied."""
        found: dict[str, np.ndarray | Ragged] = {}
        for name, first in parts[0].arrays.items():
            columns: list[Any] = [part.column(name) for part in parts]
            if isinstance(first, Ragged):
                found[name] = gathered_ragged(_concatenated_ragged(columns), rows)
                continue
            together = columns[0]
            if len(parts) > 1:
                together = self._scratch(sum(map(len, columns)), np.result_type(*columns), first.shape[1:])
                np.concatenate(columns, out=together)
            found[name] = together.take(rows, axis=0, mode="clip")
        return found

    def _scratch(self, count: int, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array [count, *shape] to work in, until the next one is asked for."""
        key, own = f"{kind.str}{shape}", self._own.__dict__
        if key not in own or len(own[key]) < count:
            own[key] = np.empty((count, *shape), kind)
        return own[key][:count]


def narrowed(arrays: Arrays) -> dict[str, np.ndarray | Ragged]:
    """The arrays as they are kept: int64 whose values fit as int32, which takes half the memory and less time."""
    found: dict[str, np.ndarray | Ragged] = {}
    for name, column in arrays.items():
        found[name] = column
        if isinstance(column, np.ndarray) and column.dtype == np.int64 and len(column):
            low, high = int(column.min()), int(column.max())
            if low >= -(1 << 31) and high < 1 << 31:
                found[name] = column.astype(np.int32)
    return found


def scattered(parts: Sequence[tuple[np.ndarray, Arrays]], count: int) -> dict[str, np.ndarray | Ragged]:
    """`count` rows, of which each part has some: where they stand (int64), and their arrays."""
    if len(parts) == 1:
        return dict(parts[0][1])
    found: dict[str, np.ndarray | Ragged] = {}
    back: np.ndarray | None = None
    for name, first in parts[0][1].items():
        columns = [arrays[name] for _, arrays in parts]
        if isinstance(first, Ragged):
            if back is None:
                back = np.argsort(np.concatenate([places for places, _ in parts]))
            found[name] = gathered_ragged(_concatenated_ragged(columns), back)  # type: ignore[arg-type]
            continue
        found[name] = whole = np.empty((count, *first.shape[1:]), np.result_type(*columns))
        for (places, _), column in zip(parts, columns, strict=True):
            whole[places] = column
    return found


class BlockFile(Protocol):
    """One file, in blocks of rows."""

    path: str
    schema: Mapping[str, str]
    """Column -> Arrow type in words; none where the file has no byte."""
    rows: np.ndarray
    """Of each block, int64."""
    fingerprint: str
    notes: tuple[str, ...]

    def decode(self, number: int, columns: Mapping[str, str | None]) -> Any:
        """A block as a `pyarrow.Table` of these columns, each with one chunk, read as the words of `Encoder.columns`;
        None: as the file has them. Raises Failure(65), BadValue, BadColumn."""
        ...

    def place(self, number: int, row: int) -> str:
        """Where a row of a block stands, in words."""
        ...


class BlocksOfFiles(Protocol):
    """The blocks of all files, numbered through."""

    settings: ColumnFiles
    schema: Mapping[str, str]
    counts: np.ndarray
    """The rows of each block that are of the part that is read, int64."""
    fingerprint: str
    notes: tuple[str, ...]

    def require(self, columns: Sequence[str]) -> None:
        """Raises Failure(65) where a file lacks a column."""
        ...

    def table(self, number: int) -> Any:
        """A block's rows as a `pyarrow.Table` of plain columns. Raises Failure(65)."""
        ...

    def as_written(self, number: int, columns: Sequence[str]) -> Any:
        """A block's rows as a `pyarrow.Table` of these columns, those of CSV as text. Raises Failure(65)."""
        ...

    def encode(self, number: int, encoder: Encoder) -> Arrays:
        """A block's rows as arrays. Raises Failure(65)."""
        ...

    def costs(self) -> np.ndarray | None:
        """What each row costs, int64; None where nobody has said it. Raises Failure(65)."""
        ...

    def place(self, number: int, row: int) -> str:
        """Where a row of a block stands, in words."""
        ...


class ColumnSource:
    """Rows of files, or a part of them. Without an encoder samples are dicts of plain values, with one `Columns`.

    Blocks are decoded and encoded whole, by threads: ahead of reads in the files' order, and of those in a `LaneOrder`
    that it follows. There windows are laid out in the order in which they are read, so that a batch is a few slices.
    """

    thread_safe = True

    def __init__(self, files: BlocksOfFiles, encoder: Encoder | None = None, order: LaneOrder | None = None) -> None:
        self._files, self._encoder, self._order = files, encoder, order
        self.schema, self.notes = files.schema, files.notes
        self.blocks = Blocks.of(files.counts, files.settings.window)
        self.fingerprint = files.fingerprint
        if encoder is not None:
            self.fingerprint = combined([files.fingerprint, encoder.digest])
        self._starts = np.concatenate([[0], np.cumsum(files.counts)]).astype(np.int64)
        self._cache: BlockCache[int, Any] = BlockCache(self._block, _bytes_of, files.settings.kept << 20, _DECODING)
        self._windows: BlockCache[Window, Arrays] = BlockCache(self._window, _bytes_of, 0, _LAYING_OUT)
        self._layout = Layout()
        self._types: dict[str, np.dtype] = {}  # of the encoder's arrays
        self._lanes: set[int] = set()  # that have been read
        self._looked = -1

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process decodes blocks of its own."""
        return ColumnSource, (self._files, self._encoder, self._order)

    def encoded(self, encoder: Encoder) -> ColumnSource:
        """The same rows as arrays that an encoder makes.

        Raises Failure(65) where a file lacks a column of the encoder's.
        """
        self._files.require(list(encoder.columns))
        return ColumnSource(self._files, encoder, self._order)

    def following(self, order: LaneOrder) -> ColumnSource:
        """The same rows, that are mostly read in this order."""
        return ColumnSource(self._files, self._encoder, order)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Sequence[dict[str, Any]]:
        """The rows with these numbers."""
        if self._order is not None and self._encoder is not None and self._order.gives(ids, positions):
            return self._read_windows(ids, positions)
        owners = self._starts.searchsorted(ids, side="right") - 1
        numbers = np.unique(owners).tolist()
        if len(ids) > 1 and int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # in the files' order
            self._cache.want(range(numbers[0], min(numbers[-1] + _AHEAD + 1, len(self._starts) - 1)))
            if self._encoder is not None and bool((np.diff(ids) == 1).all()):
                return self._read_slices(ids, numbers)
        if self._encoder is None:
            return taken(self._starts, ids, self._cache.get)
        parts = []
        for number in numbers:
            (places,) = (owners == number).nonzero()
            parts.append((places, gathered(self._cache.get(number), ids[places] - self._starts[number])))
        arrays = scattered(parts, len(ids))
        for name, kind in self._types.items():
            arrays[name] = arrays[name].astype(kind, copy=False)  # type: ignore[union-attr]
        return Columns({**arrays, ROW: ids.astype(np.int64)})

    def place(self, number: int) -> str:
        """FILE:LINE of a row, or its row group and its number in it."""
        block = int(self._starts.searchsorted(number, side="right")) - 1
        return self._files.place(block, number - int(self._starts[block]))

    def costs(self) -> np.ndarray | None:
        """What each row costs, int64, read from the files; None where nobody has said it."""
        return self._files.costs()

    def tables(self) -> Iterator[Any]:
        """All rows as `pyarrow.Table`s of plain columns, block by block."""
        return (self._files.table(number) for number in range(len(self._starts) - 1))

    def as_written(self, columns: Sequence[str]) -> Iterator[Any]:
        """These columns as `pyarrow.Table`s, block by block: as the files have them, in CSV as text.

        Raises Failure(65) where a file lacks one.
        """
        self._files.require(columns)
        return (self._files.as_written(number, columns) for number in range(len(self._starts) - 1))

    def _read_slices(self, ids: np.ndarray, numbers: Sequence[int]) -> Columns:
        """Consecutive rows, which are in these blocks."""
        parts = []
        for number in numbers:
            start = int(self._starts[number])
            first, stop = max(int(ids[0]) - start, 0), min(int(ids[-1]) + 1, int(self._starts[number + 1])) - start
            parts.append(Stretch(self._cache.get(number), first, stop))
        return Columns({**concatenated(parts, self._types), ROW: ids.astype(np.int64)})

    def _read_windows(self, ids: np.ndarray, positions: np.ndarray) -> Columns:
        assert self._order is not None
        runs = list(self._order.runs(int(positions[0]), int(positions[-1]) + 1))
        self._look_ahead(positions, {run.window for run in runs})
        parts = [Stretch(self._windows.get(run.window), run.start, run.stop) for run in runs]
        return Columns({**concatenated(parts, self._types), ROW: ids.astype(np.int64)})

    def _look_ahead(self, positions: np.ndarray, needed: set[Window]) -> None:
        """Have windows made that will be read next, once in a while."""
        order = self._order
        assert order is not None
        looked = int(positions[0]) * _LOOKS // (order.window * order.deal.lanes)
        if looked == self._looked and self._windows.wanted.issuperset(needed):
            return
        self._looked = looked
        self._lanes.update(order.deal.lanes_of(positions))
        self._cache.least = 2 * len(self._lanes)  # a block that has come to its end, and the next one
        # Of few rows a window is a part of one pass: more would be laid out of passes that are far away.
        rows = _AHEAD * min(order.window, order.size)
        ahead = order.windows_ahead(int(positions[0]), self._lanes, rows)
        self._windows.want([*needed, *ahead])

    def _block(self, number: int) -> Any:
        """A block as it is kept: arrays, or without an encoder a table."""
        if self._encoder is None:
            return self._files.table(number)
        arrays = self._files.encode(number, self._encoder)
        for name, column in arrays.items():
            if isinstance(column, np.ndarray):
                self._types.setdefault(name, column.dtype)
        return narrowed(arrays)

    def _window(self, window: Window) -> Arrays:
        """A window's rows in the order in which they are read."""
        assert self._order is not None
        parts = [Stretch(self._cache.get(block), first, stop) for block, first, stop in self._order.pieces(window)]
        return self._layout.lay_out(parts, self._order.shuffled(window))


def _bytes_of(block: Any) -> int:
    if isinstance(block, Mapping):
        return sum(column.nbytes for column in block.values())
    return block.nbytes
