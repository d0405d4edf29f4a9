"""Folders that Hugging Face's `datasets` wrote, memory-mapped; and rows of Arrow columns as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.documents import file_digest
from drivetrain.data.fingerprint import Seen, remembered
from drivetrain.data.recipe import Datasets
from drivetrain.data.rows import chosen, joined
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; its reader takes a stream without it for a whole one


def open_datasets(settings: Datasets, cache: Path) -> Source:
    """The rows of a saved data set. The first start reads its files once, for their digests and to check them.

    Raises Failure(66) where a file is missing, 65 where one is damaged or the folder is none that `save_to_disk` wrote.
    """
    folder = _folder(settings)
    state = _json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        cause = f"{folder} is a selection of rows beside its data"
        raise Failure(Exit.BAD_DATA, cause, "save what `flatten_indices()` gives", file=str(folder))
    paths = [folder / part["filename"] for part in state.get("_data_files", ())]
    return joined([_opened(path, settings, cache) for path in paths], settings)


def _opened(path: Path, settings: Datasets, cache: Path) -> Shard:
    seen = Seen.now(path)
    shard = Shard(seen, settings.columns, "")
    shard.fingerprint = remembered(path, cache, "arrow", partial(_checked_digest, shard, path))
    return shard


class Shard:
    """One file of an Arrow stream, memory-mapped."""

    thread_safe = True

    def __init__(self, seen: Seen, columns: tuple[str, ...] | None, fingerprint: str) -> None:
        """Raises Failure(65) where the file is cut off, damaged, or lacks a column."""
        import_arrow()
        import pyarrow as pa

        self.fingerprint = fingerprint
        self._seen, self._columns = seen, columns
        with damage_told(seen.path):
            with seen.open() as file:
                file.seek(max(0, Path(seen.path).stat().st_size - len(_END)))
                if file.read() != _END:
                    raise ValueError("it is cut off")
            reader = pa.ipc.open_stream(pa.memory_map(seen.path))
            self._all = list(reader)
        names = chosen(columns, reader.schema.names, seen.path)
        self._batches = [batch.select(names) for batch in self._all]
        self._starts = np.concatenate([[0], np.cumsum([batch.num_rows for batch in self._all])]).astype(np.int64)
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
        for batch in self._all:
            chosen([name], batch.schema.names, self._seen.path)
            yield from batch.column(name).to_pylist()

    def place(self, number: int) -> str:
        """The file, and a row's number in it."""
        return f"{self._seen.path}: row {number}, counted from 0"

    def validate(self) -> None:
        """Raises what Arrow raises where the file's content makes no sense."""
        for batch in self._all:
            batch.validate(full=True)


def taken(starts: np.ndarray, ids: np.ndarray, block: Any) -> list[dict[str, Any]]:
    """Rows by their numbers out of blocks (tables or record batches) that begin at `starts`."""
    owners = np.searchsorted(starts, ids, side="right") - 1
    samples: list[Any] = [None] * len(ids)
    for owner in np.unique(owners):
        mine = np.flatnonzero(owners == owner)
        rows = _rows(block(int(owner)).take(ids[mine] - starts[owner]))
        for place, row in zip(mine.tolist(), rows, strict=True):
            samples[place] = row
    return samples


def import_arrow() -> None:
    """Raises Failure(66) where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise Failure(Exit.INPUT_MISSING, "Parquet and Arrow need pyarrow", "pip install 'drivetrain[data]'") from None


@contextmanager
def damage_told(place: str) -> Iterator[None]:
    """What Arrow raises as Failure(65) that says where."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise Failure(Exit.BAD_DATA, f"{place} cannot be read: {error}", "write it again", file=place) from error


def _rows(block: Any) -> list[dict[str, Any]]:
    """Rows of a table or record batch as dicts of plain values."""
    names = block.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(_values, block.columns), strict=True)]


def _values(column: Any) -> Iterable[Any]:
    """A column's values: Python's, and arrays where each is a list of numbers."""
    import pyarrow as pa

    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        return column.to_pylist()
    return [_numbers(scalar) for scalar in column]


def _numbers(scalar: Any) -> np.ndarray | list[Any] | None:
    """A list of numbers as an array of its own; with a null among them, as a list."""
    if not scalar.is_valid:
        return None
    values = scalar.values
    return values.to_pylist() if values.null_count else values.to_numpy(zero_copy_only=False).copy()


def _checked_digest(shard: Shard, path: Path) -> str:
    """SHA-256 of the file, once its content has been found to make sense."""
    with damage_told(str(path)):
        shard.validate()
    return file_digest(path)


def _folder(settings: Datasets) -> Path:
    """The folder of the data set that is meant: of the one, or of that of a DatasetDict which `subset` names."""
    folder = Path(settings.path)
    known = folder / "dataset_dict.json"
    if not known.is_file():
        if settings.subset is not None:
            cause = f"{folder} is one data set, so subset is not needed"
            raise Failure(Exit.BAD_DATA, cause, "leave it out", file=str(folder))
        return folder
    names: Sequence[str] = _json(known).get("splits", ())
    if settings.subset is None:
        cause = f"{folder} has several data sets"
        raise Failure(Exit.BAD_DATA, cause, f"subset is one of {', '.join(names)}", file=str(folder))
    if settings.subset not in names:
        cause = f"{folder} has no subset {settings.subset!r}{nearest(settings.subset, list(names))}"
        raise Failure(Exit.BAD_DATA, cause, f"subset is one of {', '.join(names)}", file=str(folder))
    return folder / settings.subset


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        cause = f"no data set at {path.parent}: {path.name}: {error.strerror}"
        hint = "path is a folder that `save_to_disk` wrote"
        raise Failure(Exit.INPUT_MISSING, cause, hint, file=str(path)) from error
    except ValueError as error:
        raise Failure(Exit.BAD_DATA, f"{path}: {error}", "save the data set again", file=str(path)) from error
    if not isinstance(value, dict):
        raise Failure(Exit.BAD_DATA, f"{path} is no JSON object", "save the data set again", file=str(path))
    return value
