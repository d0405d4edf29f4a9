"""Columns as the arrays that a batch is made of. Training, predictions and exports all go through `FeatureEncoder`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from drivetrain.data.columns import BadValue, Ragged
from drivetrain.data.hashing import hash_strings, rows_of
from drivetrain.data.order import GOLDEN, mix64
from drivetrain.engine.tables.module import Table
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.recipe import Feature, Label, Ranking, Standard

if TYPE_CHECKING:
    import pyarrow as pa

Encoded = dict[str, "np.ndarray | Ragged"]
NULL = 0
"""The row of a table that is of samples without a value."""
_UNKNOWN = 1  # that of values that a vocabulary does not have
_VERSION = "1"  # of all below: another one gives other arrays of the same columns
_DECIDING = ("column", "cross", "buckets", "hash", "vocab", "boundaries", "normalize")
_DECIDING_TOO = ("default", "width", "length", "separator", "weights")
_WIDENING = ("list", "integer", "number", "string")  # what holds all values of those before it, lists aside
_OF_A_LABEL = ("column", "loss", "at_least", "classes", "optional")


class FeatureEncoder:
    """Reads the columns that a recipe's features and labels are made of.

    `encode` gives by key: `ids.FEATURE`, int64 [rows] or ragged; `id_weights.FEATURE`, float32, ragged;
    `numbers.FEATURE`, float32 [rows] or [rows, width]; `labels.LABEL`, float32 [rows], NaN where there is none;
    `sample_weights`, float32 [rows]; `groups`, int64 [rows]. Without `labelled` it reads features only.
    """

    def __init__(self, settings: Ranking, *, labelled: bool = True) -> None:
        """Raises Failure: 66 where a vocabulary is missing, 65 where it has nothing or a value twice, 78 where one
        column is read both as lists and as single values."""
        self._settings, self._labelled = settings, labelled
        self._vocabularies = vocabularies(settings.features)
        self.columns = self._readings()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides what `encode` gives."""
        settings, deciding = self._settings, (*_DECIDING, *_DECIDING_TOO)
        features = {name: _chosen(each, deciding) for name, each in settings.features.items()}
        labels = {name: _chosen(each, _OF_A_LABEL) for name, each in settings.labels.items()}
        told = [features, labels, settings.sample_weight, settings.group, self._labelled, self._vocabularies, _VERSION]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def encode(self, table: pa.Table) -> Encoded:
        """The arrays of these rows. Raises BadValue for a value that is none of what its feature or label takes."""
        read = _Columns(table)
        found: Encoded = {}
        for name, feature in self._settings.features.items():
            if feature.is_number:
                found[f"numbers.{name}"] = _numbers(feature, name, read)
            elif feature.length is not None:
                found |= self._listed_ids(feature, name, read)
            else:
                found[f"ids.{name}"] = self._single_ids(feature, name, read)
        if self._labelled:
            found |= self._targets(read)
        return found

    def _readings(self) -> dict[str, str]:
        wanted: dict[str, set[str]] = {}
        for column, reading in self._wanted():
            wanted.setdefault(column, set()).add(reading)
        readings = {}
        for column, found in wanted.items():
            if "list" in found and len(found) > 1:
                cause = f"task: column {column!r} is read as lists and as single values"
                raise Failure(Exit.BAD_RECIPE, cause, "give all features of it a length, or none")
            # Whatever wants another type casts it.
            readings[column] = max(found, key=_WIDENING.index)
        return readings

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Columns, and what somebody reads them as."""
        settings = self._settings
        for name, feature in settings.features.items():
            for column in feature.columns(name):
                yield column, _reading(feature)
            if feature.weights is not None:
                yield feature.weights, "list"
        if not self._labelled:
            return
        for name, label in settings.labels.items():
            yield label.column or name, "number"
        if settings.sample_weight is not None:
            yield settings.sample_weight, "number"
        if settings.group is not None:
            yield settings.group, "string"

    def _single_ids(self, feature: Feature, name: str, read: _Columns) -> np.ndarray:
        if feature.cross is not None:
            return _crossed(feature, [read.texts(column) for column in feature.cross])
        (column,) = feature.columns(name)
        if feature.boundaries is not None:
            numbers = read.numbers(column)
            # NaN, a value that is missing, would be beyond all boundaries.
            stretch = np.searchsorted(np.array(feature.boundaries), numbers, side="right") + 1
            return np.where(np.isnan(numbers), NULL, stretch)
        return self._rows(feature, name, read.whole(column), _Place(column))

    def _listed_ids(self, feature: Feature, name: str, read: _Columns) -> Encoded:
        assert feature.length is not None, "whoever calls it has looked"
        (column,) = feature.columns(name)
        values, offsets = read.lists(column, feature.separator)
        kept = _first_of_each(offsets, feature.length)
        rows = self._rows(feature, name, values, _Place(column, offsets))[kept]
        ends = np.concatenate([[0], np.cumsum(np.minimum(np.diff(offsets), feature.length))])
        found: Encoded = {f"ids.{name}": Ragged(rows, ends)}
        if feature.weights is not None:
            weights, their = read.lists(feature.weights, feature.separator)
            wrong = np.flatnonzero(np.diff(their) != np.diff(offsets))
            if len(wrong):
                ids, given = int(np.diff(offsets)[wrong[0]]), int(np.diff(their)[wrong[0]])
                raise BadValue(int(wrong[0]), feature.weights, f"has {given} weights for {ids} ids of {column}")
            numbers = _finite(_floats(weights, _Place(feature.weights, their)), _Place(feature.weights, their))
            found[f"id_weights.{name}"] = Ragged(np.nan_to_num(numbers)[kept].astype(np.float32), ends)
        return found

    def _rows(self, feature: Feature, name: str, values: pa.Array, place: _Place) -> np.ndarray:
        """The rows of a table that values are, int64."""
        if feature.buckets is not None:
            return _bucketed(feature.buckets, values, place)
        return _by_value(_texts(values), self._row_of_text(feature, name))

    def _row_of_text(self, feature: Feature, name: str) -> Callable[[pa.Array], np.ndarray]:
        """What gives the rows of texts of which none is null."""
        if feature.hash is not None:
            size = feature.hash
            return lambda texts: rows_of(hash_strings(texts), size) + 1
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array(self._vocabularies[name], pa.string())

        def looked_up(texts: pa.Array) -> np.ndarray:
            found = pc.index_in(texts.cast(pa.string()), value_set=known)
            return found.fill_null(_UNKNOWN - 2).to_numpy(zero_copy_only=False).astype(np.int64) + 2

        return looked_up

    def _targets(self, read: _Columns) -> Encoded:
        """Labels, weights of samples and groups."""
        settings = self._settings
        found: Encoded = {}
        for name, label in settings.labels.items():
            column = label.column or name
            found[f"labels.{name}"] = _checked_labels(label, column, read.numbers(column))
        if settings.sample_weight is not None:
            weights = read.numbers(settings.sample_weight)
            wrong = np.flatnonzero(~(weights >= 0))
            if len(wrong):
                why = f"{weights[wrong[0]]:g} is no weight of a sample: it is 0 or more"
                raise BadValue(int(wrong[0]), settings.sample_weight, why)
            found["sample_weights"] = weights.astype(np.float32)
        if settings.group is not None:
            # 53 bits, as many as metrics keep of a number.
            found["groups"] = (_by_value(read.texts(settings.group), hash_strings) >> np.uint64(11)).view(np.int64)
        return found


def table_of(settings: Ranking, name: str, vocabulary: Sequence[str] = ()) -> Table:
    """The table that a feature's ids are rows of: one for null, for vocabularies one for what they do not have, and
    one for each value."""
    feature = settings.features[name]
    rows = 1
    if feature.buckets is not None:
        rows += feature.buckets
    elif feature.hash is not None:
        rows += feature.hash
    elif feature.boundaries is not None:
        rows += len(feature.boundaries) + 1
    else:
        rows += 1 + len(vocabulary)
    return Table(feature.table or name, rows, settings.dim_of(feature))


def vocabularies(features: Mapping[str, Feature]) -> dict[str, list[str]]:
    """The values of each feature that has a vocabulary, in order.

    Raises Failure: 66 where a file is missing, 65 where one cannot be read, has nothing or a value twice.
    """
    found = {}
    for name, feature in features.items():
        if isinstance(feature.vocab, str):
            found[name] = _vocabulary(Path(feature.vocab))
        elif feature.vocab is not None:
            found[name] = list(feature.vocab)
    return found


def _vocabulary(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        cause = f"there is no vocabulary {path}: {error.strerror}"
        raise Failure(Exit.INPUT_MISSING, cause, "it is a file with a value in each line", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise Failure(Exit.BAD_DATA, f"{path} is no UTF-8: {error}", "convert it", file=str(path)) from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise Failure(Exit.BAD_DATA, f"{path} has no line", "a vocabulary has a value in each line", file=str(path))
    values: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        value = line.removesuffix("\r")
        if value in values:
            place = f"{path}:{number}"
            cause = f"{place}: {value!r} is in line {values[value]} already"
            raise Failure(Exit.BAD_DATA, cause, "a vocabulary has each value once", file=place)
        values[value] = number
    return list(values)


class _Place(NamedTuple):
    """Where values stand, for messages: their column and, where they are those of lists, int64 [rows + 1] of where each
    list begins."""

    column: str
    offsets: np.ndarray | None = None

    def bad(self, index: int, why: str) -> BadValue:
        """That the value at this place is none."""
        row = index
        if self.offsets is not None:
            row = int(np.searchsorted(self.offsets, index, side="right")) - 1
        return BadValue(row, self.column, why)


class _Columns:
    """Columns of a table, as the types that features want."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def whole(self, name: str) -> pa.Array:
        """A column in one piece."""
        return self._table.column(name).combine_chunks()

    def texts(self, name: str) -> pa.Array:
        """A column of strings, dictionary-encoded or not."""
        return _texts(self.whole(name))

    def numbers(self, name: str) -> np.ndarray:
        """A column of float64; NaN where it is null."""
        return _finite(_floats(self.whole(name), _Place(name)), _Place(name))

    def lists(self, name: str, separator: str | None) -> tuple[pa.Array, np.ndarray]:
        """The values of all lists, and int64 [rows + 1]: where each begins. A null list, and an empty text, has none.

        Raises Failure(78) for text without a separator.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.whole(name)
        if not _is_list(column.type):
            if separator is None:
                cause = f"task: column {name!r} is {column.type}, and no list"
                raise Failure(Exit.BAD_RECIPE, cause, "give the feature a separator, or take its length out")
            texts = _texts(column).cast(pa.string())
            # An empty text is no list of one empty text.
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            column = pc.split_pattern(texts, separator)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return column.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _reading(feature: Feature) -> str:
    """How the columns of a feature are read."""
    if feature.length is not None or feature.width > 1:
        return "list"
    if feature.buckets is not None:
        return "integer"
    if feature.boundaries is not None or feature.is_number:
        return "number"
    return "string"


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _texts(values: pa.Array) -> pa.Array:
    """Values as strings, those of a dictionary or not."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type) or pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values
    return values.cast(pa.string())


