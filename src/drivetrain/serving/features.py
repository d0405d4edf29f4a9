"""From values to what a model is given. Training, predictions and services all go through `encoded`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from .arrays import Arrays, BadValue, Place, Ragged, gathered
from .hashing import GOLDEN, keys_of, mix64, rows_of

Encoded = dict[str, "np.ndarray | Ragged"]
NULL = 0
"""The row, or key, of a table that is of samples without a value."""
UNKNOWN = 1
"""The row of values that a vocabulary does not have; those that it has follow."""


@dataclass(frozen=True)
class Vocabulary:
    """The values that have rows of their own, each once."""

    words: tuple[str, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """By word, its place among them."""
        return {word: place for place, word in enumerate(self.words)}


class Texts(Protocol):
    """Strings, of which none is null."""

    def hashes(self) -> np.ndarray:
        """uint64 of each, by `hash_bytes`."""
        ...

    def places(self, vocabulary: Vocabulary) -> np.ndarray:
        """int64 of each: its place among these, -1 where it is none of them."""
        ...


class Values(Protocol):
    """The values of a column, or those of its lists one after the other. Each method raises BadValue."""

    place: Place

    @property
    def null(self) -> np.ndarray:
        """Which values are not there, bool."""
        ...

    def by_text(self, found_of: Callable[[Texts], np.ndarray]) -> np.ndarray:
        """What this gives for each value, as text; NULL where it is null. It may be asked for each text once only."""
        ...

    def whole(self) -> np.ndarray:
        """Int64; 0 for null."""
        ...

    def numbers(self) -> np.ndarray:
        """Float64, none infinite; NaN for null."""
        ...


class ColumnReader(Protocol):
    """Columns of rows."""

    def values(self, column: str) -> Values:
        """A column of single values."""
        ...

    def lists(self, column: str, separator: str | None) -> tuple[Values, np.ndarray]:
        """The values of all lists, and int64 [rows + 1]: where each begins. A null list, and an empty text, has none.
        Lists that are texts are cut at the separator."""
        ...

    def mapped(self, column: str, key: str, separator: str) -> Values:
        """Of each row one value of a column of maps: texts of `key:value`, with separators between. It is that of the
        key that the other column has; null where there is none. Raises BadValue for what is no map, and for a key that
        is there twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """How a feature is made of columns: exactly one of `buckets`, `hash`, `vocabulary`, `keyed`, `boundaries` and
    `normalize`.

    Rows of tables: NULL is that of null. `buckets`: n is row n + 1, from 0 to buckets - 1. `hash`: rows 1 to
    `hash`, by `rows_of` of `hash_bytes` with seed 0 of the UTF-8 bytes; of several columns by `crossed`.
    `vocabulary`: UNKNOWN, and place + 2. `keyed`: keys, which tables find rows of, by `keys_of` of the hash.
    `boundaries`: 1 + the number of boundaries that are not above the number. `normalize`: a float32, as it is
    ("identity"), as log(1 + it) ("log1p"), or less the mean and divided by the deviation ({"mean", "std"}).
    """

    columns: tuple[str, ...]
    buckets: int | None = None
    hash: int | None = None
    vocabulary: Vocabulary | None = None
    keyed: bool = False
    boundaries: tuple[float, ...] | None = None
    normalize: str | Mapping[str, float] | None = None
    default: float = 0.0
    width: int = 1
    length: int | None = None
    separator: str | None = None
    weights: str | None = None
    map_key: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What is said of it, without what is as it is by default."""
        found = {name: value for name, value in vars(self).items() if value != getattr(type(self), name, None)}
        if self.vocabulary is not None:
            found["vocabulary"] = list(self.vocabulary.words)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeatureSpec:
        """What `to_json` gave, through JSON."""
        given = dict(data)
        for name, value in data.items():
            if isinstance(value, list):
                given[name] = tuple(value)
        if "vocabulary" in given:
            given["vocabulary"] = Vocabulary(given["vocabulary"])
        return cls(**given)

    def wanted(self) -> tuple[str, ...]:
        """All columns that it reads."""
        others = [column for column in (self.weights, self.map_key) if column is not None]
        return (*self.columns, *others)


def encoded(features: Mapping[str, FeatureSpec], reader: ColumnReader) -> Encoded:
    """The arrays of all features: `ids.FEATURE`, int64 [rows] or ragged; `id_weights.FEATURE`, float32, ragged;
    `numbers.FEATURE`, float32 [rows] or [rows, width]. Raises BadValue."""
    found: Encoded = {}
    for name, feature in features.items():
        if feature.normalize is not None:
            found[f"numbers.{name}"] = _normalized(feature, reader)
        elif feature.length is not None:
            found |= _listed_ids(feature, feature.length, name, reader)
        else:
            found[f"ids.{name}"] = _single_ids(feature, reader)
    return found


class SideTable:
    """The features of a table beside the samples, encoded once, and which of its rows a sample's key is."""

    def __init__(self, keys: np.ndarray, arrays: Arrays) -> None:
        """`keys`, uint64 [rows], are the ascending hashes of the rows' keys, and `arrays` their features; these have
        one row more: what samples get whose key is not there."""
        self.keys, self.arrays = keys, arrays

    def of(self, keys: Values) -> Encoded:
        """The arrays of samples that have these keys."""
        # Null's stand-in may be a hash that is there, so null is asked for itself below.
        hashes = keys.by_text(lambda texts: texts.hashes()).astype(np.uint64, copy=False)
        places = np.minimum(self.keys.searchsorted(hashes), len(self.keys) - 1)
        there = (self.keys[places] == hashes) & ~keys.null
        return gathered(self.arrays, np.where(there, places, len(self.keys)))


