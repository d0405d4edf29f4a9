"""Streams whose items are rows with a place: as dicts, or as columns that an encoder of the task's makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drivetrain.data.column_types import read_as
from drivetrain.data.columns import ROW, BadColumn, BadValue, Columns, Encoder
from drivetrain.data.fingerprint import combined
from drivetrain.data.stream import Cursor, HeldSource, Opener, StreamSource
from drivetrain.spec.exits import Exit, Failure

_HINT = "mend what writes it, or read the column as another kind"


class Record(dict[str, Any]):
    """A row, and where it stands, in words."""

    def __init__(self, values: dict[str, Any], place: str) -> None:
        super().__init__(values)
        self.place = place


class RecordStream(StreamSource):
    """A stream of `Record`s. With an encoder its samples are one `Columns`."""

    def __init__(
        self, opener: Opener, kind: str, seed: int, notes: tuple[str, ...] = (), encoder: Encoder | None = None
    ) -> None:
        """`notes` say what is left out."""
        super().__init__(opener, kind, seed, "")
        self._given, self._encoder = (opener, kind, seed, notes), encoder
        self.notes = notes
        if encoder is not None:
            self.fingerprint = combined([self.fingerprint, encoder.digest])

    def encoded(self, encoder: Encoder) -> RecordStream:
        """The same rows as arrays that an encoder makes."""
        return RecordStream(*self._given, encoder)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Any:
        """The samples with these ids. Raises Failure(65) where one cannot be read or encoded, or is not there."""
        rows = super().read(ids, positions)
        if self._encoder is None:
            return rows
        return _encoded(rows, ids, self._encoder)

    def first_samples(self, count: int) -> HeldRecords:
        """The first samples, at most so many, as a source that keeps them."""
        return HeldRecords(Cursor(self.stream, 0, 1).fetch(0, count))


class HeldRecords(HeldSource):
    """The first rows of a stream, in memory."""

    def __init__(self, samples: Sequence[Any], encoder: Encoder | None = None) -> None:
        super().__init__(samples)
        self._rows, self._encoder = samples, encoder
        if encoder is not None:
            self.fingerprint = combined([self.fingerprint, encoder.digest])

    def encoded(self, encoder: Encoder) -> HeldRecords:
        """The same rows as arrays that an encoder makes."""
        return HeldRecords(self._rows, encoder)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Any:
        """The samples with these ids."""
        rows = super().read(ids, positions)
        if self._encoder is None:
            return rows
        return _encoded(rows, ids, self._encoder)


def _encoded(rows: Sequence[Record], ids: np.ndarray, encoder: Encoder) -> Columns:
    """Raises Failure(65) that names the place of a row which cannot be read as the encoder wants it."""
    import pyarrow as pa

    try:
        columns = {name: _column(rows, name, kind) for name, kind in encoder.columns.items()}
        arrays = encoder.encode(pa.table(columns))
    except BadValue as error:
        place = rows[error.row].place
        raise Failure(Exit.BAD_DATA, f"{place}: column {error.column!r}: {error.why}", _HINT) from error
    return Columns({**arrays, ROW: ids.astype(np.int64)})


def _column(rows: Sequence[Record], name: str, kind: str) -> Any:
    """A column of one chunk, read as one of the kinds of `Encoder.columns`. Raises BadValue."""
    import pyarrow as pa

    for number, row in enumerate(rows):
        if name not in row:
            raise BadValue(number, name, f"there is none; there are {', '.join(row)}")
    values = [row[name] for row in rows]
    try:
        return read_as(pa.chunked_array([pa.array(values)]), kind, name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, BadColumn):
        pass  # of several types, each of which may be readable, or one is the reason
    read: list[Any] = []
    for number, value in enumerate(values):
        try:
            read += read_as(pa.chunked_array([pa.array([value])]), kind, name).to_pylist()
        except (pa.ArrowInvalid, pa.ArrowTypeError, BadColumn, BadValue) as error:
            why = getattr(error, "why", f"{value!r} cannot be read as {kind}")
            raise BadValue(number, name, why) from error
    plain = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}
    return pa.chunked_array([pa.array(read, plain.get(kind))])
