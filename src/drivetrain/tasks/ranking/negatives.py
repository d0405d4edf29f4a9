"""Items that a user did not choose: drawn by position, the same ones whoever reads, and never one that was chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from drivetrain.data.columns import Columns, gathered, scattered
from drivetrain.data.costs import Costed
from drivetrain.data.fingerprint import combined
from drivetrain.data.lane_order import InBlocks, LaneOrder
from drivetrain.data.order import GOLDEN, mix64
from drivetrain.data.rows import place_of
from drivetrain.data.source import Source
from drivetrain.runtime.mix import mix
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import one_after_other
from drivetrain.tasks.ranking.recipe import Negatives

NONE = -1
"""In place of an item where a user has chosen all there are."""
_DRAWN = 1 << 34  # a place in the seeds' path that no step has
_ROUNDS = 64
"""How often an item is drawn again that the user has chosen; then one of those that are left is taken."""
_BLOCK = 1 << 16
"""Rows that are looked through at a time."""


class NegativeSampler:
    """Draws items for users, from a set of pairs of a user and an item that was chosen.

    Items are numbered from 0 on; users are int64 of any value.
    """

    def __init__(self, users: np.ndarray, items: np.ndarray, count: int, settings: Negatives) -> None:
        """`users` and `items`, int64 [pairs], are what was chosen; `count` is how many items there are."""
        self._count, self._seed = count, mix(settings.seed, _DRAWN)
        self._users = np.unique(users)
        # A pair is one number, so that a sorted array tells whether it is there.
        self._chosen = np.unique(np.searchsorted(self._users, users) * count + items)
        self._shares = None
        if settings.kind == "popularity":
            sums = np.cumsum(np.bincount(items, minlength=count).astype(np.float64) ** settings.power)
            self._shares = sums / sums[-1]

    def draw(self, users: np.ndarray, positions: np.ndarray, each: int) -> np.ndarray:
        """Items for samples: int64 [samples, each], NONE where a user has chosen all.

        `users` and `positions` are int64 [samples]. A sample's items follow from its user and position alone.
        """
        first = self._first_pair(np.repeat(users, each))
        slots = np.repeat(positions.astype(np.uint64), each) * np.uint64(each)
        slots += np.tile(np.arange(each, dtype=np.uint64), len(users))
        bits = mix64(slots * np.uint64(GOLDEN) ^ np.uint64(self._seed))
        found = np.full(len(bits), NONE, np.int64)
        left = np.arange(len(bits))
        for attempt in range(_ROUNDS):
            items = self._items(mix64(bits[left] + np.uint64(attempt)))
            free = ~self._is_chosen(first[left], items)
            found[left[free]] = items[free]
            left = left[~free]
            if not len(left):
                break
        for slot in left:
            found[slot] = self._one_of_the_rest(int(first[slot]), int(bits[slot]))
        return found.reshape(len(users), each)

    def _first_pair(self, users: np.ndarray) -> np.ndarray:
        """The number of a user's pair with item 0; NONE where the user has chosen nothing."""
        places = np.searchsorted(self._users, users)
        known = self._users[np.minimum(places, len(self._users) - 1)] == users
        return np.where(known, places * self._count, NONE)

    def _items(self, bits: np.ndarray) -> np.ndarray:
        if self._shares is None:
            return (bits % np.uint64(self._count)).astype(np.int64)
        # The upper 53 bits are a number in [0, 1).
        return np.searchsorted(self._shares, (bits >> np.uint64(11)) * 2.0**-53, side="right").astype(np.int64)

    def _is_chosen(self, first: np.ndarray, items: np.ndarray) -> np.ndarray:
        pairs = first + items
        places = np.minimum(np.searchsorted(self._chosen, pairs), len(self._chosen) - 1)
        return (first >= 0) & (self._chosen[places] == pairs)

    def _one_of_the_rest(self, first: int, bits: int) -> int:
        """For a user who has chosen nearly all: every other item alike."""
        start, stop = np.searchsorted(self._chosen, [first, first + self._count])
        rest = np.setdiff1d(np.arange(self._count), self._chosen[start:stop] - first)
        return int(rest[bits % len(rest)]) if len(rest) else NONE


