"""A 64-bit hash of strings that never changes: whole arrays at a time, eight bytes of each string in a round."""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, splitmix64's increment."""
NAME = "drivetrain-64"
"""What the hash is called where a file says by which one its rows were found."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK64 = (1 << 64) - 1
_WORD = 8
_BATCH = 1 << 15
"""Strings at a time: what a round reads and writes stays in the cache."""

_LEADING = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
"""Masks of a word's first bytes, by how many they are."""


def hash_bytes(data: np.ndarray, offsets: np.ndarray, seed: int = 0) -> np.ndarray:
    """uint64 of each string: `data`, uint8, are the bytes of all of them, in which string k begins at `offsets[k]`
    (int32 or int64 [strings + 1]) and ends at the next one.

    It is a function of the bytes and the seed alone. The length starts the hash; each word of eight bytes, padded with
    zeros, is mixed in by two rounds of multiplication and shifts.
    """
    count = len(offsets) - 1
    hashes = np.empty(count, np.uint64)
    if count == 0:
        return hashes
    if len(data) < int(offsets[-1]) + _WORD:  # a word that begins at the last byte is read, and masked
        data = np.concatenate([data[: int(offsets[-1])], np.zeros(_WORD, np.uint8)])
    words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))  # the eight bytes from any place on
    start = np.uint64((seed * GOLDEN + 1) & _MASK64)
    for first in range(0, count, _BATCH):
        _hash_batch(words, offsets[first : first + _BATCH + 1], start, hashes[first : first + _BATCH])
    return hashes


def rows_of(hashes: np.ndarray, size: int) -> np.ndarray:
    """The row below `size` (at most 2^32) that each hash stands for, int64: the upper half times the size, without a
    division."""
    rows = hashes >> np.uint64(32)
    rows *= np.uint64(size)
    rows >>= np.uint64(32)
    return rows.view(np.int64)


def keys_of(hashes: np.ndarray) -> np.ndarray:
    """The keys of hashed values, int64: their upper 63 bits, but never 0, which is the key of null."""
    keys = (hashes >> np.uint64(1)).view(np.int64)
    return np.maximum(keys, 1, out=keys)


def mix64(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer on an array of uint64; in place after the first line, which halves its time."""
    values = values + np.uint64(GOLDEN)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        values ^= values >> np.uint64(shift)
        values *= factor
    values ^= values >> np.uint64(31)
    return values


def _hash_batch(words: np.ndarray, offsets: np.ndarray, start: np.uint64, hashes: np.ndarray) -> None:
    """The hashes of the strings between these offsets, written to `hashes`."""
    at, left = offsets[:-1], np.diff(offsets)
    shortest, longest = int(left.min()), int(left.max())
    if shortest == longest:
        hashes.fill((longest ^ int(start)) * int(_SECOND) & _MASK64)
        _hash_equal(words, int(at[0]), longest, hashes)
        return
    np.multiply(left.astype(np.uint64) ^ start, _SECOND, out=hashes)
    for _ in range(-(-longest // _WORD)):
        if shortest > 0:
            hashes ^= _next_words(words, at, left, shortest)
            _mix(hashes)
        else:  # strings that have ended keep their hash, and read where there is something to read
            at = np.minimum(at, len(words) - 1)
            mixed = _mix(hashes ^ _next_words(words, at, left, shortest))
            np.copyto(hashes, mixed, where=left > 0)
        at, left, shortest = at + _WORD, left - _WORD, shortest - _WORD


def _hash_equal(words: np.ndarray, first: int, length: int, hashes: np.ndarray) -> None:
    """The same for strings of one length, of which the first begins at a byte: they stand side by side, so their words
    are found without looking each of them up."""
    for done in range(0, length, _WORD):
        found = words[first + done :: length][: len(hashes)]
        if length - done < _WORD:
            found = found & _LEADING[length - done]
        hashes ^= found
        _mix(hashes)


def _next_words(words: np.ndarray, at: np.ndarray, left: np.ndarray, shortest: int) -> np.ndarray:
    """The next eight bytes of each string, of which at least `shortest` are left; zeros behind its end."""
    found = words[at]
    if shortest < _WORD:
        found &= _LEADING[np.clip(left, 0, _WORD)]
    return found


def _mix(values: np.ndarray) -> np.ndarray:
    """The rounds, in place."""
    values ^= values >> np.uint64(32)
    values *= _FIRST
    values ^= values >> np.uint64(29)
    values *= _SECOND
    values ^= values >> np.uint64(32)
    return values
