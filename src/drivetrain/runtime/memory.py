"""What the C library does with memory that a step frees."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_MOST = (1 << 31) - 1  # bytes


def keep_freed() -> bool:
    """Let this process keep memory that it frees, where the C library is glibc; whether it does.

    By default activations and batches of a few megabytes go back to the system with each step, and each page that a
    step writes first is a fault: up to a tenth of a step on a CPU. One arena, since what a thread that reads ahead
    frees would go back all the same. The price is what lies between blocks, a few percent of the most that was used.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _MOST), (_TRIM_THRESHOLD, _MOST))
    taken = [library.mallopt(option, value) for option, value in wanted]
    return all(taken)
