"""Experiment trackers: each reads the ledger by itself, and remembers in the run directory what it has sent."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from drivetrain.ledger.ledger import chain_of, ending, parse_line
from drivetrain.ledger.records import Record
from drivetrain.spec.code.blame import own_place
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json
from drivetrain.watch.tracker_mark import Mark, TrackerRow, without_secrets

EVERY = 1.0
"""Seconds between two looks at the ledger: so many points go in one parcel."""
LONGEST = 60.0
"""Seconds between two tries during an outage, at most."""
PATIENCE = 10.0
"""Seconds that the end of a run waits for all trackers together."""
_ROWS = 200  # in a parcel


@dataclass(frozen=True)
class About:
    """The tracker's run: the same in every attempt."""

    id: str
    name: str
    folder: Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A library that rows go to. Any method may raise or take long: its thread is nobody else's."""

    name: str
    target: str
    """What the rows go to, such as a project: another one begins anew."""
    holds: bool
    """Whether rows may still be lost after `send`, until `close` returns: the mark is kept only then."""

    def open(self, about: About) -> int:
        """Begin the run or go on in it; after a failure it is called again.

        Returns the number of the last row that is known to be there: those up to it do not come again.
        """
        ...

    def send(self, rows: Sequence[TrackerRow]) -> None:
        """Take these rows. Where it raises they come again, so what it took of them must not count twice."""
        ...

    def close(self) -> None:
        """No more will come in this attempt."""
        ...


class TrackerThread:
    """One tracker's thread: sends what the ledger has beyond the mark, again and again; an outage leaves it behind."""

    def __init__(self, run: Path, tracker: Tracker) -> None:
        self.tracker = tracker
        self.over = threading.Event()
        """Nothing more is tried."""
        self._run = run
        self._ledger = run / "ledger.jsonl"
        self._path = run / "trackers" / f"{tracker.name}.json"
        self._mark: Mark | None = None
        self._unsaved = False
        self._open = False
        self._has = 0  # number of the last row that was there when the tracker was opened
        self._complete = False
        self._error = ""
        self._closing = ""  # what is wrong with its end, where every row was sent
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"watch-{tracker.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No more records will come: send the rest, without a pause for what is left of one."""
        self._ended.set()

    def give_up(self) -> str:
        """Stop trying; what to tell a person about what is missing, "" where nothing is."""
        self._given_up.set()
        if self._closing:
            return f"{self.tracker.name} has every row of this run, and fails at its end: {self._closing}"
        if self._complete:
            return ""
        why = self._error or "it takes too long"
        return f"{self.tracker.name} lacks the end of this run ({why}); the next start of this run sends it"

    def _work(self) -> None:
        try:
            self._try_until_sent()
        finally:
            self.over.set()

    def _try_until_sent(self) -> None:
        pause = EVERY
        while not self._given_up.is_set():
            ended = self._pause(pause)
            try:
                self._send_all()
                if ended:
                    self._close()
                    return
                pause = EVERY
            # Whatever a library raises is an outage, also what it means to end the process by: it must not cost the run
            # anything.
            except (Exception, SystemExit) as error:
                self._tell(error)
                self._open = False
                # What the library has held back may be lost: back to the mark that is kept.
                if self.tracker.holds:
                    self._mark = None
                pause = min(LONGEST, 2 * pause)

    def _pause(self, seconds: float) -> bool:
        """Wait; whether the run has ended. What is left is tried at once then, and every second if that fails."""
        if self._ended.is_set():
            self._given_up.wait(min(seconds, EVERY))
            return True
        return self._ended.wait(seconds)

    def _close(self) -> None:
        """Once only: what a library holds back after that is its own to send."""
        try:
            if self._open:
                self.tracker.close()
                self._save()
            self._complete = True
        except (Exception, SystemExit) as error:
            self._error = _words(error)
            if not self.tracker.holds:
                self._closing = self._error

    def _tell(self, error: BaseException) -> None:
        """One line on stderr for the first failure of an attempt."""
        first = not self._error
        self._error = _words(error)
        if first:
            print(
                f"drivetrain: {self.tracker.name} fails, the run goes on and it is tried again: {self._error}",
                file=sys.stderr,
            )

    def _send_all(self) -> None:
        """Send what is there, parcel by parcel, and remember each."""
        if self._unsaved:
            self._save()
        self._mark = self._standing()
        if self._mark is None:
            return
        # The mark is kept after its rows are sent: a crash in between sends them again, which trackers ignore.
        for mark, rows in self._parcels(self._mark):
            if rows:
                self._opened(mark)
                if new := [row for row in rows if row.number > self._has]:
                    self.tracker.send(new)
            self._mark = mark
            if not self.tracker.holds:
                self._unsaved = True
                self._save()
        self._error = ""

    def _opened(self, mark: Mark) -> None:
        if not self._open:
            config = without_secrets(_config(self._run))
            self._has = self.tracker.open(About(mark.run, self._run.resolve().name, self._run, config))
            self._open = True

    def _save(self) -> None:
        assert self._mark is not None
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(self._path, asdict(self._mark))
        self._unsaved = False

    def _standing(self) -> Mark | None:
        """The mark for the ledger as it is now; None where that has no record.

        Where its end is gone (a machine that went down took it), it is read from its start; the highest steps stay.
        """
        # Its digest: the words may be private.
        target = hashlib.sha256(self.tracker.target.encode()).hexdigest()[:16]
        try:
            with self._ledger.open("rb") as file:
                line = file.readline()
                if not line.endswith(b"\n") or parse_line(line, "") is None:
                    return None
                first = chain_of(line)
                mark = self._mark or Mark.kept(self._path)
                if mark is None or (mark.run, mark.target) != (first, target):
                    return Mark(first, target)
                return mark if _ends_with(file, mark) else replace(mark, offset=0, chain="")
        except FileNotFoundError:
            return None

    def _parcels(self, mark: Mark) -> Iterator[tuple[Mark, list[TrackerRow]]]:
        """The rows beyond a mark, each parcel with the mark that holds once it is sent."""
        rows: list[TrackerRow] = []
        begin = mark.offset
        with self._ledger.open("rb") as file:
            file.seek(mark.offset)
            for line in file:
                record = parse_line(line, mark.chain) if line.endswith(b"\n") else None
                if record is None:  # a line that is being written, or damage that its writer names
                    break
                mark, row = mark.after(line, record)
                if row is not None:
                    rows.append(row)
                if len(rows) == _ROWS:
                    yield mark, rows
                    rows, begin = [], mark.offset
        if mark.offset > begin:
            yield mark, rows


