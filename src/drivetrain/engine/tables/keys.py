"""Keys of tables that grow: whole numbers from 0 to 2^63 - 1, and which line of an array each of them has.

A table's lines are divided among `BUCKETS` buckets, and a key's bucket is a function of the key. A bucket lies whole on
one rank, so what becomes of a key depends on the keys of its bucket alone, wherever that lies.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.order import GOLDEN, mix64
from drivetrain.engine.tables.keyed_recipe import BUCKETS
from drivetrain.runtime.mix import mix

FREE, TAKEN = -1, -2
"""What lines have in place of a key: nothing, or nothing for now and no room either."""
KEY, COUNT, LAST = 0, 1, 2
"""The columns of a line: the key, how often it was seen, and the position at the end of the step that saw it last."""
_INITIAL_KEYS = 1 << 40
"""A place in the seeds' path that neither a step nor a row has."""
_SPREAD = 0x5851F42D4C957F2D  # so that keys which are mixed already are mixed anew
_FULL = 0.7  # of an index, from which on it is made anew
_BITS = 24  # of a float32 from 0 to 1


def bucket_of(keys: Tensor) -> Tensor:
    """The bucket of each key, int64."""
    mixed = (keys ^ _SPREAD) * _signed(GOLDEN)
    mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
    return ((mixed * _signed(0xBF58476D1CE4E5B9)) >> 58) & (BUCKETS - 1)


def edges_of(lines: int) -> np.ndarray:
    """Where the lines of each bucket begin, and where the last ones end: int64 [BUCKETS + 1]."""
    return np.arange(BUCKETS + 1) * lines // BUCKETS


def empty_lines(count: int, device: str = "cpu") -> Tensor:
    """Lines without a key."""
    lines = torch.zeros(count, 3, dtype=torch.int64, device=device)
    lines[:, KEY] = FREE
    return lines


def key_rows(keys: np.ndarray, table: str, bound: float, dim: int, seed: int) -> Tensor:
    """The initial numbers of keys' rows, float32 [keys, dim], uniform in +-`bound`: a function of the run's seed, the
    table's name and the key, whoever holds the row, and whichever it is. Negative keys are those of no sample."""
    name = int.from_bytes(hashlib.sha256(table.encode()).digest()[:7], "little")
    start = np.uint64(mix(seed, _INITIAL_KEYS, name))
    with np.errstate(over="ignore"):
        own = mix64(keys.view(np.uint64) * np.uint64(GOLDEN) + start)[:, None]
        mixed = mix64(own + np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    drawn = (mixed >> np.uint64(64 - _BITS)).astype(np.float32)
    return torch.from_numpy(drawn).mul_(2 * bound / (1 << _BITS)).sub_(bound)


class KeyIndex:
    """Which line has a key: an open-addressed hash table of lines, probed for whole arrays of keys. No state follows
    from it: it is found again from the keys alone."""

    def __init__(self, keys: np.ndarray) -> None:
        """`keys` int64 [lines], seen as they are at each call; what is no key is negative."""
        self._keys = keys
        size = 1 << max(6, (2 * len(keys)).bit_length())
        self._slots = np.full(size, FREE, np.int64)
        self._used = 0
        there = np.flatnonzero(keys >= 0)
        self.add(there)

    @property
    def crowded(self) -> bool:
        """Whether lines that have lost their keys have left too little room: it is to be made anew."""
        return self._used > _FULL * len(self._slots)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The line of each key, int64; FREE where there is none."""
        found = np.full(len(keys), FREE, np.int64)
        if not self._used:
            return found
        at, left = self._start(keys), np.arange(len(keys))
        while len(left):
            lines = self._slots[at]
            # A line that has lost its key, or has another one now, is only passed by.
            hit = (lines >= 0) & (self._keys[lines] == keys[left])
            found[left[hit]] = lines[hit]
            on = ~hit & (lines >= 0)
            left, at = left[on], (at[on] + 1) & (len(self._slots) - 1)
        return found

    def add(self, lines: np.ndarray) -> None:
        """These lines have keys now, which no other line has."""
        at, left = self._start(self._keys[lines]), lines
        self._used += len(lines)
        while len(left):
            free = self._slots[at] < 0
            # Of several lines for one place the last one that is written has it.
            self._slots[at[free]] = left[free]
            on = ~free | (self._slots[at] != left)
            left, at = left[on], (at[on] + 1) & (len(self._slots) - 1)

    def _start(self, keys: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            mixed = mix64(keys.view(np.uint64) * np.uint64(GOLDEN))
        return (mixed & np.uint64(len(self._slots) - 1)).view(np.int64)


class KeyLines:
    """Lines of keys, int64 [lines, 3] (`KEY`, `COUNT`, `LAST`), of some buckets: `edges` says where each begins."""

    def __init__(self, lines: Tensor, edges: np.ndarray) -> None:
        self.lines = lines
        self.edges = edges
        self.array = lines.numpy()
        """The same memory."""
        self._index: KeyIndex | None = None
        self._free: np.ndarray | None = None  # lines, ascending
        self._next = self._ends = np.empty(0, np.int64)  # places among them, by bucket: the first one left, the end
        self._version = -1

    def forget(self) -> None:
        """The lines were written to by others."""
        self._index = self._free = None

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The line of each key, int64; FREE where there is none."""
        return self._fresh_index().find(keys)

    def room(self) -> np.ndarray:
        """How many lines are free, by bucket."""
        self._fresh_free()
        return self._ends - self._next

    def put(self, buckets: np.ndarray, lines: np.ndarray) -> np.ndarray:
        """Give keys a line each, int64 [keys, 3]: the first ones that are free in their `buckets`, which ascend and
        have room. Returns which these are."""
        free, index = self._fresh_free(), self._fresh_index()
        chosen = free[self._next[buckets] + places_in(buckets)]
        self._next += np.bincount(buckets, minlength=len(self._next))
        self.array[chosen] = lines
        index.add(chosen)
        return chosen

    def see(self, lines: np.ndarray, counts: np.ndarray, position: int) -> None:
        """The keys of these lines were seen so often in the step that ends at a position."""
        self.array[lines, COUNT] += counts
        self.array[lines, LAST] = position

    def clear(self, lines: np.ndarray, instead: int = FREE) -> None:
        """Take the keys of these lines away. TAKEN `instead`: they give no room before they are swept."""
        self.array[lines] = (instead, 0, 0)
        if instead == FREE:
            self._free = None

    def done(self) -> None:
        """The writes of a step are through: whoever counts torch's changes in place sees one."""
        self.lines[:0].zero_()
        self._version = self.lines._version

    def _fresh_index(self) -> KeyIndex:
        if self._version != self.lines._version:  # a commit was loaded
            self.forget()
            self._version = self.lines._version
        if self._index is None or self._index.crowded:
            self._index = KeyIndex(self.array[:, KEY])
        return self._index

    def _fresh_free(self) -> np.ndarray:
        if self._free is None or self._version != self.lines._version:
            self._free = np.flatnonzero(self.array[:, KEY] == FREE)
            edges = np.searchsorted(self._free, self.edges)
            self._next, self._ends = edges[:-1].copy(), edges[1:]
        return self._free


def places_in(groups: np.ndarray) -> np.ndarray:
    """The place of each member among those of its group, where groups ascend."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _signed(number: int) -> int:
    """The int64 of the same bits."""
    return number - (1 << 64) if number >> 63 else number
