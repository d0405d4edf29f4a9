"""Large buffers of host memory. Their first touch costs more than all that is done with them, unless pages are huge."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

HUGE = 2 << 20


def buffer(size: int) -> memoryview:
    """A writable buffer of `size` zero bytes; large ones lie on huge pages where the kernel has them."""
    if size < HUGE:
        return memoryview(bytearray(size))
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)


def touch(view: memoryview) -> None:
    """Have the kernel give every page of a buffer now, rather than when time matters."""
    np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE] = 0


def checksum(data: np.ndarray) -> int:
    """The sum of bytes (uint8 [n], in one piece) as little-endian words, modulo 2**64; a flipped bit changes it."""
    whole = len(data) & ~7
    words = int(np.frombuffer(data[:whole], "<i8").sum(dtype=np.int64)) if whole else 0  # type: ignore[arg-type]
    return (words + int.from_bytes(data[whole:].tobytes(), "little")) & (1 << 64) - 1
