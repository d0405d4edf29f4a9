"""Train, validation and test as parts of one source: by a stable hash of an item, or by its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import combined
from drivetrain.data.order import GOLDEN, mix64
from drivetrain.data.recipe import Parted
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure

_PARTS = ("train", "validation", "test")


class Part:
    """The samples of a source that are of one part, numbered from 0 on."""

    def __init__(self, source: Source, chosen: np.ndarray | range, fingerprint: str) -> None:
        """`chosen` are their numbers in the source, ascending."""
        self._source, self._chosen = source, chosen
        self.thread_safe, self.fingerprint = source.thread_safe, fingerprint
        self.notes: tuple[str, ...] = getattr(source, "notes", ())

    def __len__(self) -> int:
        """Number of samples of the part."""
        return len(self._chosen)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Any:
        """The samples with these numbers within the part."""
        if isinstance(self._chosen, range):
            return self._source.read(ids + self._chosen.start, positions)
        return self._source.read(self._chosen[ids], positions)

    def place(self, number: int) -> str:
        """Where a sample stands, in words."""
        inner, place = int(self._chosen[number]), getattr(self._source, "place", None)
        if place is None:
            return f"sample {inner}, counted from 0"
        return place(inner)


def parted(source: Source, settings: Parted, name: str, keys: np.ndarray | None = None) -> Source:
    """The part of a source that the settings name; of `keys` (uint64, one for each sample) instead of numbers.

    Raises Failure(65) where it is empty.
    """
    if settings.part == "all":
        return source
    chosen = choose(len(source), settings, keys)
    if len(chosen) == 0:
        cause = f"{name}: none of {len(source)} samples is in {settings.part}"
        raise Failure(Exit.BAD_DATA, cause, "look at part and split")
    return Part(source, chosen, combined([source.fingerprint, *marks(settings)]))


def choose(count: int, settings: Parted, keys: np.ndarray | None = None) -> np.ndarray | range:
    """The numbers of the part's items, ascending: a range where they stand side by side.

    Items with the same key are in the same part; without keys the item's number is its key.
    """
    if settings.part == "all":
        return range(count)
    train, validation, test = settings.split
    # Without a share for it, test has nothing, whatever the rounding of the sum.
    bounds = [0.0, train, train + validation if test else 1.0, 1.0]
    place = _PARTS.index(settings.part)
    if settings.by == "range":
        return range(round(count * bounds[place]), round(count * bounds[place + 1]))
    if keys is None:
        keys = np.arange(count, dtype=np.uint64)
    draw = _draws(keys)
    return np.flatnonzero((draw >= bounds[place]) & (draw < bounds[place + 1]))


def marks(settings: Parted) -> list[str]:
    """What a fingerprint says of the part."""
    if settings.part == "all":  # whatever the split is
        return [settings.part]
    return [settings.part, settings.by, *map(repr, map(float, settings.split))]


def hashed(values: Iterable[Any]) -> np.ndarray:
    """A key for each value of a column, uint64: the same for ever, wherever the value stands."""
    words = (json.dumps(value, sort_keys=True, default=str).encode(errors="surrogatepass") for value in values)
    digests = b"".join(hashlib.blake2b(word, digest_size=8).digest() for word in words)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _draws(keys: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each key, the same for ever: splitmix64."""
    # The upper 53 bits, as many as a float64 holds, so that no draw is rounded up to 1.
    return (mix64(keys * np.uint64(GOLDEN)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
