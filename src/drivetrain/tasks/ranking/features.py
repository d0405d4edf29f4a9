"""Columns as the arrays that a batch is made of. Training, predictions and exports all go through `FeatureEncoder`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data.columns import Arrays, BadValue, Ragged, gathered
from drivetrain.data.hashing import hash_strings, rows_of
from drivetrain.engine.tables.module import Table
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import one_after_other
from drivetrain.tasks.ranking.recipe import Feature, Ranking
from drivetrain.tasks.ranking.values import (
    NULL,
    Place,
    TableColumns,
    arrow_functions,
    bucketed,
    by_value,
    checked_labels,
    crossed,
    finite,
    first_of_each,
    floats,
    keys_of,
    normalized,
    texts_of,
)
from drivetrain.tasks.ranking.vocabularies import vocabularies

if TYPE_CHECKING:
    import pyarrow as pa

Encoded = dict[str, "np.ndarray | Ragged"]
_KEY = "key"
_UNKNOWN = 1  # the row of values that a vocabulary does not have
_VERSION = "1"  # of what is made of columns: another one gives other arrays of the same
_DECIDING = (
    *("column", "cross", "buckets", "hash", "vocab", "boundaries", "normalize", "default", "width"),
    *("length", "separator", "weights", "lookup"),
)
_OF_A_LABEL = ("column", "loss", "at_least", "classes", "optional")
_WIDENING = ("list", "integer", "number", "string")  # what holds all values of those before it, lists aside


class FeatureEncoder:
    """Reads the columns that a recipe's features and labels are made of.

    `encode` gives by key: `ids.FEATURE`, int64 [rows] or ragged; `id_weights.FEATURE`, float32, ragged;
    `numbers.FEATURE`, float32 [rows] or [rows, width]; `labels.LABEL`, float32 [rows], NaN where there is none;
    `sample_weights`, float32 [rows]; `groups`, int64 [rows]. Without `labelled` it reads features only.
    """

    def __init__(self, settings: Ranking, sides: Mapping[str, SideTable], *, labelled: bool = True) -> None:
        """`sides` are the tables of `task.lookups`, by name.

        Raises Failure: 66 where a vocabulary is missing, 65 where it has nothing or a value twice, 78 where one column
        is read both as lists and as single values.
        """
        self._settings, self._sides, self._labelled = settings, sides, labelled
        own = {name: feature for name, feature in settings.features.items() if feature.lookup is None}
        self._features = FeatureColumns(own)
        self.columns: Mapping[str, str] = _readings([*self._features.wanted(), *self._wanted()])
        self.digest = self._digest()

    def _digest(self) -> str:
        """SHA-256 of all that decides what `encode` gives."""
        settings = self._settings
        labels = {name: _chosen(each, _OF_A_LABEL) for name, each in settings.labels.items()}
        sides = {name: [settings.lookups[name].by, side.fingerprint] for name, side in self._sides.items()}
        told = [self._features.decided_by, sides, labels, settings.sample_weight, settings.group, self._labelled]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def encode(self, table: pa.Table) -> Encoded:
        """The arrays of these rows. Raises BadValue for a value that is none of what its feature or label takes."""
        read = TableColumns(table)
        found = self._features.encode(read)
        for name, side in self._sides.items():
            found |= side.of(read.texts(self._settings.lookups[name].by))
        if self._labelled:
            found |= self._targets(read)
        return found

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Columns that are not those of features, and what they are read as."""
        settings = self._settings
        for name in self._sides:
            yield settings.lookups[name].by, "string"
        if not self._labelled:
            return
        for name, label in settings.labels.items():
            yield label.column or name, "number"
        if settings.sample_weight is not None:
            yield settings.sample_weight, "number"
        if settings.group is not None:
            yield settings.group, "string"

    def _targets(self, read: TableColumns) -> Encoded:
        """Labels, weights of samples and groups."""
        settings = self._settings
        found: Encoded = {}
        for name, label in settings.labels.items():
            column = label.column or name
            found[f"labels.{name}"] = checked_labels(label, column, read.numbers(column))
        if settings.sample_weight is not None:
            weights = read.numbers(settings.sample_weight)
            wrong = np.flatnonzero(~(weights >= 0))
            if len(wrong):
                why = f"{weights[wrong[0]]:g} is no weight of a sample: it is 0 or more"
                raise BadValue(int(wrong[0]), settings.sample_weight, why)
            found["sample_weights"] = weights.astype(np.float32)
        if settings.group is not None:
            # 53 bits, as many as metrics keep of a number.
            found["groups"] = (by_value(read.texts(settings.group), hash_strings) >> np.uint64(11)).view(np.int64)
        return found