@dataclass(frozen=True)
class Keys:
    """What the arrays of a source are called that say who and which (int64 [rows]), that an item has, and that is 1
    where the user chose the item; None: every row is a choice."""

    user: str
    item: str
    features: Collection[str]
    label: str | None = None


class Catalogue:
    """What there is of items in a source: the first row of each, as arrays, and who has chosen which."""

    def __init__(self, source: Source, keys: Keys, settings: Negatives) -> None:
        """All of the source is read once, and two numbers of each row are kept while it is.

        Raises Failure(65) where nobody has chosen anything.
        """
        users, items, firsts = [], [], []
        for start in range(0, len(source), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(source)), dtype=np.int64)
            arrays = source.read(rows, rows).arrays  # type: ignore[attr-defined] - they are `Columns`
            _, first = np.unique(arrays[keys.item], return_index=True)
            firsts.append(gathered({key: arrays[key] for key in keys.features}, first))
            chosen = np.full(len(rows), True) if keys.label is None else arrays[keys.label] > 0
            users.append(arrays[keys.user][chosen])
            items.append(arrays[keys.item][chosen])
        together = one_after_other(firsts)
        ids, first = np.unique(together[keys.item], return_index=True)  # type: ignore[arg-type] - it is single
        pairs = np.concatenate(users), np.searchsorted(ids, np.concatenate(items))
        if not len(pairs[0]):
            cause = f"no sample has a {keys.label} of 1: there is nothing to draw negatives for"
            raise Failure(Exit.BAD_DATA, cause, "name another label")
        self.arrays = gathered(together, first)
        self.sampler = NegativeSampler(*pairs, len(ids), settings)


class WithNegatives:
    """A source whose samples' items come with others, drawn for the position: the arrays of an item's features have
    for each sample its own item, and behind it `count` others. Where there is none to draw, its id is NONE."""

    thread_safe = True

    def __init__(self, source: Source, catalogue: Catalogue, keys: Keys, settings: Negatives) -> None:
        self._source, self._given = source, (catalogue, keys, settings)
        self.fingerprint = combined([source.fingerprint, "negatives"])
        self.notes: tuple[str, ...] = tuple(getattr(source, "notes", ()))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._source)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Columns:
        """The samples with these numbers, and the items that are drawn for these positions."""
        catalogue, keys, settings = self._given
        arrays: dict[str, Any] = dict(self._source.read(ids, positions).arrays)  # type: ignore[attr-defined]
        drawn = catalogue.sampler.draw(arrays[keys.user], positions, settings.count)
        others = gathered(catalogue.arrays, np.maximum(drawn.ravel(), 0))
        others[keys.item][drawn.ravel() == NONE] = NONE  # type: ignore[index] - it is single
        # Each sample's own item, and behind it the drawn ones.
        places = np.arange(len(ids) * (1 + drawn.shape[1])).reshape(len(ids), -1)
        own = {key: arrays[key] for key in keys.features}
        parts = [(places[:, 0], own), (places[:, 1:].ravel(), others)]
        return Columns(arrays | scattered(parts, places.size))

    def costs(self) -> np.ndarray | None:
        """What each sample costs; None where the source does not say it."""
        return self._source.costs() if isinstance(self._source, Costed) else None

    def place(self, number: int) -> str:
        """Where a sample stands, in words."""
        return place_of(self._source, number)


class BlocksWithNegatives(WithNegatives):
    """The same of a source whose samples lie in blocks, and are read from block to block."""

    def __init__(self, source: InBlocks, catalogue: Catalogue, keys: Keys, settings: Negatives) -> None:
        super().__init__(source, catalogue, keys, settings)  # type: ignore[arg-type] - it is a source, too
        self._following, self.blocks = source.following, source.blocks

    def following(self, order: LaneOrder) -> BlocksWithNegatives:
        """The same samples, for one who reads them in this order."""
        return BlocksWithNegatives(self._following(order), *self._given)  # type: ignore[arg-type]


def with_negatives(source: Source, catalogue: Catalogue, keys: Keys, settings: Negatives) -> WithNegatives:
    """A source with drawn items beside each sample's own."""
    if isinstance(source, InBlocks):
        return BlocksWithNegatives(source, catalogue, keys, settings)
    return WithNegatives(source, catalogue, keys, settings)
