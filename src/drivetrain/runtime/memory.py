"""What the C library does with memory that a step frees."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_MOST = (1 << 31) - 1  # bytes
_LARGEST = (_MOST, 1 << 25)  # bytes; versions before 2.35 refuse more than the second


def keep_freed() -> bool:
    """Let this process keep memory that it frees, where the C library is glibc; whether it does.

    By default activations and batches of a few megabytes go back to the system with each step, and each page that a
    step writes first is a fault: up to a tenth of a step on a CPU. One arena, since what a thread that reads ahead
    frees would go back all the same. The price is what lies between blocks, a few percent of the most that was used.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    if not any(library.mallopt(_MMAP_THRESHOLD, most) for most in _LARGEST):
        return False  # the others would hold the threshold where it is: blocks of 128 KiB would always go back
    taken = [library.mallopt(option, value) for option, value in ((_TRIM_THRESHOLD, _MOST), (_ARENA_MAX, 1))]
    return all(taken)