class FeatureColumns:
    """Features that are read from the columns of one table."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        """Raises Failure as `vocabularies`."""
        self._features = features
        self._vocabularies = vocabularies(features)

    @property
    def decided_by(self) -> list[Any]:
        """All that decides what `encode` gives, as JSON data."""
        features = {name: _chosen(each, _DECIDING) for name, each in self._features.items()}
        for name, feature in self._features.items():
            if feature.keyed is not None:  # when a key gets a row is no matter of data
                features[name]["keyed"] = True
        return [features, self._vocabularies, _VERSION]

    def wanted(self) -> Iterator[tuple[str, str]]:
        """Columns, and what somebody reads them as."""
        for name, feature in self._features.items():
            for column in feature.columns(name):
                yield column, _reading(feature)
            if feature.weights is not None:
                yield feature.weights, "list"

    def encode(self, read: TableColumns) -> Encoded:
        """The arrays of all features. Raises BadValue."""
        found: Encoded = {}
        for name, feature in self._features.items():
            if feature.is_number:
                found[f"numbers.{name}"] = normalized(feature, name, read)
            elif feature.length is not None:
                found |= self._listed_ids(feature, name, read)
            else:
                found[f"ids.{name}"] = self._single_ids(feature, name, read)
        return found

    def _single_ids(self, feature: Feature, name: str, read: TableColumns) -> np.ndarray:
        if feature.cross is not None:
            return crossed(feature, [read.texts(column) for column in feature.cross])
        (column,) = feature.columns(name)
        if feature.boundaries is not None:
            numbers = read.numbers(column)
            # NaN, a value that is missing, would be beyond all boundaries.
            stretch = np.searchsorted(np.array(feature.boundaries), numbers, side="right") + 1
            return np.where(np.isnan(numbers), NULL, stretch)
        return self._rows(feature, name, read.whole(column), Place(column))

    def _listed_ids(self, feature: Feature, name: str, read: TableColumns) -> Encoded:
        assert feature.length is not None, "whoever calls it has looked"
        (column,) = feature.columns(name)
        values, offsets = read.lists(column, feature.separator)
        kept = first_of_each(offsets, feature.length)
        rows = self._rows(feature, name, values, Place(column, offsets))[kept]
        ends = np.concatenate([[0], np.cumsum(np.minimum(np.diff(offsets), feature.length))])
        found: Encoded = {f"ids.{name}": Ragged(rows, ends)}
        if feature.weights is not None:
            weights, their = read.lists(feature.weights, feature.separator)
            wrong = np.flatnonzero(np.diff(their) != np.diff(offsets))
            if len(wrong):
                ids, given = int(np.diff(offsets)[wrong[0]]), int(np.diff(their)[wrong[0]])
                raise BadValue(int(wrong[0]), feature.weights, f"has {given} weights for {ids} ids of {column}")
            numbers = finite(floats(weights, Place(feature.weights, their)), Place(feature.weights, their))
            found[f"id_weights.{name}"] = Ragged(np.nan_to_num(numbers)[kept].astype(np.float32), ends)
        return found

    def _rows(self, feature: Feature, name: str, values: pa.Array, place: Place) -> np.ndarray:
        """The rows of a table that values are, int64."""
        if feature.buckets is not None:
            return bucketed(feature.buckets, values, place)
        return by_value(texts_of(values), self._row_of_text(feature, name))

    def _row_of_text(self, feature: Feature, name: str) -> Callable[[pa.Array], np.ndarray]:
        """What gives the rows of texts of which none is null."""
        if feature.hash is not None:
            size = feature.hash
            return lambda texts: rows_of(hash_strings(texts), size) + 1
        if feature.keyed is not None:
            return lambda texts: keys_of(hash_strings(texts))
        import pyarrow as pa

        known = pa.array(self._vocabularies[name], pa.string())

        def looked_up(texts: pa.Array) -> np.ndarray:
            found = arrow_functions().index_in(texts.cast(pa.string()), value_set=known)
            return found.fill_null(_UNKNOWN - 2).to_numpy(zero_copy_only=False).astype(np.int64) + 2

        return looked_up


class SideTable:
    """The features of a table beside the samples, encoded once, and which of its rows a sample's key is."""

    def __init__(self, arrays: Arrays, without: Encoded, where: str, fingerprint: str) -> None:
        """`arrays` are those of a `SideEncoder`, `without` its arrays of a row that has nothing: what samples get whose
        key is not there. `where` is the file, for messages. Raises Failure(65) where a key is there twice."""
        keys = np.asarray(arrays[_KEY])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (self._keys[1:] == self._keys[:-1]).any():
            row = int(self._order[1:][self._keys[1:] == self._keys[:-1]].min())
            cause = f"{where}: the key of row {row + 1} is that of an earlier one"
            raise Failure(Exit.BAD_DATA, cause, "a table that is looked up has each key once", file=where)
        own = {key: column for key, column in arrays.items() if key in without}
        self._arrays = one_after_other([own, without])
        self.fingerprint = fingerprint

    def of(self, keys: pa.Array) -> Encoded:
        """The arrays of samples that have these keys."""
        null = keys.is_null().to_numpy(zero_copy_only=False)
        hashes = by_value(keys, hash_strings)
        places = np.minimum(self._keys.searchsorted(hashes), len(self._keys) - 1)
        there = (self._keys[places] == hashes) & ~null
        return gathered(self._arrays, np.where(there, self._order[places], len(self._order)))