def _values(feature: FeatureSpec, column: str, reader: ColumnReader) -> Values:
    if feature.map_key is None:
        return reader.values(column)
    assert feature.separator is not None, "a map has one"
    return reader.mapped(column, feature.map_key, feature.separator)


def _single_ids(feature: FeatureSpec, reader: ColumnReader) -> np.ndarray:
    values, *others = [_values(feature, column, reader) for column in feature.columns]
    if others:
        return _crossed(feature.hash, [values, *others])
    if feature.boundaries is None:
        return _rows(feature, values)
    numbers = values.numbers()
    # NaN, a value that is missing, would be beyond all boundaries.
    stretch = np.searchsorted(np.array(feature.boundaries), numbers, side="right") + 1
    return np.where(np.isnan(numbers), NULL, stretch)


def _listed_ids(feature: FeatureSpec, length: int, name: str, reader: ColumnReader) -> Encoded:
    values, offsets = reader.lists(feature.columns[0], feature.separator)
    kept = first_of_each(offsets, length)
    ends = np.concatenate([[0], np.cumsum(np.minimum(np.diff(offsets), length))])
    found: Encoded = {f"ids.{name}": Ragged(_rows(feature, values)[kept], ends)}
    if feature.weights is not None:
        weights, their = reader.lists(feature.weights, feature.separator)
        wrong = np.flatnonzero(np.diff(their) != np.diff(offsets))
        if len(wrong):
            ids, given = int(np.diff(offsets)[wrong[0]]), int(np.diff(their)[wrong[0]])
            raise BadValue(int(wrong[0]), feature.weights, f"has {given} weights for {ids} ids of {feature.columns[0]}")
        found[f"id_weights.{name}"] = Ragged(np.nan_to_num(weights.numbers())[kept].astype(np.float32), ends)
    return found


def _rows(feature: FeatureSpec, values: Values) -> np.ndarray:
    """The rows of a table that values are, or their keys, int64."""
    if feature.buckets is not None:
        return _bucketed(feature.buckets, values)
    if feature.hash is not None:
        size = feature.hash
        return values.by_text(lambda texts: rows_of(texts.hashes(), size) + 1)
    if feature.keyed:
        return values.by_text(lambda texts: keys_of(texts.hashes()))
    words = feature.vocabulary
    assert words is not None, "a feature has one reading"
    return values.by_text(lambda texts: texts.places(words) + (UNKNOWN + 1))


def _bucketed(buckets: int, values: Values) -> np.ndarray:
    """Whole numbers from 0 on as rows. An id beyond the table has no row, so it is refused."""
    numbers = values.whole()
    wrong = np.flatnonzero((numbers < 0) | (numbers >= buckets))
    if len(wrong):
        why = f"{numbers[wrong[0]]} is no id from 0 to {buckets - 1} (buckets: {buckets})"
        raise values.place.bad(int(wrong[0]), why)
    return np.where(values.null, NULL, numbers + 1)


def _crossed(size: int | None, columns: list[Values]) -> np.ndarray:
    """Rows, or (without a size) keys, of several columns' values together. Null is a value like others; where all are
    null it is NULL."""
    together, empty = np.zeros(1, np.uint64), np.ones(1, bool)
    for values in columns:
        hashes = values.by_text(lambda texts: texts.hashes()).astype(np.uint64, copy=False)
        # In the order of the columns: a crossed with b is another value than b with a.
        together = mix64(together * np.uint64(GOLDEN) + hashes + np.uint64(1))
        empty = empty & values.null
    return np.where(empty, NULL, keys_of(together) if size is None else rows_of(together, size) + 1)


def _normalized(feature: FeatureSpec, reader: ColumnReader) -> np.ndarray:
    """Float32 [rows], or [rows, width]."""
    column, normalize = feature.columns[0], feature.normalize
    numbers = _values(feature, column, reader).numbers() if feature.width == 1 else _wide(feature, reader)
    numbers = np.where(np.isnan(numbers), feature.default, numbers)
    if isinstance(normalize, Mapping):
        numbers = (numbers - normalize["mean"]) / normalize["std"]
    elif normalize == "log1p":
        wrong = np.argwhere(numbers <= -1)
        if len(wrong):
            bad = numbers[tuple(wrong[0])]
            raise BadValue(int(wrong[0][0]), column, f"log1p takes numbers above -1, not {bad:g}")
        numbers = np.log1p(numbers)
    # What overflows is told below, with its row.
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
    wrong = np.argwhere(np.isinf(found))
    if len(wrong):
        raise BadValue(int(wrong[0][0]), column, f"{numbers[tuple(wrong[0])]:g} is beyond the numbers of float32")
    return found


def _wide(feature: FeatureSpec, reader: ColumnReader) -> np.ndarray:
    """Lists of numbers, float64 [rows, width]; NaN for those of a list that is not there."""
    values, offsets = reader.lists(feature.columns[0], feature.separator)
    lengths = np.diff(offsets)
    wrong = np.flatnonzero((lengths != feature.width) & (lengths != 0))
    if len(wrong):
        raise BadValue(int(wrong[0]), feature.columns[0], f"has {lengths[wrong[0]]} numbers, not {feature.width}")
    numbers = np.full((len(lengths), feature.width), np.nan)
    # All lists that are there have the width: their values, one after the other, are the rows.
    numbers[lengths > 0] = values.numbers().reshape(-1, feature.width)
    return numbers


def first_of_each(offsets: np.ndarray, most: int) -> np.ndarray:
    """Which values of lists are among the first of their list, bool."""
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return within < most
