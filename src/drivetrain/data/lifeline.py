"""Worker processes that end with the process they work for, however that one ends."""

from __future__ import annotations

import os
import select
import threading


def end_with(process: int) -> None:
    """End this process as soon as that one has ended.

    Nobody else would: the forkserver that made this one lives as long as its children do.
    """
    # A descriptor, not the number: the system may give a number that has become free to another process.
    handle = os.pidfd_open(process)
    threading.Thread(target=_wait, args=(handle,), name="lifeline", daemon=True).start()


def _wait(handle: int) -> None:
    select.select([handle], [], [])
    os._exit(0)
