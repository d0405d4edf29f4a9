"""What was predicted, written as it comes: lines of text, or row groups of Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Protocol

from drivetrain.data.columns import ColumnSource
from drivetrain.data.saved import import_arrow
from drivetrain.data.source import Source
from drivetrain.ledger.fields import plain
from drivetrain.spec.exits import Exit, Failure

FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")
"""What names of files end in that can be written."""
Rows = list[dict[str, Any]]
_GROUP = 1 << 16
"""Rows of a row group."""


class CopiedColumns:
    """Columns of a source of files, which are to stand before what is predicted of its rows, in their order."""

    def __init__(self, source: Source, columns: Mapping[str, str]) -> None:
        """`columns` has their names in the source by those that they are to have.

        Raises Failure: 64 where the source is none of files of columns, 65 where it lacks one.
        """
        if not isinstance(source, ColumnSource):
            cause = f"--copy takes columns of CSV, TSV and Parquet files, and this is a {type(source).__name__}"
            raise Failure(Exit.BAD_COMMAND, cause, "join them to the predictions by their rows' numbers")
        self.names = list(columns)
        self._columns = list(columns.values())
        self._blocks: Iterator[Any] = source.as_written(list(dict.fromkeys(self._columns)))
        self._block: Any = None

    def take(self, count: int) -> Any:
        """The next so many rows, a `pyarrow.Table`."""
        import pyarrow as pa

        pieces, left = [], count
        while left:
            if self._block is None or not len(self._block):
                self._block = next(self._blocks)
            piece = self._block.slice(0, left)
            self._block, left = self._block.slice(len(piece)), left - len(piece)
            pieces.append(piece.select(self._columns).rename_columns(self.names))
        return pa.concat_tables(pieces)


class _Writer(Protocol):
    def write(self, rows: Rows, copied: Any) -> None: ...

    def close(self) -> None: ...


def write_rows(file: IO[str], blocks: Iterable[Rows], suffix: str, copied: CopiedColumns | None = None) -> int:
    """Write what was predicted as it comes, behind the columns that are copied; how many rows there are.

    Raises Failure: 64 where a copied column is called like something that is predicted, or has lists and the file has
    no place for them, 65 where it has bytes that are no text and the file is one of text, 70 where what is predicted of
    one row cannot stand in a column with that of another.
    """
    writer: _Writer
    if suffix == ".parquet":
        writer = _Groups(file)
    elif suffix == ".jsonl":
        writer = _Lines(file)
    else:
        writer = _Fields(file, "\t" if suffix == ".tsv" else ",")
    count = 0
    for rows in blocks:
        beside = None
        if copied is not None and rows:
            _require_apart(copied.names, rows[0])
            beside = copied.take(len(rows))
        writer.write(rows, beside)
        count += len(rows)
    writer.close()
    return count


def _require_apart(names: list[str], row: Mapping[str, Any]) -> None:
    twice = [name for name in names if name in row]
    if twice:
        cause = f"--copy {twice[0]}: what is predicted has this name, too"
        raise Failure(Exit.BAD_COMMAND, cause, f"give it another one: --copy NAME={twice[0]}")


def _together(rows: Rows, copied: Any) -> Rows:
    """Rows with what is copied in front. Raises Failure(65) for bytes that are no text."""
    import pyarrow as pa

    if copied is None:
        return rows
    for place, field in enumerate(copied.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            copied = copied.set_column(place, field.name, _as_text(field.name, copied.column(place)))
    return [{**before, **row} for before, row in zip(copied.to_pylist(), rows, strict=True)]


def _as_text(name: str, column: Any) -> Any:
    """Bytes as the text that they are."""
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        cause = f"--copy {name}: it has bytes that are no text"
        raise Failure(Exit.BAD_DATA, cause, "write .parquet, which has them as they are, or leave it out") from error


class _Lines:
    """JSON, a line for each row; a number that is not finite is the text of it, as in the ledger."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, rows: Rows, copied: Any) -> None:
        for row in _together(rows, copied):
            # Of what is copied: dates and the like, as they are written.
            try:
                line = json.dumps(row, default=str, allow_nan=False)
            except ValueError:  # few rows need to be looked through
                line = json.dumps(plain(row), default=str)
            self._file.write(line + "\n")

    def close(self) -> None:
        pass


class _Fields:
    """A table of those fields that are numbers or words."""

    def __init__(self, file: IO[str], delimiter: str) -> None:
        self._writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        self._names: list[str] | None = None

    def write(self, rows: Rows, copied: Any) -> None:
        _require_single(copied)
        for row in _together(rows, copied):
            if self._names is None:
                self._names = [name for name, value in row.items() if not isinstance(value, (dict, list))]
                self._writer.writerow(self._names)
            self._writer.writerow([row[name] for name in self._names])

    def close(self) -> None:
        if self._names is None:
            self._writer.writerow([])


def _require_single(copied: Any) -> None:
    """Raises Failure(64) for a column to copy that has lists or the like: a field is one value."""
    import pyarrow as pa

    for field in copied.schema if copied is not None else ():
        if pa.types.is_nested(field.type):
            cause = f"--copy {field.name}: it is {field.type}, and a field of CSV has one value"
            raise Failure(Exit.BAD_COMMAND, cause, "write .jsonl or .parquet, or leave it out")


class _Groups:
    """Parquet: all fields, in row groups that are written when they are full. The first one says of what types they
    are."""

    def __init__(self, file: IO[str]) -> None:
        import_arrow()
        self._file, self._writer, self._held = file, None, []

    def write(self, rows: Rows, copied: Any) -> None:
        import pyarrow as pa

        table = pa.Table.from_pylist(rows)
        if copied is not None:
            for place, name in enumerate(copied.column_names):
                table = table.add_column(place, copied.schema.field(name), copied.column(name))
        self._held.append(table)
        if sum(map(len, self._held)) >= _GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if not self._held:
            return
        try:
            table = pa.concat_tables(self._held, promote_options="permissive")
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self._file.buffer, table.schema)  # type: ignore[attr-defined]
            table = table.select(self._writer.schema.names).cast(self._writer.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
            cause = f"what is predicted of rows cannot stand in one table: {error}"
            raise Failure(Exit.INTERNAL, cause, "predict the same fields of all rows, or write .jsonl") from error
        self._writer.write_table(table)
        self._held = []
