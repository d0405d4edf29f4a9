"""A computed log of what users clicked and bought: every row is a function of its number alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data.columns import ROW, Arrays, BadValue, Columns, Encoder, gathered
from drivetrain.data.fingerprint import combined
from drivetrain.data.order import GOLDEN, mix64
from drivetrain.data.rows import no_column
from drivetrain.data.split import choose, marks
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import one_after_other
from drivetrain.tasks.ranking.metrics import auc
from drivetrain.tasks.ranking.recipe import Clicks

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 1 << 16
"""Rows that are made at a time."""
_TASTES = 3  # numbers of a user's taste, and of a tag's character
_TAGS = ("new", "sale", "red", "blue", "small", "large", "wool", "silk", "sport", "home", "gift", "luxury")
_DEVICES = ("phone", "tablet", "desktop", "television")
_VERSION = "1"  # of the computation: it has no file whose content could tell one from another
# What is drawn, each by a number of its own.
_USER, _ITEM, _HOUR, _DEVICE, _NOISE, _CLICK, _BUY, _LIKES, _APPEAL, _TASTE, _PRICE, _TAG, _THRIFT = range(13)


class ComputedClicks:
    """The rows of a log, before anybody has said what is read of them: see `encoded`."""

    thread_safe = True

    def __init__(self, settings: Clicks) -> None:
        """Raises Failure(65) where the part that the settings name is empty."""
        self._settings = settings
        self._rows = np.asarray(choose(settings.samples, settings), np.int64)
        if not len(self._rows):
            cause = f"clicks: none of {settings.samples} samples is in {settings.part}"
            raise Failure(Exit.BAD_DATA, cause, "look at part and split")
        shape = (settings.samples, settings.users, settings.items, settings.appeal)
        self.fingerprint = combined(["clicks", _VERSION, *map(str, shape), *marks(settings)])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """Rows as dicts of all columns."""
        return self._table(ids, _COLUMNS).to_pylist()

    def encoded(self, encoder: Encoder) -> EncodedClicks:
        """The rows as an encoder has them. Raises Failure(65) where it reads a column that is not there, or finds a
        value that is none."""
        for name in encoder.columns:
            if name not in _COLUMNS:
                raise no_column(name, list(_COLUMNS), "a source of kind clicks")
        parts = []
        for start in range(0, len(self), _BLOCK):
            ids = np.arange(start, min(start + _BLOCK, len(self)), dtype=np.int64)
            try:
                parts.append(encoder.encode(self._table(ids, encoder.columns)))
            except BadValue as bad:
                place = f"clicks: row {self._rows[start + bad.row]}"
                cause = f"{place}: column {bad.column!r}: {bad.why}"
                raise Failure(Exit.BAD_DATA, cause, "mend the recipe", file=place) from bad
        return EncodedClicks(one_after_other(parts), len(self), combined([self.fingerprint, encoder.digest]))

    def _table(self, ids: np.ndarray, columns: Collection[str]) -> pa.Table:
        """Some columns of rows; the values of a mapping say what each is read as."""
        try:
            import pyarrow as pa
        except ImportError:
            cause = "a source of kind clicks needs pyarrow"
            raise Failure(Exit.INPUT_MISSING, cause, "pip install 'drivetrain[data]'") from None
        found = computed(self._settings, self._rows[ids])
        kinds = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}
        arrays = {}
        for name in columns:
            arrays[name] = pa.array(found[name], from_pandas=True)  # NaN is null
            if isinstance(columns, Mapping) and columns[name] in kinds:
                arrays[name] = arrays[name].cast(kinds[columns[name]])
        return pa.table(arrays)


class EncodedClicks:
    """The rows of a log as arrays, all in memory."""

    thread_safe = True

    def __init__(self, arrays: Arrays, count: int, fingerprint: str) -> None:
        self._arrays, self._count, self.fingerprint = arrays, count, fingerprint

    def __len__(self) -> int:
        """Number of rows."""
        return self._count

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Columns:
        """The rows with these numbers."""
        return Columns({**gathered(self._arrays, ids), ROW: ids})


def open_clicks(settings: Clicks, cache: Path) -> ComputedClicks:
    """A computed log of clicks. Raises Failure(65) where a part is empty."""
    return ComputedClicks(settings)


def best_auc(settings: Clicks) -> float:
    """The AUC of who knows how likely each click of this part is: no model can be expected to have a higher one."""
    rows = np.asarray(choose(settings.samples, settings), np.int64)
    found = computed(settings, rows)
    return auc(found["probability"], found["click"].astype(np.float64), np.ones(len(rows)))


def computed(settings: Clicks, rows: np.ndarray) -> dict[str, Any]:
    """All columns of the rows with these numbers (int64): arrays [rows], `tags` lists, `buy` NaN where nothing was
    clicked."""
    users = (_uniform(rows, _USER) * settings.users).astype(np.int64)
    # Few items are much seen, as everywhere.
    items = (_uniform(rows, _ITEM) ** 2 * settings.items).astype(np.int64)
    hours = (_uniform(rows, _HOUR) * 24).astype(np.int64)
    devices = (_uniform(rows, _DEVICE) ** 1.5 * len(_DEVICES)).astype(np.int64)
    prices = np.exp(1 + 3 * _uniform(items, _PRICE) + 0.2 * _normal(rows, _NOISE))
    tags = _tags_of(settings.items)
    liking = (_tastes(users, _TASTE) * _characters(tags)[items]).sum(axis=1)
    thrift = 0.3 * _normal(users, _THRIFT) * (np.log(prices) - 2.5)
    evening = 0.3 * np.cos((hours - 20) * np.pi / 12)
    logits = _log_odds(settings.appeal) + 0.7 * _normal(users, _LIKES) + 0.7 * _normal(items, _APPEAL)
    logits += liking + thrift + evening - 0.2 * devices
    probabilities = 1 / (1 + np.exp(-logits))
    clicks = (_uniform(rows, _CLICK) < probabilities).astype(np.int64)
    bought = _uniform(rows, _BUY) < 1 / (1 + np.exp(1 - 0.5 * liking - 2 * thrift - 0.5 * (devices == 2)))
    words: list[list[str]] = []  # of each item
    for of_item in tags:
        words.append([_TAGS[number] for number in of_item])
    return {
        "user": users,
        "item": items,
        "hour": hours,
        "device": list(map(_DEVICES.__getitem__, devices)),
        "tags": list(map(words.__getitem__, items)),
        "price": prices,
        "click": clicks,
        "buy": np.where(clicks > 0, bought.astype(np.float64), np.nan),
        "probability": probabilities,
    }


_COLUMNS = ("user", "item", "hour", "device", "tags", "price", "click", "buy", "probability")


def _tags_of(items: int) -> list[list[int]]:
    """Up to three tags of each item, ascending."""
    drawn = np.stack([_uniform(np.arange(items), _TAG + place) for place in range(3)], axis=1)
    found = []
    for row in (drawn * 2 * len(_TAGS)).astype(np.int64):
        found.append(sorted({int(tag) for tag in row if tag < len(_TAGS)}))
    return found


def _characters(tags: list[list[int]]) -> np.ndarray:
    """What users like or dislike about each item, [items, tastes]: the sum over its tags."""
    of_tags = _tastes(np.arange(len(_TAGS)), _TAG + _TASTES)
    found = np.zeros((len(tags), _TASTES))
    for item, each in enumerate(tags):
        found[item] = of_tags[each].sum(axis=0)
    return found


def _tastes(numbers: np.ndarray, what: int) -> np.ndarray:
    """Vectors of users or tags, [numbers, tastes]."""
    return np.stack([0.8 * _normal(numbers, (what + 1) * 100 + place) for place in range(_TASTES)], axis=1)


def _log_odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _uniform(numbers: np.ndarray, what: int) -> np.ndarray:
    """A number in [0, 1) for each of these, the same for ever; `what` tells apart what is drawn."""
    bits = mix64(mix64(numbers.astype(np.uint64)) + np.uint64(what * GOLDEN % (1 << 64)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(numbers: np.ndarray, what: int) -> np.ndarray:
    """About normal: the sum of four even numbers, with variance 1."""
    return sum(_uniform(numbers, what * 1000 + place) - 0.5 for place in range(4)) * np.sqrt(3.0)  # type: ignore