def _by_value(texts: pa.Array, found_of: Callable[[pa.Array], np.ndarray]) -> np.ndarray:
    """What `found_of` gives for each text, computed once for each of a dictionary; NULL for null."""
    import pyarrow as pa

    null = texts.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(texts.type):
        places = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        by_place = found_of(texts.dictionary)
        # A dictionary of nulls alone has no value to take.
        found = by_place[places] if len(by_place) else np.zeros(len(texts), np.int64)
    else:
        found = found_of(texts.fill_null(""))
    found[null] = NULL
    return found


def _bucketed(buckets: int, values: pa.Array, place: _Place) -> np.ndarray:
    """Whole numbers from 0 on as rows. An id beyond the table has no row, so it ends the run."""
    import pyarrow as pa

    null = values.is_null().to_numpy(zero_copy_only=False)
    whole = _cast(values, pa.int64(), "no whole number", place)
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= buckets))
    if len(wrong):
        raise place.bad(int(wrong[0]), f"{numbers[wrong[0]]} is no id from 0 to {buckets - 1} (buckets: {buckets})")
    return np.where(null, NULL, numbers + 1)


def _crossed(feature: Feature, columns: Sequence[pa.Array]) -> np.ndarray:
    """Rows of several columns' values together. Null is a value like others; where all are null the row is NULL."""
    assert feature.hash is not None, "the recipe sees to that"
    together = np.zeros(len(columns[0]), np.uint64)
    empty = np.ones(len(columns[0]), bool)
    for texts in columns:
        hashes = _by_value(texts, hash_strings)
        together = mix64(together * np.uint64(GOLDEN) + hashes + np.uint64(1))
        empty &= texts.is_null().to_numpy(zero_copy_only=False)
    return np.where(empty, NULL, rows_of(together, feature.hash) + 1)


