"""Rows of Arrow columns as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


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
    if values.null_count:
        return values.to_pylist()
    # The file's memory is read-only, and a sample may be written to.
    return values.to_numpy(zero_copy_only=False).copy()