class Trackers:
    """The sink of all trackers. It takes no record: each tracker reads the ledger, as far behind as it has to be."""

    def __init__(self, run: Path, trackers: Sequence[Tracker]) -> None:
        self._replays = [TrackerThread(run, tracker) for tracker in trackers]

    def record(self, record: Record) -> None:
        """Nothing: the ledger is the queue."""

    def close(self) -> None:
        """Wait a while for what is left; a line on stderr for each tracker that lacks something then."""
        for replay in self._replays:
            replay.end()
        # One deadline for all: an outage of several must not make the end of a run several times as long.
        deadline = time.monotonic() + PATIENCE
        for replay in self._replays:
            replay.over.wait(max(0.0, deadline - time.monotonic()))
            if told := replay.give_up():
                print(f"drivetrain: {told}", file=sys.stderr)


def require(package: str) -> None:
    """Raises Failure(78) where a tracker's library is missing; a folder of that name is no library."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise Failure(
            Exit.BAD_RECIPE, f"watch.{package}: the package is not installed", f"pip install 'drivetrain[{package}]'"
        )


def _words(error: BaseException) -> str:
    """The first line of an error, and where in the user's own code it is."""
    told = error.outcome.cause if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
    told, place = told.strip().splitlines()[0][:200], own_place(error)
    if place is not None:
        told = f"{told.partition(', at ')[0]}, at {place}"
    return without_secrets(told)


def _config(run: Path) -> dict[str, Any]:
    """The resolved recipe; it is written before the ledger."""
    try:
        return json.loads((run / "resolved.json").read_text())["recipe"]
    except (OSError, ValueError, KeyError):
        return {}


def _ends_with(file: Any, mark: Mark) -> bool:
    """Whether the ledger has, up to the mark's offset, what it had."""
    if mark.offset == 0:
        return True
    end = ending(mark.chain)
    file.seek(max(0, mark.offset - len(end)))
    return file.read(len(end)) == end