def _numbers(feature: Feature, name: str, read: _Columns) -> np.ndarray:
    """Float32 [rows], or [rows, width]."""
    (column,) = feature.columns(name)
    place = _Place(column)
    if feature.width == 1:
        numbers = read.numbers(column)
    else:
        values, offsets = read.lists(column, feature.separator)
        place = _Place(column, offsets)
        lengths = np.diff(offsets)
        wrong = np.flatnonzero((lengths != feature.width) & (lengths != 0))
        if len(wrong):
            raise BadValue(int(wrong[0]), column, f"has {lengths[wrong[0]]} numbers, not {feature.width}")
        numbers = np.full((len(lengths), feature.width), np.nan)
        numbers[lengths > 0] = _finite(_floats(values, place), place).reshape(-1, feature.width)
    numbers = np.where(np.isnan(numbers), feature.default, numbers)
    if isinstance(feature.normalize, Standard):
        numbers = (numbers - feature.normalize.mean) / feature.normalize.std
    elif feature.normalize == "log1p":
        wrong = np.argwhere(numbers <= -1)
        if len(wrong):
            bad = numbers[tuple(wrong[0])]
            raise BadValue(int(wrong[0][0]), column, f"log1p takes numbers above -1, not {bad:g}")
        numbers = np.log1p(numbers)
    return numbers.astype(np.float32)


