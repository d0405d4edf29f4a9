"""CSV, TSV and Parquet files as one source of columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.columns import Arrays, BadColumn, BadValue, BlockFile, ColumnSource, Encoder, gathered
from drivetrain.data.columns_csv import CsvBlocks, CsvFormat, csv_index, wider
from drivetrain.data.columns_parquet import QUESTION, ParquetBlocks, parquet_index
from drivetrain.data.fingerprint import FileStamp, combined, remembered_each
from drivetrain.data.hashing import hash_strings
from drivetrain.data.recipe import ColumnFiles
from drivetrain.data.rows import no_column, plain_files
from drivetrain.data.saved import import_arrow
from drivetrain.data.split import choose, marks
from drivetrain.spec.exits import Exit, Failure

_VALUE_HINT = "mend the value, or read the column as another kind"
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".txt": "csv"}


def open_columns(settings: ColumnFiles, cache: Path) -> ColumnSource:
    """The rows of all files. The first start decodes them once, to find blocks and damage and to take digests.

    Raises Failure(66) where a file or pyarrow is missing, 65 where one is damaged, lacks a column, or there is no row.
    """
    import_arrow()
    paths = plain_files(_given(settings.path), settings.include, "text")
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise Failure(Exit.BAD_DATA, f"{settings.path} names {twice[0]} twice", "name each file once", file=twice[0])
    files = FilesOfColumns(_opened(paths, settings, cache), settings, cache)
    if not files.counts.sum():
        cause = f"{settings.path} has no row"
        if settings.part != "all" and files.total:
            cause = f"{settings.path}: none of {files.total} samples is in {settings.part}"
        raise Failure(Exit.BAD_DATA, cause, "a source needs at least one; look at part and split")
    return ColumnSource(files)


def common_nulls(sources: Sequence[Any]) -> tuple[str, ...]:
    """The texts that stand for no value in all of these sources: those are CSV files then, as far as names say so."""
    found: set[str] | None = None
    for source in sources:
        own: set[str] = set()
        if isinstance(source, ColumnFiles):
            kinds = {source.format or _FORMATS.get(Path(path).suffix.lower()) for path in _given(source.path)}
            own = set(source.nulls) if kinds <= {"csv", "tsv"} else set()
        found = own if found is None else found & own
    return tuple(sorted(found or ()))


def _given(path: str) -> list[str]:
    """The paths, patterns and folders that are meant."""
    if Path(path).exists():  # whatever its name has in it
        return [path]
    return [one.strip() for one in path.split(",")]


def named_files(settings: ColumnFiles, path: str) -> ColumnFiles:
    """How a recipe's settings read other files, whose name says what they are: of another kind than the recipe's, they
    are read by that. What chooses a part of the recipe's files is left out."""
    kind, own = _FORMATS.get(Path(path).suffix.lower()), _FORMATS.get(Path(settings.path).suffix.lower())
    settings = replace(settings, key=None, columns=None)
    if kind is None or kind == (settings.format or own):
        return settings
    return replace(settings, format=None, delimiter=None)


def _opened(paths: Sequence[str], settings: ColumnFiles, cache: Path) -> list[BlockFile]:
    forms: dict[CsvFormat | None, list[str]] = {}
    for path in paths:
        forms.setdefault(_form(path, settings), []).append(path)
    found: dict[str, BlockFile] = {}
    for form, own in forms.items():
        if form is None:
            for path, index in zip(own, remembered_each(own, cache, QUESTION, parquet_index), strict=True):
                found[path] = ParquetBlocks(FileStamp.now(path), json.loads(index))
        else:
            indexes = remembered_each(own, cache, form.question, partial(csv_index, form=form))
            for path, index in zip(own, indexes, strict=True):
                found[path] = CsvBlocks(FileStamp.now(path), json.loads(index), form)
    return [found[path] for path in paths]


