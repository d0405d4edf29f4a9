"""What a job's processes print: a file for each of them and each attempt, in the job's folder."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = "output"
CONDUCTOR = "conductor.log"
_POLL = 0.2  # seconds
_NAME = re.compile(r"(\d+)-(node|rank)-(\d+)\.log")


def begin(folder: Path, attempt: int) -> Path:
    """How the names of an attempt's files begin; `-node-N.log` has a node's own lines, `-rank-N.log` a rank's."""
    return folder / f"{attempt:04d}"


def private(path: str | Path, flags: int) -> int:
    """Open a file for this user alone, and never through a link; for `open(..., opener=)`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def redirect(path: Path) -> None:
    """Have this process, and what it starts, print into a file."""
    descriptor = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def lines(
    folder: Path, rank: int | None, ended: Callable[[], bool] | None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """What a rank has printed over all attempts, or for None what the first node and the job's conductor have.

    With `ended` it goes on until that says so; then what is left is given, and the last line even if it is not whole.
    """
    wanted = ("node", "0") if rank is None else ("rank", str(rank))
    offsets: dict[Path, int] = {}
    while True:
        # Asked before the files are read: what was printed before the end is then among what is read.
        last = ended is None or ended()
        for path in _files(folder, wanted, conductor=rank is None):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                for line in file:
                    if line.endswith(b"\n") or last:
                        offsets[path] = offsets.get(path, 0) + len(line)
                        yield line.decode(errors="replace").rstrip("\n")
        if last:
            return
        sleep(_POLL)


def _files(folder: Path, wanted: tuple[str, str], *, conductor: bool) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # nothing has started yet
        return []
    found = []
    if conductor and CONDUCTOR in names:
        found.append(folder / CONDUCTOR)
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match.groups()[1:] == wanted:
            found.append(folder / name)
    return found
