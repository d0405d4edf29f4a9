"""Folders that Hugging Face's `datasets` wrote, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import FileStamp, file_digest, remembered
from drivetrain.data.plain_rows import taken
from drivetrain.data.recipe import Datasets
from drivetrain.data.rows import chosen, joined
from drivetrain.data.saved import damage_told, mapped, saved_files, slices
from drivetrain.data.source import Source

_ROWS = 1024  # made plain at a time where a column is gone through


def open_datasets(settings: Datasets, cache: Path) -> Source:
    """The rows of a saved data set. The first start reads its files once, for their digests and to check them.

    Raises Failure(66) where a file is missing, 65 where one is damaged or the folder is none that `save_to_disk` wrote.
    """
    paths = saved_files(Path(settings.path), settings.subset, "subset")
    return joined([_opened(path, settings, cache) for path in paths], settings)


def _opened(path: Path, settings: Datasets, cache: Path) -> Shard:
    seen = FileStamp.now(path)
    shard = Shard(seen, settings.columns, "")
    shard.fingerprint = remembered(path, cache, "arrow", partial(_checked_digest, shard, path))
    return shard


class Shard:
    """One file of an Arrow stream, memory-mapped."""

    thread_safe = True

    def __init__(self, seen: FileStamp, columns: tuple[str, ...] | None, fingerprint: str) -> None:
        """Raises Failure(65) where the file is cut off, damaged, or lacks a column."""
        self.fingerprint = fingerprint
        self._seen, self._columns = seen, columns
        seen.check()
        schema, self._all = mapped(seen.path)
        self._names = schema.names
        names = chosen(columns, self._names, seen.path)
        self._batches = [batch.select(names) for batch in self._all]
        self._starts = np.concatenate([[0], np.cumsum([batch.num_rows for batch in self._all])]).astype(np.int64)
        # Once more: what was mapped and what was seen are one file only if it has not changed between the two.
        seen.check()

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers map the file again instead of being sent its content."""
        return Shard, (self._seen, self._columns, self.fingerprint)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The rows with these numbers."""
        self._seen.check()
        return taken(self._starts, ids, lambda number: self._batches[number])

    def column(self, name: str) -> Iterator[Any]:
        """The values of a column, in order."""
        chosen([name], self._names, self._seen.path)
        for values in slices(self._all, name, _ROWS):
            yield from values.to_pylist()

    def place(self, number: int) -> str:
        """The file, and a row's number in it."""
        return f"{self._seen.path}: row {number}, counted from 0"

    def validate(self) -> None:
        """Raises what Arrow raises where the file's content makes no sense."""
        for batch in self._all:
            batch.validate(full=True)


def _checked_digest(shard: Shard, path: Path) -> str:
    """SHA-256 of the file, once its content has been found to make sense."""
    with damage_told(str(path)):
        shard.validate()
    return file_digest(path)
