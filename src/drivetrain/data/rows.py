"""Rows of files as one source: what JSON lines, tables, Parquet and Arrow have in common."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, BinaryIO, Protocol

from drivetrain.data.blend import BlendSource
from drivetrain.data.fingerprint import BLOCK, combined, opened
from drivetrain.data.inputs import Kind, find_inputs
from drivetrain.data.recipe import JsonLines, Parquet, Rows, Table
from drivetrain.data.remote import near_together
from drivetrain.data.source import Source
from drivetrain.data.split import hashed, parted
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest
from drivetrain.spec.text import printable


class Joined(BlendSource):
    """The rows of several files, one file after the other."""

    notes: tuple[str, ...]

    def __init__(self, files: Sequence[RowFile]) -> None:
        super().__init__(files, combined([file.fingerprint for file in files]))
        self.notes = ()
        for file in files:
            self.notes += getattr(file, "notes", ())

    def place(self, number: int) -> str:
        """FILE:LINE of a row, or its number in its file where that has no lines."""
        owner = int(self._offsets.searchsorted(number, side="right")) - 1
        return place_of(self._sources[owner], number - int(self._offsets[owner]))


def place_of(source: Source, number: int) -> str:
    """Where a sample stands, in words."""
    place = getattr(source, "place", None)
    if place is None:
        return f"row {number}, counted from 0"
    return place(number)


class RowFile(Source, Protocol):
    """One file of rows; a sample is a dict."""

    def column(self, name: str) -> Iterable[Any]:
        """The values of a column, in order. Raises Failure(65) where a row has none."""
        ...


def files_of(settings: JsonLines | Parquet | Table) -> list[str]:
    """The files that a path, a pattern or a folder means, in the order in which their rows count."""
    # Inputs know no kind of tables; as text, a file of any name is taken.
    kind = "text" if settings.kind == "table" else settings.kind
    return plain_files([settings.path], settings.include, kind)


def plain_files(given: Sequence[str], include: Sequence[str], kind: Kind) -> list[str]:
    """The files that paths, patterns and folders mean.

    Raises Failure: 65 where one is compressed, 66 for a path of no characters, such as that behind a last comma.
    """
    if not all(given):  # it would be the folder that the command is given in
        raise Failure(Exit.INPUT_MISSING, "a path is empty", "name a file, a folder or a pattern; look at the commas")
    inputs = find_inputs(given, include, kind)
    for found in inputs:
        if found.packed:
            cause = f"{found.path}: rows of a compressed file cannot be read in any order"
            raise Failure(Exit.BAD_DATA, cause, "decompress it", file=found.path)
    return [found.path for found in inputs]


def joined(files: Sequence[RowFile], settings: Rows) -> Source:
    """The rows of all files, one file after the other, or the part of them that the settings name.

    Raises Failure(65) where there is none.
    """
    source = Joined(files)
    if len(source) == 0:
        raise Failure(Exit.BAD_DATA, f"{settings.path} has no row", "a source needs at least one")
    keys = None
    if settings.key is not None and settings.part != "all":
        keys = hashed(chain.from_iterable(file.column(settings.key) for file in files))
    return parted(source, settings, settings.path, keys)


def chosen(columns: Sequence[str] | None, names: Sequence[str], path: str) -> list[str]:
    """The columns to read. Raises Failure(65) where the file lacks one."""
    for name in columns or ():
        if name not in names:
            raise no_column(name, names, path)
    return list(columns if columns is not None else names)


def no_column(name: str, names: Sequence[str], where: str) -> Failure:
    """Failure(65) for a column that is not there."""
    cause = f"{where} has no column {name!r}{nearest(name, list(names))}"
    hint = printable(f"columns and key name what is there: {', '.join(names)}")
    return Failure(Exit.BAD_DATA, cause, hint, file=where)


def stretch(descriptor: int, start: int, stop: int) -> bytes:
    """A file's bytes from `start` to `stop`, fewer only where it ends before; the system may give less at a time."""
    data = os.pread(descriptor, stop - start, start)
    while len(data) < stop - start and (more := os.pread(descriptor, stop - start - len(data), start + len(data))):
        data += more
    return data


def stretches(file: BinaryIO, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of some stretches [start, stop) of an open file; of one behind a URL neighbours come together."""
    if isinstance(file, io.FileIO):
        return [stretch(file.fileno(), *span) for span in spans]
    found: dict[tuple[int, int], bytes] = {}
    for run in near_together(spans):
        first = run[0][0]
        file.seek(first)
        data = file.read(max(stop for _, stop in run) - first)
        found |= {(start, stop): data[start - first : stop - first] for start, stop in run}
    return [found[span] for span in spans]


def line_at(path: str, offset: int) -> str:
    """FILE:LINE of the line that begins at a byte."""
    number = 1
    with opened(path) as file:
        while offset > 0 and (block := file.read(min(offset, BLOCK))):
            number += block.count(b"\n")
            offset -= len(block)
    return f"{path}:{number}"
