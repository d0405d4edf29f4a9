"""Columns as the arrays that a batch is made of: features as services make them, and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from drivetrain.data.columns import Arrays, BadValue, gathered
from drivetrain.engine.tables.module import Table
from drivetrain.serving.features import Encoded, FeatureSpec, SideTable, Vocabulary, encoded
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import one_after_other
from drivetrain.tasks.ranking.recipe import Feature, Ranking, Standard, column_of
from drivetrain.tasks.ranking.values import ArrowColumns, checked_labels
from drivetrain.tasks.ranking.vocabularies import vocabularies

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = "key"
_VERSION = "1"  # of what is made of columns: another one gives other arrays of the same
_DECIDING = (
    *("column", "cross", "buckets", "hash", "vocab", "boundaries", "normalize", "default", "width"),
    *("length", "separator", "weights", "lookup"),
)
_OF_A_LABEL = ("column", "loss", "at_least", "classes", "optional")
_WIDENING = ("list", "integer", "number", "string")  # what holds all values of those before it, lists aside


class OpenedLookup(NamedTuple):
    """A table beside the samples, and the digest of what it is made of."""

    table: SideTable
    fingerprint: str


class FeatureEncoder:
    """Reads the columns that a recipe's features and labels are made of.

    `encode` gives by key: `ids.FEATURE`, int64 [rows] or ragged; `id_weights.FEATURE`, float32, ragged;
    `numbers.FEATURE`, float32 [rows] or [rows, width]; `labels.LABEL`, float32 [rows], NaN where there is none;
    `sample_weights`, float32 [rows]; `groups`, int64 [rows]. Without `labelled` it reads features only.
    """

    def __init__(self, settings: Ranking, sides: Mapping[str, OpenedLookup], *, labelled: bool = True) -> None:
        """`sides` are the tables of `task.lookups`, by name.

        Raises Failure: 66 where a vocabulary is missing, 65 where it has nothing or a value twice, 78 where one column
        is read both as lists and as single values.
        """
        self._settings, self.sides, self._labelled = settings, sides, labelled
        own = {name: feature for name, feature in settings.features.items() if feature.lookup is None}
        self._features = FeatureColumns(own)
        self.columns: Mapping[str, str] = _readings([*self._features.wanted(), *self._wanted()])
        self.digest = self._digest()

    @property
    def specs(self) -> Mapping[str, FeatureSpec]:
        """How the features of the samples' own columns are made."""
        return self._features.specs

    def _digest(self) -> str:
        """SHA-256 of all that decides what `encode` gives."""
        settings = self._settings
        labels = {name: _chosen(each, _OF_A_LABEL) for name, each in settings.labels.items()}
        sides = {name: [settings.lookups[name].by, side.fingerprint] for name, side in self.sides.items()}
        told = [self._features.decided_by, sides, labels, settings.sample_weight, settings.group, self._labelled]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def encode(self, table: pa.Table) -> Encoded:
        """The arrays of these rows. Raises BadValue for a value that is none of what its feature or label takes."""
        read = ArrowColumns(table)
        found = self._features.encode(read)
        for name, side in self.sides.items():
            found |= side.table.of(read.values(self._settings.lookups[name].by))
        if self._labelled:
            found |= self._targets(read)
        return found

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Columns that are not those of features, and what they are read as."""
        settings = self._settings
        for name in self.sides:
            yield settings.lookups[name].by, "string"
        if not self._labelled:
            return
        for name, label in settings.labels.items():
            yield column_of(label.column, name), "number"
        if settings.sample_weight is not None:
            yield settings.sample_weight, "number"
        if settings.group is not None:
            yield settings.group, "string"

    def _targets(self, read: ArrowColumns) -> Encoded:
        """Labels, weights of samples and groups."""
        settings = self._settings
        found: Encoded = {}
        for name, label in settings.labels.items():
            column = column_of(label.column, name)
            found[f"labels.{name}"] = checked_labels(label, column, read.values(column).numbers())
        if settings.sample_weight is not None:
            weights = read.values(settings.sample_weight).numbers()
            wrong = np.flatnonzero(~(weights >= 0))
            if len(wrong):
                why = f"{weights[wrong[0]]:g} is no weight of a sample: it is 0 or more"
                raise BadValue(int(wrong[0]), settings.sample_weight, why)
            found["sample_weights"] = weights.astype(np.float32)
        if settings.group is not None:
            # 53 bits, as many as metrics keep of a number.
            hashes = read.values(settings.group).by_text(lambda texts: texts.hashes())
            found["groups"] = (hashes >> np.uint64(11)).view(np.int64)
        return found


class FeatureColumns:
    """Features that are read from the columns of one table."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        """Raises Failure as `vocabularies`."""
        self._features = features
        self._vocabularies = vocabularies(features)
        self.specs = {name: _spec(name, each, self._vocabularies.get(name)) for name, each in features.items()}

    @property
    def decided_by(self) -> list[Any]:
        """All that decides what `encode` gives, as JSON data."""
        features = {name: _chosen(each, _DECIDING) for name, each in self._features.items()}
        for name, feature in self._features.items():
            if feature.keyed is not None:  # when a key gets a row is no matter of data
                features[name]["keyed"] = True
            if feature.map_key is not None:  # a later field: without it all is as it was
                features[name]["map_key"] = feature.map_key
        return [features, self._vocabularies, _VERSION]

    def wanted(self) -> Iterator[tuple[str, str]]:
        """Columns, and what somebody reads them as."""
        for name, feature in self._features.items():
            for column in feature.columns(name):
                yield column, _reading(feature)
            if feature.weights is not None:
                yield feature.weights, "list"
            if feature.map_key is not None:
                yield feature.map_key, "string"

    def encode(self, read: ArrowColumns) -> Encoded:
        """The arrays of all features. Raises BadValue."""
        return encoded(self.specs, read)


def side_table(arrays: Arrays, without: Encoded, where: str) -> SideTable:
    """`arrays` are those of a `SideEncoder`, `without` its arrays of a row that has nothing: what samples get whose key
    is not there. `where` is the file, for messages. Raises Failure(65) where a key is there twice."""
    keys = np.asarray(arrays[_KEY])
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    if (ascending[1:] == ascending[:-1]).any():
        row = int(order[1:][ascending[1:] == ascending[:-1]].min())
        cause = f"{where}: the key of row {row + 1} is that of an earlier one"
        raise Failure(Exit.BAD_DATA, cause, "a table that is looked up has each key once", file=where)
    own = {key: column for key, column in arrays.items() if key in without}
    return SideTable(ascending, one_after_other([gathered(own, order), without]))


class SideEncoder:
    """Reads the columns of a table that is looked up: `encode` gives the arrays of its features, and hashed keys."""

    def __init__(self, features: Mapping[str, Feature], key: str) -> None:
        self._features, self._key = FeatureColumns(features), key
        self.columns: Mapping[str, str] = _readings([*self._features.wanted(), (key, "string")])
        told = json.dumps([self._features.decided_by, key], sort_keys=True)
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    def encode(self, table: pa.Table) -> Encoded:
        """The arrays of these rows. Raises BadValue, also for a key that is null."""
        read = ArrowColumns(table)
        keys = read.values(self._key)
        if keys.null.any():
            raise BadValue(int(keys.null.argmax()), self._key, "the key has no value")
        return {**self._features.encode(read), _KEY: keys.by_text(lambda texts: texts.hashes())}

    def encode_nothing(self) -> Encoded:
        """The arrays of one row in which every column is null."""
        import pyarrow as pa

        kinds = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "list": pa.list_(pa.string())}
        nulls = {name: pa.nulls(1, kinds[reading]) for name, reading in self.columns.items()}
        return self._features.encode(ArrowColumns(pa.table(nulls)))


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


def _spec(name: str, feature: Feature, words: Sequence[str] | None) -> FeatureSpec:
    """How the feature of this name is made of columns."""
    normalize, vocabulary = feature.normalize, None
    if words is not None:
        vocabulary = Vocabulary(tuple(words))
    return FeatureSpec(
        columns=feature.columns(name),
        buckets=feature.buckets,
        hash=feature.hash,
        vocabulary=vocabulary,
        keyed=feature.keyed is not None,
        boundaries=feature.boundaries,
        normalize=asdict(normalize) if isinstance(normalize, Standard) else normalize,
        default=feature.default,
        width=feature.width,
        length=feature.length,
        separator=feature.separator,
        weights=feature.weights,
        map_key=feature.map_key,
    )


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
    if feature.map_key is not None:
        return "string"
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
