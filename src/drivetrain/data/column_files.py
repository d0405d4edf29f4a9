"""CSV, TSV and Parquet files as one source of columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.columns import Arrays, BadColumn, BadValue, BlockFile, ColumnSource, Encoder, gathered
from drivetrain.data.columns_csv import CsvBlocks, CsvFormat, csv_index, wider
from drivetrain.data.columns_parquet import QUESTION, ParquetBlocks, parquet_index
from drivetrain.data.fingerprint import FileStamp, combined, remembered_each
from drivetrain.data.recipe import ColumnFiles
from drivetrain.data.remote import find_remote, is_url, local_path, suffix_of
from drivetrain.data.row_choice import RowChoice
from drivetrain.data.rows import no_column, plain_files
from drivetrain.data.saved import import_arrow
from drivetrain.data.split import marks
from drivetrain.spec.exits import Exit, Failure

_VALUE_HINT = "mend the value, or read the column as another kind"
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".txt": "csv"}


def open_columns(settings: ColumnFiles, cache: Path) -> ColumnSource:
    """The rows of all files. The first start decodes them once, to find blocks and damage and to take digests.

    Raises Failure(66) where a file or pyarrow is missing, 65 where one is damaged, lacks a column, or there is no row.
    """
    import_arrow()
    paths = _paths(settings)
    # Overlapping patterns would train on rows twice, and nobody would see it.
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise Failure(Exit.BAD_DATA, f"{settings.path} names {twice[0]} twice", "name each file once", file=twice[0])
    files = FilesOfColumns(_opened(paths, settings, cache), settings, cache)
    if not files.counts.sum():
        cause, hint = f"{settings.path} has no row", "a source needs at least one"
        if files.dear:
            cause = f"{settings.path}: all samples cost more than they may, and are left out"
        elif settings.part != "all" and files.total:
            cause = f"{settings.path}: none of {files.total} samples is in {settings.part}"
            hint += "; look at part and split"
        raise Failure(Exit.BAD_DATA, cause, hint)
    return ColumnSource(files)


def common_nulls(sources: Sequence[Any]) -> tuple[str, ...]:
    """The texts that stand for no value in all of these sources: those are CSV files then, as far as names say so."""
    found: set[str] | None = None
    for source in sources:
        own: set[str] = set()
        if isinstance(source, ColumnFiles):
            kinds = {source.format or _FORMATS.get(suffix_of(path)) for path in given_paths(source.path)}
            own = set(source.nulls) if kinds <= {"csv", "tsv"} else set()
        found = own if found is None else found & own
    return tuple(sorted(found or ()))


def _paths(settings: ColumnFiles) -> list[str]:
    """The files that paths, patterns, folders and URLs mean."""
    found: list[str] = []
    for given in given_paths(settings.path):
        if is_url(given := local_path(given)):
            found += find_remote(given, settings.include)
        else:
            found += plain_files([given], settings.include, "text")
    return found


def given_paths(path: str) -> list[str]:
    """The paths, patterns, folders and URLs of a list with commas."""
    if Path(path).exists():  # whatever its name has in it
        return [path]
    return [one.strip() for one in path.split(",")]


def named_files(settings: ColumnFiles, path: str) -> ColumnFiles:
    """How a recipe's settings read other files, whose name says what they are: of another kind than the recipe's, they
    are read by that. What chooses a part of the recipe's files is left out."""
    kind, own = _FORMATS.get(suffix_of(path)), _FORMATS.get(suffix_of(settings.path))
    settings = replace(settings, key=None, columns=None)
    if kind is None or kind == (settings.format or own):
        return settings
    return replace(settings, format=None, delimiter=None)


