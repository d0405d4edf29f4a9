"""Rows of Parquet files as samples: a row group is decoded whole, and the latest ones are kept."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import FileStamp, file_digest, remembered
from drivetrain.data.plain_rows import taken
from drivetrain.data.recipe import Parquet
from drivetrain.data.rows import chosen, files_of, joined
from drivetrain.data.saved import damage_told, import_arrow
from drivetrain.data.source import Source

_KEPT = 512 << 20  # bytes of decoded row groups of all files together


def open_parquet(settings: Parquet, cache: Path) -> Source:
    """The rows of all files. The first start decodes them once, to take digests and to find damage.

    Raises Failure(66) where a file is missing, 65 where one is cut off, damaged, or lacks a column.
    """
    import_arrow()
    decoded = Decoded(_KEPT)
    return joined([_opened(path, settings, cache, decoded) for path in files_of(settings)], settings)


def _opened(path: str, settings: Parquet, cache: Path, decoded: Decoded) -> Groups:
    seen = FileStamp.now(path)
    file = Groups(seen, settings.columns, decoded)
    question = f"parquet {json.dumps(settings.columns)}"
    file.fingerprint = remembered(Path(path), cache, question, partial(_checked_digest, file, path))
    return file


class Decoded:
    """The row groups that were decoded last, up to a number of bytes; at least one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process begins with none."""
        return Decoded, (self._limit,)

    def get(self, path: str, group: int) -> Any:
        """A row group, where it is kept."""
        with self._lock:
            if (path, group) in self._groups:
                self._groups.move_to_end((path, group))
            return self._groups.get((path, group))

    def keep(self, path: str, group: int, table: Any) -> None:
        """Keep a row group, and drop those that were not used for longest where it is too much."""
        with self._lock:
            self._groups[path, group] = table
            while len(self._groups) > 1 and sum(table.nbytes for table in self._groups.values()) > self._limit:
                self._groups.popitem(last=False)


class Groups:
    """One file. It is opened for each row group, so no descriptor is kept."""

    thread_safe = True

    def __init__(self, seen: FileStamp, columns: tuple[str, ...] | None, decoded: Decoded) -> None:
        """Raises Failure(65) where the file is no whole Parquet file or lacks a column."""
        self.fingerprint = ""
        self._seen, self._decoded = seen, decoded
        with damage_told(seen.path), self._opened() as file:
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            self._names = file.schema_arrow.names
        self._columns = chosen(columns, self._names, seen.path)
        self._starts = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The rows with these numbers."""
        self._seen.check()
        return taken(self._starts, ids, self._group)

    def column(self, name: str) -> Iterator[Any]:
        """The values of a column, in order."""
        chosen([name], self._names, self._seen.path)
        for number in range(len(self._starts) - 1):
            yield from self._decode(number, [name]).column(0).to_pylist()

    def place(self, number: int) -> str:
        """The file, and a row's number in it."""
        return f"{self._seen.path}: row {number}, counted from 0"

    def decode_all(self) -> None:
        """Raises Failure(65) where a row group cannot be decoded, or a page is not what its checksum says."""
        for number in range(len(self._starts) - 1):
            self._decode(number, self._columns)

    def _group(self, number: int) -> Any:
        table = self._decoded.get(self._seen.path, number)
        if table is None:
            table = self._decode(number, self._columns)
            self._decoded.keep(self._seen.path, number, table)
        return table

    def _decode(self, number: int, columns: list[str]) -> Any:
        with damage_told(f"{self._seen.path}: row group {number}"), self._opened() as file:
            return file.read_row_group(number, columns=columns, use_threads=False).select(columns).combine_chunks()

    def _opened(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._seen.open(), pre_buffer=False, page_checksum_verification=True)


def _checked_digest(file: Groups, path: str) -> str:
    """SHA-256 of the file, once all of it could be decoded."""
    file.decode_all()
    return file_digest(path)