class SideEncoder:
    """Reads the columns of a table that is looked up: `encode` gives the arrays of its features, and hashed keys."""

    def __init__(self, features: Mapping[str, Feature], key: str) -> None:
        self._features, self._key = FeatureColumns(features), key
        self.columns: Mapping[str, str] = _readings([*self._features.wanted(), (key, "string")])
        told = json.dumps([self._features.decided_by, key], sort_keys=True)
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    def encode(self, table: pa.Table) -> Encoded:
        """The arrays of these rows. Raises BadValue, also for a key that is null."""
        read = TableColumns(table)
        keys = read.texts(self._key)
        if keys.null_count:
            row = int(keys.is_null().to_numpy(zero_copy_only=False).argmax())
            raise BadValue(row, self._key, "the key has no value")
        return {**self._features.encode(read), _KEY: by_value(keys, hash_strings)}

    def encode_nothing(self) -> Encoded:
        """The arrays of one row in which every column is null."""
        import pyarrow as pa

        kinds = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "list": pa.list_(pa.string())}
        nulls = {name: pa.nulls(1, kinds[reading]) for name, reading in self.columns.items()}
        return self._features.encode(TableColumns(pa.table(nulls)))


def table_of(settings: Ranking, name: str, vocabulary: Sequence[str] = ()) -> Table:
    """The table that a feature's ids are rows of: one for null, for vocabularies one for what they do not have, and
    one for each value. Of a keyed one they are the keys."""
    feature = settings.features[name]
    if feature.keyed is not None:
        return Table(feature.table or name, feature.keyed.rows, settings.dim_of(feature), keyed=feature.keyed)
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


def _readings(wanted: Sequence[tuple[str, str]]) -> dict[str, str]:
    """What each column is read as, where several want it."""
    found: dict[str, set[str]] = {}
    for column, reading in wanted:
        found.setdefault(column, set()).add(reading)
    readings = {}
    for column, several in found.items():
        if "list" in several and len(several) > 1:
            cause = f"task: column {column!r} is read as lists and as single values"
            raise Failure(Exit.BAD_RECIPE, cause, "give all features of it a length, or none")
        # Whatever wants another type casts it.
        readings[column] = max(several, key=_WIDENING.index)
    return readings


def _reading(feature: Feature) -> str:
    """How the columns of a feature are read."""
    if feature.length is not None or feature.width > 1:
        return "list"
    if feature.buckets is not None:
        return "integer"
    if feature.boundaries is not None or feature.is_number:
        return "number"
    return "string"


def _chosen(settings: Any, names: Sequence[str]) -> dict[str, Any]:
    """Some of the settings, as JSON data."""
    return {name: value for name, value in asdict(settings).items() if name in names}
