"""Which sample stands at which position: a pure function of the seed, without a shuffle file."""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.source import ENDLESS
from drivetrain.serving.hashing import GOLDEN, mix64

_ROUNDS = 6
_TILES = _ROUNDS // 2 + 1  # a row or a column that was added to in half of the rounds is below so many times its bound
_MASK = (1 << 64) - 1
_FIRST, _MOST = 1 << 10, 1 << 15
"""Positions that are computed at a time, four times as many each time: the first steps do not wait for those of the
last, and later a small request costs a slice."""


class _Block(NamedTuple):
    """The sample ids at the positions [start, stop), and the sums of their digests before each of them."""

    start: int
    stop: int
    ids: np.ndarray
    sums: np.ndarray


class Sampler:
    """Position to sample id, computed a block at a time."""

    size: int
    """Samples in one epoch."""
    metadata: dict[str, Any]
    """All that it follows from, as JSON data: `ordering_of` makes the same again."""

    def __init__(self) -> None:
        self._block = _Block(0, 0, np.empty(0), np.empty(0))

    def ids(self, start: int, stop: int) -> np.ndarray:
        """Sample ids of the positions [start, stop), int64."""
        block = self._cover(start, stop)
        return block.ids[start - block.start : stop - block.start]

    def digest(self, start: int, stop: int) -> int:
        """`digest` of the ids at the positions [start, stop)."""
        block = self._cover(start, stop)
        return (int(block.sums[stop - block.start]) - int(block.sums[start - block.start])) & _MASK

    def _cover(self, start: int, stop: int) -> _Block:
        """A block that holds these positions. It is put in place whole: a reading thread asks beside the loop's own."""
        block = self._block
        if start < block.start or stop > block.stop:
            length = min(max(_FIRST, 4 * len(block.ids)), _MOST)
            positions = np.arange(start, max(stop, start + length), dtype=np.int64)
            ids = self.compute(positions)
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_digests(ids, positions))])
            block = self._block = _Block(start, start + len(positions), ids, sums)
        return block

    def compute(self, positions: np.ndarray) -> np.ndarray:
        """The sample ids at consecutive positions, int64."""
        raise NotImplementedError


class Order(Sampler):
    """Position to sample id. Position p lies in epoch p // size; each epoch is a keyed permutation of [0, size).

    The permutation is a generalized Feistel network with cycle-walking (Black & Rogaway 2002, "Ciphers with arbitrary
    finite domains"): numbers are places in a rectangle as close to a square as its area allows to be barely `size`. So
    it takes little memory, hardly any number walks, and any position can be asked for.
    """

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        """`size` is the number of samples, at least 1; those of a stream are not shuffled."""
        if size < 1:
            raise ValueError("an order needs at least one sample")
        super().__init__()
        self.size = size
        self.metadata = {"sizes": [size], "seed": seed, "shuffle": shuffle}
        self._seed = seed
        self._shuffle = shuffle and size < ENDLESS  # a stream has an order of its own
        self._rows = isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        self._rounds: tuple[tuple[int, int], list[np.ndarray]] = ((0, -1), [])  # of which epochs, and their tables

    def compute(self, positions: np.ndarray) -> np.ndarray:
        """The sample ids at consecutive positions, int64."""
        epochs, places = np.divmod(positions, self.size)
        if not self._shuffle:
            return places
        return self._permute(places, epochs - epochs[0], self._tables(int(epochs[0]), int(epochs[-1])))

    def _tables(self, first: int, last: int) -> list[np.ndarray]:
        """The round functions of the epochs from first to last: of a column in even rounds, of a row in odd ones.

        Each is int64 [epochs * `_TILES` * columns or rows]: there are so few of these that all values are computed at
        once and a round is one look for each number. They are repeated, so that sums need no modulo before the end.
        """
        # Both are read and put in place at once: a reading thread asks beside the loop's own.
        known, tables = self._rounds
        if known != (first, last):
            epochs = np.arange(first, last + 1, dtype=np.uint64)[:, None] * np.uint64(64)
            base = epochs + np.uint64((self._seed * GOLDEN) & _MASK)
            tables = []
            for number in range(_ROUNDS):
                inputs, outputs = self._columns, self._rows
                if number % 2:
                    inputs, outputs = outputs, inputs
                keys = mix64(base + np.uint64(number))
                values = mix64(np.arange(inputs, dtype=np.uint64) ^ keys) % np.uint64(outputs)
                tables.append(np.tile(values.astype(np.int64), _TILES).ravel())
            self._rounds = (first, last), tables
        return tables

    def _permute(self, values: np.ndarray, epochs: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
        """Encipher until every value lies below `size` again: of n about the square root of n walk."""
        result = self._encipher(values, epochs, tables)
        (places,) = (result >= self.size).nonzero()
        while len(places):
            walking = self._encipher(result[places], epochs[places], tables)
            result[places] = walking
            places = places[walking >= self.size]
        return result

    def _encipher(self, values: np.ndarray, epochs: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
        row = values // self._columns
        column = values - row * self._columns
        several = bool(epochs[-1])
        for even, odd in zip(tables[::2], tables[1::2], strict=True):
            row += even[column + epochs * (_TILES * self._columns) if several else column]
            column += odd[row + epochs * (_TILES * self._rows) if several else row]
        row -= row // self._rows * self._rows
        column -= column // self._columns * self._columns
        row *= self._columns
        row += column
        return row


def digest(ids: np.ndarray, positions: np.ndarray) -> int:
    """A 64-bit digest of which sample was read at which position.

    It is a sum modulo 2^64 over the samples, so the digests of the ranks' shares add up to that of the whole step,
    however many ranks there are.
    """
    return int(_digests(ids, positions).sum(dtype=np.uint64))


def _digests(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return mix64(mix64(positions.astype(np.uint64)) + ids.astype(np.uint64))
