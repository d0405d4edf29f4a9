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
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import require_no_secret

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_SKETCH = 1 << 16
_HELD = 2.0**53
"""From here on a float64 is not every whole number."""


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


def finite_numbers(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of a column of numbers without nulls those that are finite, float64, and the hash of each, uint64: equal numbers
    have equal hashes, whatever their type. Whole numbers that a float64 cannot tell apart, such as ids of 64 bits, have
    others."""
    from pyarrow import types

    numbers = column.cast("double", safe=False).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
    hashes = mix64(numbers.view(np.uint64))
    if types.is_integer(column.type):
        far = np.abs(numbers) >= _HELD
        hashes[far] = mix64(mix64(column.to_numpy(zero_copy_only=False)[far].astype(np.uint64)))
    finite = np.isfinite(numbers)
    return numbers[finite], hashes[finite]


def text_hashes(column: Any) -> np.ndarray:
    """The hash of each value of a column without nulls that is neither of numbers nor nested, uint64."""
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return hash_strings(column)
    return hash_strings(column.cast(pa.string()))


def is_numeric(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers: yes and no, and decimals, too."""
    from pyarrow import types

    kinds = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    return any(is_one(kind) for is_one in kinds)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Profile:
    """One column, block by block."""

    def __init__(self) -> None:
        self.nulls = self.nan = self.infinite = self.not_utf8 = 0
        self.moments = Moments()
        self.least, self.most = np.inf, -np.inf
        self.distinct = _Distinct()

    def add(self, column: Any) -> None:
        """One chunk of it."""
        from pyarrow import types

        self.nulls += column.null_count
        column = column.drop_null()
        if is_numeric(column.type):
            self._add_numbers(column)
        elif len(column) and not types.is_nested(column.type):
            self._add_texts(column)

    def _add_texts(self, column: Any) -> None:
        from pyarrow import types

        if types.is_binary(column.type) or types.is_large_binary(column.type):
            self.not_utf8 += sum(not _is_utf8(value) for value in column.to_pylist())
        self.distinct.add(text_hashes(column))

    def _add_numbers(self, column: Any) -> None:
        values, hashes = finite_numbers(column)
        odd = len(column) - len(values)
        nan = int(np.isnan(column.cast("double", safe=False).to_numpy(zero_copy_only=False)).sum()) if odd else 0
        self.nan += nan
        self.infinite += odd - nan
        if len(values):
            self.distinct.add(hashes)
            self.moments.add(values)
            self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))

    def told(self, kind: str) -> dict[str, Any]:
        """What is told of it, as JSON data."""
        about: dict[str, Any] = {"type": kind, "nulls": self.nulls}
        odd = {"nan": self.nan, "infinite": self.infinite, "not_utf8": self.not_utf8}
        about |= {name: count for name, count in odd.items() if count}
        if self.distinct.count:
            about["distinct"] = self.distinct.count
        if self.moments.count:  # of a label that is 0 or 1, the mean is its rate
            about |= {"least": self.least, "most": self.most, "mean": self.moments.mean}
            about["deviation"] = self.moments.deviation
        return about


def opened(path: str, delimiter: str | None = None) -> ColumnSource:
    """The rows of CSV, TSV or Parquet files.

    Raises what `open_columns` raises, and Failure(64) for a credential and for what can stand between no fields.
    """
    require_no_secret(path, "the path")
    try:
        settings = ColumnFiles(path=path, delimiter=delimiter)
    except ValueError as error:
        raise Failure(Exit.BAD_COMMAND, f"--delimiter: {error}", "name one character, such as ';'") from error
    with tempfile.TemporaryDirectory() as folder:
        return open_columns(settings, Path(folder) / "digests.json")


def describe_columns(path: str, delimiter: str | None = None) -> dict[str, Any]:
    """Rows, blocks and columns of CSV, TSV or Parquet files, as JSON data: of each column its type, nulls, distinct
    values, and of numbers the range, the mean and the standard deviation of those that are finite, and how many are
    not. All of it is read; memory does not grow with the rows.

    Raises what `opened` raises.
    """
    source = opened(path, delimiter)
    profiles = {name: _Profile() for name in source.schema}
    for table in source.tables():
        for name, profile in profiles.items():
            profile.add(table.column(name).chunk(0))
    sizes = source.blocks.sizes
    columns = {name: profile.told(source.schema[name]) for name, profile in profiles.items()}
    about = {"name": path, "rows": len(source), "blocks": len(sizes), "largest_block": int(sizes.max())}
    return about | {"columns": columns}
