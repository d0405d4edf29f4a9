"""What the user said of runs: names, tags, hidden, archived. The board's own file; no run knows of it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

LONGEST = 200
"""Characters of a name or a tag."""
_TAGS = 50


@dataclass(frozen=True)
class Note:
    """Of one run; `title` stands for its folder's name where it is not empty."""

    title: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False
    archived: bool = False

    def changed(self, changes: Mapping[str, Any]) -> Note:
        """With what was sent. Raises Failure(64) for anything else than a name, tags and two truths."""
        unknown = changes.keys() - vars(self).keys()
        title, tags = changes.get("title", self.title) or "", changes.get("tags", list(self.tags))
        truths = [changes.get(name, getattr(self, name)) for name in ("hidden", "archived")]
        texts = [title, *tags] if isinstance(tags, list) else [None]
        short = all(isinstance(text, str) and len(text) <= LONGEST for text in texts) and len(texts) <= _TAGS
        if unknown or not short or not all(isinstance(truth, bool) for truth in truths):
            hint = f"title and up to {_TAGS - 1} tags, of {LONGEST} characters each; hidden and archived, true or false"
            raise Failure(Exit.BAD_COMMAND, "this is not what is said of a run", hint)
        return replace(self, title=title, tags=tuple(dict.fromkeys(tags)), hidden=truths[0], archived=truths[1])


class Notes:
    """The notes of all runs, by their folders. Other boards of the user may write the same file."""

    def __init__(self, folder: Path) -> None:
        """Raises Failure(65) where the file is damaged: it is never written over then."""
        self._path = folder / "runs.json"
        self._stamp: tuple[int, int] | None = None
        self._notes: dict[str, Note] = {}
        self._reload()

    def of(self, run: Path) -> Note:
        """What is said of a run. Raises Failure(65)."""
        self._reload()
        return self._notes.get(str(run), Note())

    def change(self, run: Path, changes: Mapping[str, Any]) -> Note:
        """Say something else of a run. Raises Failure: 64 for what cannot be said, 65 where the file is damaged, 73
        where it cannot be written."""
        with self._alone():
            note = self.of(run).changed(changes)
            self._notes[str(run)] = note
            self._save()
        return note

    def forget(self, run: Path) -> None:
        """The run is gone."""
        with self._alone():
            self._reload()
            if self._notes.pop(str(run), None):
                self._save()

    def _reload(self) -> None:
        try:
            state = os.stat(self._path)
            if (state.st_ino, state.st_mtime_ns) == self._stamp:
                return
            told = json.loads(self._path.read_bytes())
            self._notes = {run: Note().changed(note) for run, note in told.items()}
            self._stamp = (state.st_ino, state.st_mtime_ns)
        except FileNotFoundError:
            self._notes, self._stamp = {}, None
        except (OSError, ValueError, AttributeError, TypeError, Failure) as error:
            cause = f"{self._path} is damaged, and has the names and tags of runs"
            raise Failure(Exit.BAD_DATA, cause, "mend it, or move it away") from error

    def _save(self) -> None:
        told = {run: asdict(note) for run, note in self._notes.items() if note != Note()}
        try:
            write_private(self._path, (json.dumps(told, indent=1) + "\n").encode())
        except OSError as error:
            raise Failure(Exit.CANNOT_CREATE, f"{self._path} cannot be written: {error}", "free space") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between reading and writing no other board writes."""
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
