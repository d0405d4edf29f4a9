"""Large buffers of host memory: their first touch may cost more than all that is done with them."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

HUGE = 2 << 20
_CHUNK = 1 << 20  # bytes that are still in the cache when they are read a second time
_SHARE = 8 << 20  # bytes that a thread takes on at a time
_WORDS = (1 << 64) - 1
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
Pairs = Sequence[tuple[np.ndarray, np.ndarray | None]]
"""Sources and their targets (uint8 [n], each in one piece); without a target, only to be looked at."""


def buffer(size: int) -> memoryview:
    """A writable buffer of `size` zero bytes, to be used often: large ones lie on huge pages, where there are any."""
    if size < HUGE:
        return memoryview(bytearray(size))
    mapped = mmap.mmap(-1, size, flags=_PRIVATE)
    with suppress(OSError, AttributeError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)


def room(size: int) -> memoryview:
    """A writable buffer of `size` zero bytes, to be filled once.

    Its pages are small and all given at once. Huge ones cost half as much, but up to five times as much on a virtual
    machine that hands free memory back to its host: that is done by huge pages.
    """
    if size < HUGE:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)))


def touch(view: memoryview) -> None:
    """Have the kernel give every page of a buffer now, rather than when time matters."""
    np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE] = 0


def checksum(data: np.ndarray) -> int:
    """The sum of bytes (uint8 [n], in one piece) as little-endian words, modulo 2**64; a flipped bit changes it."""
    whole, words = len(data) & ~7, 0
    if whole:
        words = int(np.frombuffer(data[:whole], "<i8").sum(dtype=np.int64))  # type: ignore[arg-type]
    return (words + int.from_bytes(data[whole:].tobytes(), "little")) & _WORDS


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two pieces of memory (uint8 [n]) have the same bytes; word by word, which is twice as fast."""
    whole = len(one) & ~7
    if len(one) != len(other) or not np.array_equal(one[whole:], other[whole:]):
        return False
    return np.array_equal(one[:whole].view("<i8"), other[:whole].view("<i8"))


def copied(pairs: Pairs) -> list[int]:
    """Copy the sources to their targets; the sources' checksums.

    This thread and another one take turns: where a core is free that takes half the time.
    """
    shares: deque[tuple[int, int]] = deque()
    for place, (source, _) in enumerate(pairs):
        shares.extend((place, at) for at in range(0, len(source), _SHARE))
    if sum(len(source) for source, _ in pairs) <= _SHARE:  # another thread would come too late
        found = _copied(pairs, shares)
    else:
        with ThreadPoolExecutor(1, "copies") as other:
            theirs = other.submit(_copied, pairs, shares)
            found = _copied(pairs, shares) + theirs.result()
    # Parts begin at whole words and the sum wraps around, so it is the same whichever thread has added what, and when.
    sums = [0] * len(pairs)
    for place, part in found:
        sums[place] = (sums[place] + part) & _WORDS
    return sums


def _copied(pairs: Pairs, shares: deque[tuple[int, int]]) -> list[tuple[int, int]]:
    """Work on shares until none is left: for each piece of them, which pair it is of, and its part of the checksum."""
    found = []
    while shares:
        try:
            place, start = shares.popleft()
        except IndexError:  # the other thread was faster
            break
        source, target = pairs[place]
        for at in range(start, min(start + _SHARE, len(source)), _CHUNK):
            part = source[at : at + _CHUNK]
            if target is not None:
                target[at : at + _CHUNK] = part
            found.append((place, checksum(part)))
    return found
