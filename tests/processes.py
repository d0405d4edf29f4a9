"""Processes of this machine as tests see them, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def wait_until(happens: Callable[[], object], seconds: float) -> None:
    """Return once something is true; fail where it is not after so many seconds."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)
