"""Worker processes that end with the process they work for, however that one ends."""

from __future__ import annotations

import os
import select
import threading
import time

_LOOK = 1.0  # seconds


def end_with(process: int) -> None:
    """End this process as soon as that one has ended.

    Nobody else would: the forkserver that made this one lives as long as its children do.
    """
    # A descriptor, not the number: the system may give a number that has become free to another process.
    handle = os.pidfd_open(process) if hasattr(os, "pidfd_open") else None
    threading.Thread(target=_wait, args=(process, handle), name="lifeline", daemon=True).start()


def _wait(process: int, handle: int | None) -> None:
    if handle is not None:
        select.select([handle], [], [])
    else:  # only Linux has such descriptors
        while _is_there(process):
            time.sleep(_LOOK)
    os._exit(0)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
