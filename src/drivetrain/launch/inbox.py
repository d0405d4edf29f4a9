"""Commands to a run, as files in its directory: from another shell, or another host that shares it. No port is open."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.ledger.records import CommandRecord, parse
from drivetrain.runtime.lease import alive
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Failure

FOLDER = "control"
POLL = 0.2
"""Seconds between two looks."""
_NAME = re.compile(r"\d{20}-[0-9a-f]{16}\.json")
_MOST = 1 << 16  # bytes of a file
_LOOK = 0.05  # seconds between two looks for an answer


@dataclass(frozen=True)
class Posted:
    """A command that waits; `id` is the same wherever it is told of. `wrong` says why it is none."""

    id: str
    command: Command | None
    wrong: str = ""


def new_id() -> str:
    """An id for a command: those that are given later sort later."""
    return f"{time.time_ns():020d}-{secrets.token_hex(8)}"


def waits(run: Path, id: str) -> bool:
    """Whether the run has not got to this command yet. Raises Failure(64) for what is no id."""
    if not _NAME.fullmatch(f"{id}.json"):
        raise Failure(Exit.BAD_COMMAND, f"no command has the id {id[:40]!r}", "it is what `control --wait 0` says")
    return (run / FOLDER / f"{id}.json").exists()


def post(run: Path, command: Command, id: str | None = None) -> str:
    """Leave a command for the run and return its id, a new one where none is given. Raises Failure(73) where the
    directory cannot be written."""
    folder = run / FOLDER
    name = f"{id or new_id()}.json"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # The run looks at names without a leading dot, so it never reads a command that is half written.
        temporary = folder / f".{name}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(command.to_json(), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, folder / name)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be written: {error}", "see whose the run is") from error
    return name.removesuffix(".json")


def tell(run: Path, command: Command, wait: float) -> dict[str, Any]:
    """Leave a command and return the ledger's record of it, or only its `id` where `wait` (seconds) is 0.

    Raises Failure: 66 where nobody trains in this directory, 64 where the run refuses, 69 where it does not get to it
    in time.
    """
    if not (math.isfinite(wait) and wait >= 0):
        raise Failure(Exit.BAD_COMMAND, f"--wait {wait}", "give seconds; 0: only leave the command there")
    ledger = run / "ledger.jsonl"
    # A run that is starting has its directory, and `logs` in it, some seconds before there is a ledger.
    if not (ledger.is_file() or (run / "logs").is_dir()):
        raise Failure(Exit.INPUT_MISSING, f"{run} is no run", "name a run directory")
    if not wait:
        return {"id": post(run, command)}
    if not (ledger.is_file() and alive(run)):
        raise Failure(Exit.INPUT_MISSING, f"nobody trains in {run}", "start it; --wait 0 leaves a command for that")
    # Taken before the command is there, so that its record cannot come before this place.
    offset = ledger.stat().st_size
    id = post(run, command)
    told = _answer(ledger, offset, id, time.monotonic() + wait)
    if told is None:
        hint = "it is done as soon as the run gets to it; `drivetrain report` says where it is"
        raise Failure(Exit.PEER_UNAVAILABLE, f"{command}: no answer in {wait:g} s", hint)
    if told.refused is not None:
        raise Failure(Exit.BAD_COMMAND, f"{command}: {told.refused}", "nothing was changed", step=told.step)
    return told.to_json()


def _answer(ledger: Path, offset: int, id: str, end: float) -> CommandRecord | None:
    """The record of a command, from this place of the ledger on."""
    mark = f'"{id}"'.encode()
    with ledger.open("rb") as file:
        file.seek(offset)
        while time.monotonic() < end:
            line = file.readline()
            if not line.endswith(b"\n"):  # the end, or a record under way
                file.seek(-len(line), os.SEEK_CUR)
                time.sleep(_LOOK)
            elif mark in line:
                record = parse(json.loads(line))
                if isinstance(record, CommandRecord) and record.id == id:
                    return record
    return None


class Inbox:
    """The run's side: what waits, oldest command first."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER

    def take(self, known: Mapping[str, Posted] | None = None) -> Iterator[Posted]:
        """What waits; what is `known` already, by its id, is not read again. Each stays until it is `done`, so that a
        run that is killed before finds it again."""
        for name in self._names():
            id = name.removesuffix(".json")
            if known and id in known:
                yield known[id]
                continue
            try:
                yield Posted(id, self._read(name))
            except (OSError, ValueError, AttributeError, RecursionError) as error:
                yield Posted(id, None, f"the file is no command: {error}")
            except Failure as failure:
                yield Posted(id, None, failure.outcome.cause)

    def done(self, id: str) -> None:
        """The command is in the ledger. Where its file cannot be removed, its id says that it was done."""
        with suppress(OSError):
            (self._folder / f"{id}.json").unlink()

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as found:
                return sorted(one.name for one in found if _NAME.fullmatch(one.name) and not one.is_dir())
        except OSError:  # there is none yet, or it cannot be read now: whoever leaves a command is told of no answer
            return []

    def _read(self, name: str) -> Command:
        """Only a regular file of ours or root's is believed: the directory may be shared."""
        # O_NONBLOCK: to open a named pipe would wait for its writer, and training with it.
        descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                raise Failure(Exit.SECURITY, "a command is a regular file of the run's owner", "see who wrote it")
            return Command.of(json.loads(file.read(_MOST)))


class WatchedInbox:
    """An inbox that a thread looks at, so that a directory that stalls holds up no step."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._changed = threading.Condition()
        self._done: list[str] = []
        self._wanted = self._looks = 0  # looks that were asked for, and made
        self._closing = False
        # The first look is made here: what was left while nobody trained is found at the first boundary.
        self._posted = {posted.id: posted for posted in inbox.take()}
        self._thread = threading.Thread(target=self._work, name="inbox", daemon=True)
        self._thread.start()

    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._posted)

    def take(self, most: int | None = None) -> Iterator[Posted]:
        """What waits, or the oldest so many of it."""
        yield from list(self._posted.values())[:most]

    def done(self, id: str) -> None:
        """The command is in the ledger: its file goes. Where it cannot be removed, its id says that it was done."""
        with self._changed:
            self._done.append(id)
            self._posted = {other: posted for other, posted in self._posted.items() if other != id}

    def look(self, within: float) -> None:
        """Look now, as a last time before the end; a directory that does not answer in so many seconds is left."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._looks >= self._wanted, within)

    def close(self, within: float) -> None:
        """Remove what is done, in so many seconds at most."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(within)

    def _work(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._looks or self._closing, POLL)
                wanted, ended = self._wanted, self._closing
                done, self._done = self._done, []
            for id in done:
                self._inbox.done(id)
            found = {posted.id: posted for posted in self._inbox.take(self._posted)}
            with self._changed:
                # What was done meanwhile may have been found before.
                self._posted = {id: posted for id, posted in found.items() if id not in self._done}
                self._looks = wanted
                self._changed.notify_all()
