"""Rows of CSV and TSV files as samples, read by their places in the file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.fingerprint import FileStamp, remembered
from drivetrain.data.recipe import Table
from drivetrain.data.rows import chosen, files_of, joined, line_at, stretch
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure

_BOM = b"\xef\xbb\xbf"
_LONGEST = 1 << 24  # characters of a field; the library's own limit is below that of a long document


def open_table(settings: Table, cache: Path) -> Source:
    """The rows of all files, blank lines left out; a sample is a dict of strings by column.

    Each start goes through the files once to find the rows, and keeps 16 bytes for each. Raises Failure(66) where a
    file is missing, 65 with FILE:LINE where a row has another number of fields than there are columns, or is no UTF-8.
    """
    return joined([_opened(path, settings, cache) for path in files_of(settings)], settings)


def _opened(path: str, settings: Table, cache: Path) -> Records:
    seen = FileStamp.now(path)
    index = _index(seen, settings)
    digest = remembered(Path(path), cache, f"table {_question(settings)}", partial(_digest, path, settings))
    names = chosen(settings.columns, index.header, path)
    return Records(seen, index, Format.of(settings, path), tuple(names), digest)


class Format(NamedTuple):
    """How fields are told apart."""

    delimiter: str
    quotes: bool

    @classmethod
    def of(cls, settings: Table, path: str) -> Format:
        """The recipe's, or what the file's name says: `.tsv` has tabs."""
        delimiter = settings.delimiter
        if delimiter is None:
            delimiter = "\t" if Path(path).suffix in (".tsv", ".txt") else ","
        return cls(delimiter, settings.quotes)

    def rows(self, lines: Iterator[str]) -> Iterator[list[str]]:
        """The rows that lines hold. Raises csv.Error where one cannot be read."""
        csv.field_size_limit(_LONGEST)
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=True)


class Index(NamedTuple):
    """A file's columns, and where its rows lie: offsets [rows, 2] in bytes, int64, first and behind the last; `notes`
    say what was left out."""

    header: tuple[str, ...]
    offsets: np.ndarray
    notes: tuple[str, ...]


class Records:
    """One file. It is opened for each read, so nothing is shared between threads and no descriptor is kept."""

    thread_safe = True

    def __init__(self, seen: FileStamp, index: Index, form: Format, columns: tuple[str, ...], fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.notes = index.notes
        self._seen, self._index, self._form, self._columns = seen, index, form, columns
        self._places = [index.header.index(name) for name in columns]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._index.offsets)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, str]]:
        """The rows with these numbers."""
        with self._seen.open() as file:
            found = [_range(file.fileno(), *self._index.offsets[number].tolist()) for number in ids]
        return [self._row(data) for data in found]

    def column(self, name: str) -> Iterator[str]:
        """The values of a column, in order."""
        (place,) = (self._index.header.index(each) for each in chosen([name], self._index.header, self._seen.path))
        with self._seen.open() as file:
            for start, stop in self._index.offsets.tolist():
                yield self._fields(_range(file.fileno(), start, stop))[place]

    def place(self, number: int) -> str:
        """FILE:LINE where a row begins."""
        self._seen.check()
        return line_at(self._seen.path, int(self._index.offsets[number, 0]))

    def _row(self, data: bytes) -> dict[str, str]:
        fields = self._fields(data)
        return {name: fields[place] for name, place in zip(self._columns, self._places, strict=True)}

    def _fields(self, data: bytes) -> list[str]:
        return next(self._form.rows(io.StringIO(data.decode("utf-8"), newline="")))


class _Lines(Iterator[str]):
    """A file's lines as text, and how many bytes and lines have been taken. A line ends with a line feed and nothing
    else: there are other characters in texts that Python would take for an end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.at = self.number = 0

    def __next__(self) -> str:
        line = next(self._file)
        first = self.at == 0
        self.at += len(line)
        self.number += 1
        if first:
            line = line.removeprefix(_BOM)
        return line.decode("utf-8")


class _Found(NamedTuple):
    """A row that is not blank: its first line, where it begins, its fields, and why it cannot be read."""

    line: int
    start: int
    fields: list[str]
    why: str


def _walk(lines: _Lines, form: Format) -> Iterator[_Found]:
    rows = form.rows(lines)
    while True:
        line, start = lines.number + 1, lines.at
        try:
            fields = next(rows)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            yield _Found(line, start, [], str(error))
        else:
            if fields:
                yield _Found(line, start, fields, "")


def _index(seen: FileStamp, settings: Table) -> Index:
    """Where the rows begin and end. Raises Failure(65) that names the first bad one, or leaves bad ones out."""
    header = settings.header
    offsets, bad = array("q"), []
    with open(seen.path, "rb", buffering=1 << 20) as file:
        lines = _Lines(file)
        for found in _walk(lines, Format.of(settings, seen.path)):
            if header is None and not found.why:
                header = _header(found.fields, seen.path)
            elif why := found.why or _misfit(found.fields, header or ()):
                bad.append((found.line, why))
            else:
                offsets.extend((found.start, lines.at))
    seen.check()
    if header is None:
        raise Failure(Exit.BAD_DATA, f"{seen.path} has no first line that names its columns", "name them by `header`")
    return Index(header, np.frombuffer(offsets, np.int64).reshape(-1, 2), _told(bad, seen.path, settings))


def _misfit(fields: list[str], header: tuple[str, ...]) -> str:
    if len(fields) == len(header):
        return ""
    return f"it has {len(fields)} fields, and there are {len(header)} columns"


def _told(bad: list[tuple[int, str]], path: str, settings: Table) -> tuple[str, ...]:
    """What is to be noted of malformed rows; Failure(65) where they end the run."""
    if not bad:
        return ()
    line, why = bad[0]
    if settings.malformed == "stop":
        hint = "mend the row; `quotes` says whether quotes count; `malformed: skip` leaves such rows out"
        raise Failure(Exit.BAD_DATA, f"{path}:{line}: {why}", hint, file=f"{path}:{line}")
    some = [str(line) for line, _ in bad[:8]]
    if len(bad) > 8:
        some.append("...")
    return (f"{len(bad)} malformed rows of {path} are left out, at line {', '.join(some)}",)


def _header(fields: list[str], path: str) -> tuple[str, ...]:
    twice = [name for place, name in enumerate(fields) if name in fields[:place]]
    if twice:
        raise Failure(Exit.BAD_DATA, f"{path} has two columns {twice[0]!r}", "name the columns by `header`", file=path)
    return tuple(fields)


def _question(settings: Table) -> str:
    return json.dumps([settings.delimiter, settings.quotes, settings.header, settings.malformed])


def _digest(path: str, settings: Table) -> str:
    """SHA-256 of the file and of how it is read."""
    digest = hashlib.sha256(_question(settings).encode())
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _range(descriptor: int, start: int, stop: int) -> bytes:
    """A stretch of a file, without a mark of UTF-8 at its beginning."""
    data = stretch(descriptor, start, stop)
    if start == 0:
        return data.removeprefix(_BOM)
    return data
