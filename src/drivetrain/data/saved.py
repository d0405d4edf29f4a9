"""Folders that Hugging Face's `datasets` saved: which files they are made of, and those files memory-mapped.

`datasets` itself is not needed: a file is an Arrow stream, and JSON beside it says which ones there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

_SEVERAL = "dataset_dict.json"
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; its reader takes a stream without it for a whole one


def is_saved(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote a folder, told as `load_from_disk` does."""
    one = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return one or (folder / _SEVERAL).is_file()


def saved_files(folder: Path, subset: str | None, option: str) -> list[Path]:
    """The files of a saved data set in the order of their rows; `subset` says which one of a DatasetDict.

    `option` is what the user calls `subset`. Raises Failure(66) where there is no data set, 65 where one of several is
    not chosen, or rows were chosen beside the data.
    """
    folder = _chosen(folder, subset, option)
    state = _json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        cause = f"{folder} is a selection of rows beside its data"
        raise Failure(Exit.BAD_DATA, cause, "save what `flatten_indices()` gives", file=str(folder))
    return [folder / part["filename"] for part in state.get("_data_files", ())]


def mapped(path: str) -> tuple[Any, list[Any]]:
    """Schema and record batches of a file, which stay in it: memory-mapped.

    Raises Failure(66) where pyarrow is not installed, 65 where the file is cut off or damaged.
    """
    import_arrow()
    import pyarrow as pa

    with damage_told(path):
        with open(path, "rb") as file:
            file.seek(max(0, Path(path).stat().st_size - len(_END)))
            if file.read() != _END:
                raise ValueError("it is cut off, or no Arrow stream")
        reader = pa.ipc.open_stream(pa.memory_map(path))
        return reader.schema, list(reader)


def slices(batches: Iterable[Any], name: str, rows: int) -> Iterator[Any]:
    """A column as Arrow's arrays of so many rows at most, in order."""
    for batch in batches:
        column = batch.column(name)
        yield from (column.slice(start, rows) for start in range(0, len(column), rows))


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


def _chosen(folder: Path, subset: str | None, option: str) -> Path:
    """The folder of the data set that is meant: of the one, or of that of a DatasetDict which `subset` names."""
    known = folder / _SEVERAL
    if not known.is_file():
        if subset is not None:
            cause = f"{folder} is one data set, so {option} is not needed"
            raise Failure(Exit.BAD_DATA, cause, "leave it out", file=str(folder))
        return folder
    names: Sequence[str] = _json(known).get("splits", ())
    if subset is None:
        cause = f"{folder} has several data sets"
        raise Failure(Exit.BAD_DATA, cause, f"{option} is one of {', '.join(names)}", file=str(folder))
    if subset not in names:
        cause = f"{folder} has no data set {subset!r}{nearest(subset, list(names))}"
        raise Failure(Exit.BAD_DATA, cause, f"{option} is one of {', '.join(names)}", file=str(folder))
    return folder / subset


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