def _form(path: str, settings: ColumnFiles) -> CsvFormat | None:
    """How a CSV file is read; None for Parquet. Raises Failure(65) where nothing says what it is."""
    suffix = Path(path).suffix.lower()
    kind = settings.format or _FORMATS.get(suffix)
    if kind is None:
        raise Failure(Exit.BAD_DATA, f"{path}: its name does not say what it is", "say it by `format`", file=path)
    if kind == "parquet":
        return None
    delimiter = settings.delimiter
    if delimiter is None:
        delimiter = "\t" if kind == "tsv" or suffix in (".tsv", ".txt") else ","
    return CsvFormat(delimiter, settings.quotes, settings.header, settings.nulls, settings.malformed == "skip")


class FilesOfColumns:
    """The blocks of all files, numbered through, and which of their rows are of the part that is read."""

    def __init__(self, files: Sequence[BlockFile], settings: ColumnFiles, cache: Path) -> None:
        """Raises Failure(65) where a file lacks a column."""
        self.settings, self._files = settings, list(files)
        self.schema: Mapping[str, str] = _schema(files)
        self.notes = tuple(note for file in files for note in file.notes)
        self._names = list(settings.columns if settings.columns is not None else self.schema)
        self.require(self._names if settings.key is None else [*self._names, settings.key])
        blocks = [len(file.rows) for file in files]
        self._first_blocks = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        rows = np.concatenate([file.rows for file in files])
        self._firsts = np.cumsum(rows) - rows
        self.total = int(rows.sum())
        self.counts = self._sizes = rows
        self.fingerprint = combined([file.fingerprint for file in files])
        if settings.part != "all":
            self.fingerprint = combined([self.fingerprint, *marks(settings), settings.key or ""])
            self.counts = self._counted(cache)

    def require(self, columns: Sequence[str]) -> None:
        """Raises Failure(65) where a file lacks a column."""
        for file in self._files:
            for name in columns:
                if file.schema and name not in file.schema:
                    raise _missing(name, file)

    def table(self, number: int) -> Any:
        """A block's rows as a `pyarrow.Table`: CSV columns as numbers where all files' values are some."""
        return self._taken(number, self._kinds(number, self._names))

    def as_written(self, number: int, columns: Sequence[str]) -> Any:
        """A block's rows as a `pyarrow.Table` of these columns: of Parquet files as they are, where there is a CSV file
        as text, in which a null is what `nulls` says."""
        if any(isinstance(file, CsvBlocks) for file in self._files):
            return self._taken(number, dict.fromkeys(columns, "string"))
        return self._taken(number, self._kinds(number, columns))

    def encode(self, number: int, encoder: Encoder) -> Arrays:
        """A block's rows as the arrays that an encoder makes of them. Raises Failure(65) that names a row's place."""
        table, rows = self._decoded(number, dict(encoder.columns))
        arrays = self._named(number, lambda: encoder.encode(table))
        if rows is None:
            return arrays
        return gathered(arrays, rows)

    def place(self, number: int, row: int) -> str:
        """Where a row of a block stands, in words."""
        rows = self._rows(number, None)
        file, block = self._file(number)
        return file.place(block, row if rows is None else int(rows[row]))

    def _kinds(self, number: int, columns: Sequence[str]) -> dict[str, str | None]:
        """What columns of a block are read as, so that they are alike in all files; None: what they are."""
        kinds: dict[str, str | None] = {}
        for name in columns:
            kinds[name] = None
            if self.schema[name] != self._file(number)[0].schema[name]:
                kinds[name] = {"int64": "integer", "double": "number"}.get(self.schema[name], "string")
        return kinds

    def _taken(self, number: int, kinds: Mapping[str, str | None]) -> Any:
        table, rows = self._decoded(number, kinds)
        return table if rows is None else table.take(rows)

    def _file(self, number: int) -> tuple[BlockFile, int]:
        """The file that a block is in, and its number there."""
        owner = int(self._first_blocks.searchsorted(number, side="right")) - 1
        return self._files[owner], number - int(self._first_blocks[owner])

    def _decoded(self, number: int, kinds: Mapping[str, str | None]) -> tuple[Any, np.ndarray | None]:
        """A block as a table, and which of its rows are of the part that is read; None: all."""
        key = self.settings.key
        if self.settings.part == "all" or key is None or kinds.get(key, "string") != "string":
            return self._read(number, kinds), self._rows(number)
        table = self._read(number, {**kinds, key: "string"})
        return table.select(list(kinds)), self._rows(number, table)

    def _read(self, number: int, kinds: Mapping[str, str | None]) -> Any:
        file, block = self._file(number)
        return self._named(number, lambda: file.decode(block, kinds))

    def _named(self, number: int, made: Callable[[], Any]) -> Any:
        """What is made of a block. Raises Failure(65) that says where the value is which it cannot be made of."""
        file, block = self._file(number)
        try:
            return made()
        except BadValue as error:
            place = file.place(block, error.row)
            cause = f"{place}: column {error.column!r}: {error.why}"
            raise Failure(Exit.BAD_DATA, cause, _VALUE_HINT, file=place) from error
        except BadColumn as error:
            raise Failure(Exit.BAD_DATA, f"{file.path}: {error}", "read it as another kind", file=file.path) from error

    def _rows(self, number: int, table: Any = None) -> np.ndarray | None:
        """Which rows of a block are of the part that is read, ascending; None: all. `table` has the key, if it is there
        already."""
        settings, first, count = self.settings, int(self._firsts[number]), int(self._sizes[number])
        if settings.part == "all":
            return None
        if settings.by == "range":
            chosen = choose(self.total, settings)
            assert isinstance(chosen, range)
            return np.arange(max(chosen.start, first), min(chosen.stop, first + count)) - first
        keys = np.arange(first, first + count, dtype=np.uint64)
        if settings.key is not None:
            if table is None:
                table = self._read(number, {settings.key: "string"})
            keys = _hashed(table.column(settings.key))
        return np.asarray(choose(count, settings, keys))

    def _counted(self, cache: Path) -> np.ndarray:
        """How many rows of each block are of the part. Those that follow from a key are remembered for each file."""
        if self.settings.key is None:
            return np.array([len(self._rows(number)) for number in range(len(self._sizes))], np.int64)  # type: ignore[arg-type]
        counts: list[int] = []
        for file, first in zip(self._files, self._first_blocks.tolist(), strict=False):
            numbers = range(first, first + len(file.rows))

            def counted(_: str, numbers: range = numbers) -> str:
                return json.dumps([len(self._rows(number)) for number in numbers])  # type: ignore[arg-type]

            question = json.dumps(["columns part 1", self.settings.key, *marks(self.settings), file.fingerprint])
            counts += json.loads(remembered_each([file.path], cache, question, counted)[0])
        return np.array(counts, np.int64)


def _hashed(column: Any) -> np.ndarray:
    """A key for each value of a column of strings, uint64."""
    import pyarrow as pa

    (chunk,) = column.cast(pa.string()).chunks or [pa.array([], pa.string())]
    return hash_strings(chunk)


def _schema(files: Sequence[BlockFile]) -> dict[str, str]:
    """The columns of the first file that has some, each of the narrowest type that holds it in all files."""
    schema: dict[str, str] = {}
    for file in files:
        if not schema:
            schema = dict(file.schema)
        for name in schema:
            other = file.schema.get(name, schema[name])
            if other != schema[name]:
                schema[name] = wider(schema[name], other)
    return schema


def _missing(name: str, file: BlockFile) -> Failure:
    failure = no_column(name, list(file.schema), file.path)
    if len(file.schema) > 1 or not isinstance(file, CsvBlocks):
        return failure
    cause = f"{failure.outcome.cause}: its first line is one column"
    return Failure(Exit.BAD_DATA, cause, "look at `delimiter`", file=file.path)
