"""What columns of files hold: types, nulls, how many values, their range."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.column_files import ColumnSource, open_columns
from drivetrain.data.hashing import hash_strings
from drivetrain.data.order import mix64
from drivetrain.data.recipe import ColumnFiles
from drivetrain.spec.secrets import require_no_secret

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_SKETCH = 1 << 16


class _Distinct:
    """How many values there are: their smallest hashes (Bar-Yossef et al. 2002). Exact up to `_SKETCH` of them, within
    about half a percent beyond."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)

    def add(self, hashes: np.ndarray) -> None:
        """Hashes of some values, uint64."""
        self._hashes = np.union1d(self._hashes, hashes)[:_SKETCH]

    @property
    def count(self) -> int:
        """The number of values."""
        if len(self._hashes) < _SKETCH:
            return len(self._hashes)
        return round((_SKETCH - 1) / (int(self._hashes[-1]) / 2**64))


class Moments:
    """Mean and standard deviation of numbers that come in parts (Chan, Golub & LeVeque 1983, equation 2.1)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0  # of distances from the mean

    def add(self, values: np.ndarray) -> None:
        """Some numbers, float64."""
        count = len(values)
        if not count:
            return
        mean, both = float(values.mean()), self.count + count
        away = mean - self.mean
        self._squares += float(np.square(values - mean).sum()) + away * away * self.count * count / both
        self.mean += away * count / both
        self.count = both

    @property
    def deviation(self) -> float:
        """Of at least one number."""
        return math.sqrt(self._squares / self.count)


class _Profile:
    """One column, block by block."""

    def __init__(self) -> None:
        self.nulls = 0
        self.moments = Moments()
        self.least, self.most = np.inf, -np.inf
        self.distinct = _Distinct()

    def add(self, column: Any) -> None:
        """One chunk of it."""
        from pyarrow import types

        self.nulls += column.null_count
        column = column.drop_null()
        if types.is_boolean(column.type) or types.is_integer(column.type) or types.is_floating(column.type):
            self._add_numbers(column.cast("double", safe=False).to_numpy())
        elif len(column) and not types.is_nested(column.type):
            self.distinct.add(hash_strings(column.cast("string")))

    def _add_numbers(self, values: np.ndarray) -> None:
        if len(values):
            self.distinct.add(mix64((values + 0.0).view(np.uint64)))  # -0.0 is 0.0
            self.moments.add(values)
            self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))

    def told(self, kind: str) -> dict[str, Any]:
        """What is told of it, as JSON data."""
        about: dict[str, Any] = {"type": kind, "nulls": self.nulls}
        if self.distinct.count:
            about["distinct"] = self.distinct.count
        if self.moments.count:  # of a label that is 0 or 1, the mean is its rate
            about |= {"least": self.least, "most": self.most, "mean": self.moments.mean}
            about["deviation"] = self.moments.deviation
        return about


def opened(path: str) -> ColumnSource:
    """The rows of CSV, TSV or Parquet files. Raises what `open_columns` raises, and Failure(64) for a credential."""
    require_no_secret(path, "the path")
    with tempfile.TemporaryDirectory() as folder:
        return open_columns(ColumnFiles(path=path), Path(folder) / "digests.json")


def describe_columns(path: str) -> dict[str, Any]:
    """Rows, blocks and columns of CSV, TSV or Parquet files, as JSON data: of each column its type, nulls, distinct
    values, and of numbers the range, the mean and the standard deviation. All of it is read; memory does not grow with
    the rows.

    Raises what `open_columns` raises.
    """
    source = opened(path)
    profiles = {name: _Profile() for name in source.schema}
    for table in source.tables():
        for name, profile in profiles.items():
            profile.add(table.column(name).chunk(0))
    sizes = source.blocks.sizes
    columns = {name: profile.told(source.schema[name]) for name, profile in profiles.items()}
    about = {"name": path, "rows": len(source), "blocks": len(sizes), "largest_block": int(sizes.max())}
    return about | {"columns": columns}
