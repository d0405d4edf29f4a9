"""What the user said of runs: names, tags, hidden, archived. The board's own file; no run knows of it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.board.answers import NoteTold
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

LONGEST = 200
"""Characters of a name or a tag."""
_TAGS = 50
_LARGEST = 64 << 20  # bytes of the file
_PATIENCE = 5.0  # seconds that another board is waited for
_POLL = 0.02


@dataclass(frozen=True)
class Note:
    """Of one run; `title` stands for its folder's name where it is not empty."""

    title: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False
    archived: bool = False

    def told(self) -> NoteTold:
        """As JSON data."""
        return {
            "title": self.title or None,
            "tags": list(self.tags),
            "hidden": self.hidden,
            "archived": self.archived,
        }

    def changed(self, changes: Mapping[str, Any]) -> Note:
        """With what was sent. Raises Failure(64) for anything else than a name, tags and two truths."""
        unknown = changes.keys() - vars(self).keys()
        title, tags = changes.get("title", self.title), changes.get("tags", list(self.tags))
        title = "" if title is None else title
        truths = [changes.get(name, getattr(self, name)) for name in ("hidden", "archived")]
        texts = [title, *tags] if isinstance(tags, list) else [None]
        short = all(isinstance(text, str) and len(text) <= LONGEST for text in texts) and len(texts) <= _TAGS
        if unknown or not short or not all(isinstance(truth, bool) for truth in truths):
            hint = f"title and up to {_TAGS - 1} tags, of {LONGEST} characters each; hidden and archived, true or false"
            raise Failure(Exit.BAD_COMMAND, "this is not what is said of a run", hint)
        return replace(self, title=title, tags=tuple(dict.fromkeys(tags)), hidden=truths[0], archived=truths[1])


class _Stamp(NamedTuple):
    inode: int
    modified: int
    size: int


_NO_FILE = _Stamp(0, 0, -1)


class Notes:
    """The notes of all runs, by their folders. Other boards of the user may write the same file, and other threads ask.

    What was read is replaced whole, and never changed in place.
    """

    def __init__(self, folder: Path) -> None:
        """Raises Failure(65) where the file is damaged: it is never written over then."""
        self._path = folder / "runs.json"
        self._read: tuple[_Stamp, dict[str, Note]] = (_NO_FILE, {})
        self._now()

    def of(self, run: Path) -> Note:
        """What is said of a run. Raises Failure(65)."""
        return self._now().get(str(run), Note())

    def change(self, run: Path, changes: Mapping[str, Any]) -> Note:
        """Say something else of a run. Raises Failure: 64 for what cannot be said, 65 where the file is damaged, 69
        where another board does not let go of it, 73 where it cannot be written."""
        with self._alone():
            notes = self._now()
            note = notes.get(str(run), Note()).changed(changes)
            self._save({**notes, str(run): note})
        return note

    def forget(self, run: Path) -> None:
        """The run is gone. Raises what `change` raises."""
        with self._alone():
            notes = dict(self._now())
            if notes.pop(str(run), None):
                self._save(notes)

    def _now(self) -> dict[str, Note]:
        stamp, notes = self._read
        try:
            state = os.stat(self._path)
            # Of before the reading: where it is replaced meanwhile, the next look reads it again.
            new = _Stamp(state.st_ino, state.st_mtime_ns, state.st_size)
            if new != stamp:
                if new.size > _LARGEST:
                    raise ValueError("too large")
                told = json.loads(self._path.read_bytes())
                notes = {run: Note().changed(note) for run, note in told.items()}
                self._read = new, notes
        except FileNotFoundError:
            notes = {}
            self._read = _NO_FILE, notes
        except (OSError, ValueError, AttributeError, TypeError, RecursionError, Failure) as error:
            cause = f"{self._path} is damaged, and has the names and tags of runs"
            raise Failure(Exit.BAD_DATA, cause, "mend it, or move it away") from error
        return notes

    def _save(self, notes: Mapping[str, Note]) -> None:
        told = {run: asdict(note) for run, note in notes.items() if note != Note()}
        try:
            write_private(self._path, (json.dumps(told, indent=1) + "\n").encode())
        except OSError as error:
            raise self._unwritten(error) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between reading and writing no other board writes."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path.with_suffix(".lock"), flags, 0o600)
        except OSError as error:
            raise self._unwritten(error) from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    cause = "another board has the names and tags of runs, and does not let go"
                    raise Failure(Exit.PEER_UNAVAILABLE, cause, "let it go on, or end it") from None
            except OSError as error:
                raise self._unwritten(error) from error
            time.sleep(_POLL)

    def _unwritten(self, error: OSError) -> Failure:
        return Failure(Exit.CANNOT_CREATE, f"{self._path} cannot be written: {error.strerror}", "see its folder")