def _opened(paths: Sequence[str], settings: ColumnFiles, cache: Path) -> list[BlockFile]:
    forms: dict[CsvFormat | None, list[str]] = {}
    for path in paths:
        # By form: the answers of files that are read alike are looked up, and written down, together.
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
    suffix = suffix_of(path)
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
    """The blocks of all files, numbered through, and which of their rows are read."""

    def __init__(self, files: Sequence[BlockFile], settings: ColumnFiles, cache: Path) -> None:
        """Raises Failure(65) where a file lacks a column."""
        self.settings, self._files = settings, list(files)
        self.schema: Mapping[str, str] = _schema(files)
        self.notes = tuple(note for file in files for note in file.notes)
        self._names = list(settings.columns if settings.columns is not None else self.schema)
        blocks = [len(file.rows) for file in files]
        self._first_blocks = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        self.counts = np.concatenate([file.rows for file in files])
        self._choice = RowChoice(settings, self.counts)
        self.require([*self._names, *filter(None, [settings.key]), *self._choice.columns])
        self.total, self.dear = self._choice.total, 0
        self.fingerprint = combined([file.fingerprint for file in files])
        if settings.part != "all":
            self.fingerprint = combined([self.fingerprint, *marks(settings), settings.key or ""])
        if settings.cost is not None:
            self.fingerprint = combined([self.fingerprint, json.dumps(asdict(settings.cost))])
        if settings.part != "all" or settings.cost is not None:
            self.counts, dear = self._counted(cache).reshape(-1, 2).T
            self.dear = int(dear.sum())
        if self.dear and settings.cost is not None:
            self.notes += (f"{self.dear} samples of {settings.path} cost more than {settings.cost.most}: left out",)

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

    def costs(self) -> np.ndarray | None:
        """What each row costs, int64; None where nobody has said it. Raises Failure(65) that names a row's place."""
        if self.settings.cost is None:
            return None
        parts = []
        for number in range(len(self.counts)):
            table = self._read(number, self._choice.columns)
            costs, rows = self._choice.costs(table), self._rows(number, table)
            parts.append(costs if rows is None else costs[rows])
        return np.concatenate(parts)

    def _decoded(self, number: int, kinds: Mapping[str, str | None]) -> tuple[Any, np.ndarray | None]:
        """A block as a table, and which of its rows are read; None: all."""
        # One decoding serves both, unless the choice reads a column as another kind than who asks does.
        beside = self._choice.columns
        if any(kinds.get(name, kind) != kind for name, kind in beside.items()):
            return self._read(number, kinds), self._rows(number)
        table = self._read(number, {**kinds, **beside})
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
            raise Failure(Exit.BAD_DATA, cause, error.hint or _VALUE_HINT, file=place) from error
        except BadColumn as error:
            raise Failure(Exit.BAD_DATA, f"{file.path}: {error}", "read it as another kind", file=file.path) from error

    def _rows(self, number: int, table: Any = None) -> np.ndarray | None:
        """Which rows of a block are read, ascending; None: all. `table` has the columns of the choice, if they are
        there already."""
        if table is None and self._choice.columns:
            table = self._read(number, self._choice.columns)
        return self._named(number, lambda: self._choice.rows(number, table))

    def _counted(self, cache: Path) -> np.ndarray:
        """How many rows of each block are read, and how many of its part are left out, int64 [blocks, 2]. What follows
        from columns is remembered for each file."""
        settings, choice = self.settings, self._choice
        if not choice.columns:
            return np.array([choice.count(number, None) for number in range(len(self.counts))], np.int64)

        def count(number: int) -> list[int]:
            return choice.count(number, self._read(number, choice.columns))

        counts: list[list[int]] = []
        for file, first in zip(self._files, self._first_blocks.tolist(), strict=False):
            numbers = range(first, first + len(file.rows))

            def counted(_: str, numbers: range = numbers) -> str:
                return json.dumps([self._named(number, partial(count, number)) for number in numbers])

            # All that decides the answer is in the question: another seed, share or key asks anew. The 2 is the rule's
            # version.
            told = ["columns part 2", settings.key, *marks(settings), file.fingerprint]
            if settings.cost is not None:
                told.append(asdict(settings.cost))
            if settings.key is None and numbers:
                # Without a key a row's part follows from its number over all files, so also from the files before it.
                told.append(choice.place(first))
            counts += json.loads(remembered_each([file.path], cache, json.dumps(told), counted)[0])
        return np.array(counts, np.int64)


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
