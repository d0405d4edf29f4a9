"""Lines of JSON as samples, read by their places in the file."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import FileStamp, remembered
from drivetrain.data.json_lines import HEAD, json_object, refuse_array
from drivetrain.data.recipe import JsonLines
from drivetrain.data.rows import files_of, joined, line_at, no_column, stretch
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure


def open_jsonl(settings: JsonLines, cache: Path) -> Source:
    """The lines of all files, blank ones left out.

    Each start goes through the files once to find the lines, and keeps 8 bytes for each; the first one also parses
    them. Raises Failure(66) where a file is missing, 65 with FILE:LINE where a line is no object or lacks a column, or
    where a file is one array.
    """
    return joined([_opened(path, settings, cache) for path in files_of(settings)], settings)


def _opened(path: str, settings: JsonLines, cache: Path) -> Lines:
    seen = FileStamp.now(path)
    question = f"jsonl {json.dumps([settings.columns, settings.key])}"
    digest = remembered(Path(path), cache, question, partial(_checked_digest, path, settings))
    return Lines(seen, _index(seen), settings.columns, digest)


class Lines:
    """One file. It is opened for each read, so nothing is shared between threads and no descriptor is kept."""

    thread_safe = True

    def __init__(self, seen: FileStamp, offsets: np.ndarray, columns: tuple[str, ...] | None, fingerprint: str) -> None:
        """`offsets`, int64 [lines + 1], are where lines begin, and the file's end."""
        self.fingerprint = fingerprint
        self._seen, self._offsets, self._columns = seen, offsets, columns

    def __len__(self) -> int:
        """Number of lines that are not blank."""
        return len(self._offsets) - 1

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The lines with these numbers."""
        starts, stops = self._offsets[ids].tolist(), self._offsets[ids + 1].tolist()
        with self._seen.open() as file:
            lines = [stretch(file.fileno(), start, stop) for start, stop in zip(starts, stops, strict=True)]
        return [self._row(line, start) for line, start in zip(lines, starts, strict=True)]

    def column(self, name: str) -> Iterator[Any]:
        """The values of a column, in order."""
        with open(self._seen.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield _checked(line, (name,), f"{self._seen.path}:{number}")[name]

    def place(self, number: int) -> str:
        """FILE:LINE of a row."""
        return line_at(self._seen.path, int(self._offsets[number]))

    def _row(self, line: bytes, start: int) -> dict[str, Any]:
        try:
            row = json_object(line)
            if self._columns is None:
                return row
            return {name: row[name] for name in self._columns}
        except (ValueError, KeyError, RecursionError):
            # It has passed that when the file was opened.
            return _checked(line, self._columns or (), line_at(self._seen.path, start))


def _index(seen: FileStamp) -> np.ndarray:
    """Where the lines begin that are not blank, and the file's end."""
    starts, at = array("q"), 0
    with open(seen.path, "rb", buffering=1 << 20) as file:
        for line in file:
            if not line.isspace():
                starts.append(at)
            at += len(line)
    seen.check()
    starts.append(at)
    return np.frombuffer(starts, np.int64)


def _checked_digest(path: str, settings: JsonLines) -> str:
    """SHA-256 of the file, while every line is parsed."""
    digest = hashlib.sha256()
    needed = settings.columns or ()
    if settings.key:
        needed = (*needed, settings.key)
    with open(path, "rb", buffering=1 << 20) as file:
        refuse_array(file.read(HEAD), path)
        file.seek(0)
        for number, line in enumerate(file, 1):
            digest.update(line)
            if not line.isspace():
                _checked(line, needed, f"{path}:{number}")
    return digest.hexdigest()


def _checked(line: bytes, columns: tuple[str, ...], place: str) -> dict[str, Any]:
    """The row in a line, or Failure(65) that says where it stands and what is wrong with it."""
    try:
        row = json_object(line)
    except (ValueError, RecursionError) as error:
        cause = f"{place}: {error}"
        raise Failure(Exit.BAD_DATA, cause, "each line is one JSON object; mend or remove it", file=place) from error
    for name in columns:
        if name not in row:
            raise no_column(name, list(row), place)
    return row
