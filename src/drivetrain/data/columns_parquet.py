"""Parquet files as blocks of rows: a row group is a block, and is decoded whole."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from drivetrain.data.column_types import read_as
from drivetrain.data.fingerprint import FileStamp, checksum, file_digest
from drivetrain.data.rows import chosen, stretches
from drivetrain.data.saved import damage_told
from drivetrain.spec.exits import Exit, Failure

QUESTION = "columns parquet 1, checksums 2"
"""What `parquet_index` is remembered by."""


def parquet_index(path: str) -> str:
    """What is kept of a file, as JSON: the rows of its row groups, a checksum of each column in each of them, the types
    of its columns, its digest. All of it is decoded, to find damage.

    Raises Failure(65) that names the row group.
    """
    seen = FileStamp.now(path)
    file = ParquetBlocks(seen, {"rows": [], "sums": [], "schema": {}, "digest": ""})
    with damage_told(path):
        footer = file.footer
        schema = {field.name: str(field.type) for field in footer.schema.to_arrow_schema()}
    rows, sums = [], []
    for number in range(footer.num_row_groups):
        with damage_told(file.name_of(number)):
            rows.append(footer.row_group(number).num_rows)
            sums.append(file.checksums(number))
            file.decode(number, dict.fromkeys(schema))
    index = {"rows": rows, "sums": sums, "schema": schema, "digest": file_digest(path)}
    # At the end: a file that was replaced meanwhile would have numbers of both.
    seen.check()
    return json.dumps(index)


class ParquetBlocks:
    """One file. It is opened for each block, so no descriptor is kept."""

    def __init__(self, seen: FileStamp, index: Mapping[str, Any]) -> None:
        """`index` is what `parquet_index` gives, read from JSON."""
        self.path, self.fingerprint, self.notes = seen.path, index["digest"], ()
        self.schema: Mapping[str, str] = index["schema"]
        self.rows = np.array(index["rows"], np.int64)
        self._seen, self._sums = seen, index["sums"]

    def __getstate__(self) -> dict[str, Any]:
        """Another process reads the footer again."""
        return {name: value for name, value in self.__dict__.items() if name not in ("footer", "_leaves")}

    @cached_property
    def footer(self) -> Any:
        """The file's metadata."""
        from pyarrow import parquet

        with damage_told(self.path), self._seen.open() as file:
            return parquet.read_metadata(file)

    def name_of(self, number: int) -> str:
        """A row group, in words."""
        return f"{self.path}: row group {number}"

    def place(self, number: int, row: int) -> str:
        """A row, in words."""
        return f"{self.name_of(number)}, row {row} of it, counted from 0"

    def decode(self, number: int, columns: Mapping[str, str | None]) -> Any:
        """A row group as a table of these columns, each with one chunk, read as they are to be; None: as the file has
        them.

        Raises Failure(65) where it is damaged or not what it was at the first start, BadValue, BadColumn.
        """
        from pyarrow import parquet

        strings = [name for name, kind in columns.items() if kind == "string" and self._is_plain(name)]
        with damage_told(self.name_of(number)), self._seen.open() as raw:
            chunks = _Chunks(raw, self._checked(raw, number, list(columns)))
            file = parquet.ParquetFile(
                chunks,
                metadata=self.footer,
                read_dictionary=strings,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            table = file.read_row_group(number, columns=list(columns), use_threads=False).select(list(columns))
            if any(column.num_chunks != 1 for column in table.columns):
                table = table.unify_dictionaries().combine_chunks()
        for place, (name, kind) in enumerate(columns.items()):
            if kind is not None:
                table = table.set_column(place, name, read_as(table.column(place), kind, name))
        return table

    def checksums(self, number: int) -> list[int]:
        """One for each column of a row group, nested ones too, of its bytes in the file."""
        with self._seen.open() as raw:
            group = self.footer.row_group(number)
            spans = [_span(group.column(leaf)) for leaf in range(group.num_columns)]
            return list(map(checksum, stretches(raw, spans)))

    def _is_plain(self, name: str) -> bool:
        """Whether a column has values and nothing nested, whose dictionaries pyarrow would look for in vain."""
        return [self.footer.schema.column(leaf).path for leaf in self._leaves.get(name, ())] == [name]

    @cached_property
    def _leaves(self) -> dict[str, list[int]]:
        """The numbers of each column's parts in a row group: one, or more where it is nested."""
        names = self.footer.schema.to_arrow_schema().names
        leaves: dict[str, list[int]] = {name: [] for name in names}
        for leaf in range(self.footer.num_columns):
            path = self.footer.schema.column(leaf).path
            owners = [name for name in names if path == name or path.startswith(f"{name}.")]
            # A column may be called `a.b` beside a nested `a`: the longest name that fits is the owner's.
            leaves[max(owners, key=len)].append(leaf)
        return leaves

    def _checked(self, raw: Any, number: int, columns: list[str]) -> dict[int, bytes]:
        """The bytes of columns of a row group by where they begin, compared with their checksums where these are known.

        Raises Failure(65) where they are others.
        """
        group, names = self.footer.row_group(number), {}
        for name in chosen(columns, list(self._leaves), self.path):
            names |= dict.fromkeys(self._leaves[name], name)
        spans = [_span(group.column(leaf)) for leaf in names]
        found = stretches(raw, spans)
        for (leaf, name), data in zip(names.items(), found, strict=True):
            if self._sums and checksum(data) != self._sums[number][leaf]:
                cause = f"{self.name_of(number)}: column {name!r} has other bytes than at the first start"
                raise Failure(Exit.BAD_DATA, cause, "restore the file", file=self.path)
        return {start: data for (start, _), data in zip(spans, found, strict=True)}


class _Chunks(io.RawIOBase):
    """A file of which some stretches are in memory already: what was checked is what is decoded."""

    def __init__(self, raw: Any, chunks: Mapping[int, bytes]) -> None:
        self._raw, self._chunks, self._at = raw, chunks, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            self._at = offset
        elif whence == io.SEEK_CUR:
            self._at += offset
        else:
            self._at = self._raw.seek(offset, whence)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._chunks.get(self._at)
        if data is None or len(data) < size or size < 0:
            self._raw.seek(self._at)
            data = self._raw.read(size)
        elif size < len(data):
            data = data[:size]
        self._at += len(data)
        return data


def _span(column: Any) -> tuple[int, int]:
    """Where a column of a row group begins and ends in the file."""
    # A dictionary lies before the pages that refer to it.
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size
