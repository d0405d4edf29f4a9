"""How the columns of some files differ from those of others: nulls, values that were not there, shapes, means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from drivetrain.data.column_files import ColumnSource
from drivetrain.data.column_profile import Moments, finite_numbers, opened, text_hashes
from drivetrain.data.order import mix64

_SAMPLE = 1 << 16
"""Values of the others that are held: to tell which are new, and to find tenths."""
_BUCKETS = 1 << 16
_COMMON = 20
"""Texts that are compared one by one; all others are one bin."""
_LEAST = 1e-4
"""What an empty bin counts as, so that its logarithm is finite."""


def describe_drift(path: str, against: str, delimiter: str | None = None) -> dict[str, Any]:
    """What is different in each column of `path` from that of `against`, as JSON data. All of both is read; memory does
    not grow with the rows.

    By column: `nulls`, the share of rows in both; `unseen`, the share of values that the others do not have, of a
    sample of them where they have more than 65,536; `shift`, the mean's distance from theirs in their standard
    deviations; and `psi`, sum over bins of (p - q) ln(p / q) with p and q their shares: Jeffreys' divergence (1946),
    which is known as the population stability index (Siddiqi 2006, Credit Risk Scorecards: below 0.1 little has
    changed, above 0.25 much). Bins are nulls, and their tenths of numbers, or the 20 most frequent texts and the rest.

    Raises what `opened` raises.
    """
    source, other = opened(path, delimiter), opened(against, delimiter)
    columns: dict[str, dict[str, Any]] = {}
    common = {name: _Reference() for name in source.schema if _comparable(source, other, name)}
    for name, chunk in _chunks(other, common):
        common[name].sample(chunk)
    shapes = {name: (_Shape(reference), _Shape(reference)) for name, reference in common.items()}
    for place, each in enumerate((source, other)):
        for name, chunk in _chunks(each, common):
            shapes[name][place].add(chunk)
    for name, kind in source.schema.items():
        if name in shapes:
            columns[name] = {"type": kind, **_told(*shapes[name])}
        elif name in other.schema:
            columns[name] = {"type": kind, "was": other.schema[name]}
        else:
            columns[name] = {"type": kind, "new": True}
    gone = [name for name in other.schema if name not in source.schema]
    return {"name": path, "against": against, "rows": [len(source), len(other)], "columns": columns, "gone": gone}


def _chunks(source: ColumnSource, names: Any) -> Iterator[tuple[str, Any]]:
    for table in source.tables():
        for name in names:
            yield name, table.column(name).chunk(0)


def _comparable(source: ColumnSource, other: ColumnSource, name: str) -> bool:
    """Whether both have it, as numbers or as texts."""
    kinds = [each.schema.get(name) for each in (source, other)]
    return None not in kinds and len({_is_number(str(kind)) for kind in kinds}) == 1 and "list" not in str(kinds)


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "half", "bool", "decimal"))


def _values(column: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The hash of each value that is there, uint64, and of numbers the finite ones, float64; None for texts."""
    column = column.drop_null()
    if not _is_number(str(column.type)):
        return text_hashes(column), None
    numbers, hashes = finite_numbers(column)
    return hashes, numbers


class _Reference:
    """What a column of the others has: a sample of its values, tenths of its numbers, its common texts."""

    def __init__(self) -> None:
        self.seen = np.zeros(0, np.uint64)
        self._drawn = np.zeros((2, 0))
        self._row = 0
        self._counts = np.zeros(_BUCKETS, np.int64)

    def sample(self, column: Any) -> None:
        """One chunk of it."""
        hashes, numbers = _values(column)
        # The smallest hashes: whether a value is in the sample says the value alone.
        self.seen = np.union1d(self.seen, hashes)[:_SAMPLE]
        self._counts += np.bincount(_bucket(hashes), minlength=_BUCKETS)
        if numbers is not None:
            keys = mix64(np.arange(self._row, self._row + len(numbers), dtype=np.uint64)).astype(float)
            drawn = np.concatenate([self._drawn, [keys, numbers]], axis=1)
            self._drawn = drawn[:, np.argsort(drawn[0], kind="stable")[:_SAMPLE]]
        self._row += len(column) - column.null_count

    @property
    def limit(self) -> int:
        """Hashes up to this are in the sample if the value is."""
        return int(self.seen[-1]) if len(self.seen) == _SAMPLE else 2**64 - 1

    def edges(self) -> np.ndarray:
        """Tenths of its numbers, without repeats."""
        values = self._drawn[1]
        if not len(values):
            return values
        return np.unique(np.quantile(values, np.arange(1, 10) / 10, method="lower"))

    def common(self) -> np.ndarray:
        """The buckets of its most frequent texts, ascending."""
        return np.sort(np.argsort(-self._counts, kind="stable")[:_COMMON])


def _bucket(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(48)).astype(np.int64)


class _Shape:
    """Counts of one column, in the bins of a reference."""

    def __init__(self, reference: _Reference) -> None:
        self._reference = reference
        self._limit = np.uint64(reference.limit)
        self._edges = reference.edges()
        self._common = reference.common()
        self.rows = self.nulls = self.known = self.unseen = 0
        self.moments = Moments()
        self.bins = np.zeros(max(len(self._edges) + 1, _COMMON + 1), np.int64)

    def add(self, column: Any) -> None:
        """One chunk of it."""
        self.rows += len(column)
        self.nulls += column.null_count
        hashes, numbers = _values(column)
        sampled = hashes[hashes <= self._limit]
        self.known += len(sampled)
        self.unseen += int(np.count_nonzero(~np.isin(sampled, self._reference.seen)))
        if numbers is None:
            buckets = _bucket(hashes)
            places = np.searchsorted(self._common, buckets)
            found = self._common[np.minimum(places, len(self._common) - 1)] == buckets
            places[~found] = _COMMON
        else:
            self.moments.add(numbers)
            places = np.searchsorted(self._edges, numbers)
        self.bins += np.bincount(places, minlength=len(self.bins))

    @property
    def shares(self) -> np.ndarray:
        """Of the bins and of nulls, at least `_LEAST` each."""
        return np.maximum(np.array([*self.bins, self.nulls]) / self.rows, _LEAST)


def _told(ours: _Shape, theirs: _Shape) -> dict[str, Any]:
    about: dict[str, Any] = {"nulls": [ours.nulls / ours.rows, theirs.nulls / theirs.rows]}
    if ours.known:
        about["unseen"] = ours.unseen / ours.known
    mine, other = ours.moments, theirs.moments
    if mine.count and other.count:
        about["means"] = [mine.mean, other.mean]
        if other.deviation:
            about["shift"] = (mine.mean - other.mean) / other.deviation
    p, q = ours.shares, theirs.shares
    about["psi"] = float(((p - q) * np.log(p / q)).sum())
    return about