def _checked_labels(label: Label, column: str, numbers: np.ndarray) -> np.ndarray:
    """Labels, float32. Raises BadValue for one that its loss does not learn."""
    missing = np.isnan(numbers)
    if not label.optional and missing.any():
        why = "has no value; `optional: true` leaves such samples out of this label's loss"
        raise BadValue(int(missing.argmax()), column, why)
    if label.at_least is not None:
        return np.where(missing, np.nan, numbers >= label.at_least).astype(np.float32)
    if label.is_binary:
        wrong, what = ~np.isin(numbers, (0.0, 1.0)) & ~missing, "neither 0 nor 1; at_least makes yes or no of a number"
    elif label.classes is not None:
        there = np.isin(numbers, np.arange(label.classes))
        wrong, what = ~there & ~missing, f"no class from 0 to {label.classes - 1}"
    else:
        return numbers.astype(np.float32)
    if wrong.any():
        row = int(wrong.argmax())
        raise BadValue(row, column, f"{numbers[row]:g} is {what}")
    return numbers.astype(np.float32)


def _floats(values: pa.Array, place: _Place) -> np.ndarray:
    """Values as float64, NaN for null."""
    import pyarrow as pa

    return _cast(values, pa.float64(), "no number", place).fill_null(np.nan).to_numpy(zero_copy_only=False)


def _finite(numbers: np.ndarray, place: _Place) -> np.ndarray:
    """The same numbers. Raises BadValue for one that is infinite."""
    wrong = np.flatnonzero(np.isinf(numbers))
    if len(wrong):
        raise place.bad(int(wrong[0]), f"{numbers[wrong[0]]} is no finite number")
    return numbers


def _cast(values: pa.Array, kind: pa.DataType, what: str, place: _Place) -> pa.Array:
    """Values as another type. Raises BadValue for the first one that is none of it."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        for index in range(len(values)):
            try:
                values[index].cast(kind)
            except pa.ArrowInvalid:
                raise place.bad(index, f"{values[index].as_py()!r} is {what}") from None
        raise


def _first_of_each(offsets: np.ndarray, most: int) -> np.ndarray:
    """Which values of lists are among the first of their list, bool."""
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return within < most


def _chosen(settings: Any, names: Sequence[str]) -> dict[str, Any]:
    """Some of the settings, as JSON data."""
    return {name: value for name, value in asdict(settings).items() if name in names}
