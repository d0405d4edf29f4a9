"""Files of a run directory that the board shows: by names that a listing has, never by a path that somebody sends."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from drivetrain.board.answers import FileListed, Gallery, LogPart, Shown
from drivetrain.board.index import Index
from drivetrain.ledger.records import ShowRecord
from drivetrain.spec.exits import Exit, Failure

DOWNLOAD = "application/octet-stream"
_SHOWN = {".wav": "audio/wav", ".png": "image/png", ".txt": "text/plain; charset=utf-8"}
_KINDS: Mapping[str, Literal["audio", "picture"]] = {".wav": "audio", ".png": "picture"}
_TAIL = 64 << 10  # bytes of a log that are shown at a time
_MOST = 2000  # shows of a gallery, the newest
_FOLDERS = ("gallery", "profile", "logs")


def gallery(index: Index) -> Gallery:
    """What the task has shown, by step: texts, and the names of sounds and pictures."""
    items, steps = [], []
    with index.lock:
        offsets = list(index.others.offsets([ShowRecord.kind]))[:_MOST]
    for offset in reversed(offsets):
        record = index.record(offset)
        if isinstance(record, ShowRecord):
            steps.append(record.step)
            items += _items(record)
    return {"steps": sorted(set(steps)), "items": items}


def _items(record: ShowRecord) -> Iterator[Shown]:
    for name, text in record.text.items():
        yield {"step": record.step, "name": name, "kind": "text", "text": text}
    for name, file in record.files.items():
        if name not in record.text and (kind := _KINDS.get(Path(file).suffix)):
            yield {"step": record.step, "name": name, "kind": kind, "file": file}


def logs(run: Path) -> list[FileListed]:
    """The files of `logs/`, by name."""
    return _listed(run, "logs")


def profiles(run: Path) -> list[FileListed]:
    """The files of `profile/`, by name."""
    return _listed(run, "profile")


def shown(run: Path, asked: str) -> tuple[Path, str]:
    """The path of a listed file of gallery, profile or logs, and its media type. Raises Failure(66)."""
    parts = asked.split("/")
    found = run
    # One name after the other is looked up in its folder: `..` is in none of them.
    for place, part in enumerate(parts):
        if (place == 0 and part not in _FOLDERS) or part not in names_in(found):
            raise _missing(asked)
        found /= part
        if found.is_symlink():
            raise _missing(asked)
    if not found.is_file():
        raise _missing(asked)
    return found, _SHOWN.get(found.suffix, DOWNLOAD)


def tail(run: Path, name: str, end: int = -1) -> LogPart:
    """The part of a log before byte `end` (-1: its end), at most so much that a page holds it. Raises Failure(66)."""
    path, _ = shown(run, f"logs/{name}")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        end = size if end < 0 else min(end, size)
        begin = max(0, end - _TAIL)
        file.seek(begin)
        text = file.read(end - begin).decode(errors="replace")
    return {"text": text, "begin": begin, "end": end, "size": size}


def _listed(run: Path, folder: str) -> list[FileListed]:
    found = []
    for path in sorted((run / folder).rglob("*")):
        state = path.lstat()
        if stat.S_ISREG(state.st_mode):
            name = str(path.relative_to(run / folder))
            found.append({"name": name, "bytes": state.st_size, "time": state.st_mtime})
    return found


def names_in(folder: Path) -> set[str]:
    """What lies there; nothing where it is no folder, or not there."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _missing(asked: str) -> Failure:
    return Failure(Exit.INPUT_MISSING, f"there is no file {asked[:80]!r}", "the run's page lists those there are")
