"""The runs below some folders, and their indexes, kept up to date by one thread that reads and never writes there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from drivetrain.board import snapshot
from drivetrain.board.index import Index
from drivetrain.board.liveness import Seen, look
from drivetrain.board.recipes import RecipeFile
from drivetrain.runtime.lease import holder_sign

POLL = 0.25
"""Seconds between two looks at the ledgers. Sizes are asked for, since no watcher sees what another host writes."""
_SCAN = 2.0  # seconds between two looks for runs that begin or go, and at leases
_DEPTH = 3  # folders below one that was named
_UNSAVED = 1000  # records that a snapshot may lack


@dataclass
class Run:
    """One run. `index` is filled as it is read; what changes is replaced whole, so that readers need no lock."""

    id: str
    folder: Path
    index: Index
    recipe: RecipeFile
    seen: Seen | None = None
    alive: bool = False
    gone: bool = False
    stamp: tuple[int, int] = (0, -1)
    """Inode and size of the ledger when it was looked at last."""
    more: bool = False
    """Whether the ledger had more at that look than was read."""
    saved: int = 0
    """Records of the newest snapshot."""
    loaded: bool = False
    lease: int = -1
    """When the lease's folder was changed last (ns): a takeover makes a file in it."""
    cache: dict[str, Any] = field(default_factory=dict)
    """What was computed of so many records, by name: see `row`."""


def run_id(folder: Path) -> str:
    """16 hex digits that stand for a run's folder in addresses."""
    return sha256(os.fsencode(folder)).hexdigest()[:16]


def find(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Run directories: the folder itself, or those below it. Links are not followed, hidden folders passed over."""
    if is_run(folder):
        yield folder
        return
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # it was removed meanwhile, or is not ours to read
        return
    for name in names:
        if not name.startswith("."):
            yield from find(folder / name, depth - 1)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's: one that starts has its recipe some seconds before its ledger."""
    # `Path.is_file` raises for a folder that is not ours to look into.
    return os.path.isfile(folder / "ledger.jsonl") or os.path.isfile(folder / "resolved.json")


def look_at(run: Run, clock: float) -> None:
    """Whether somebody trains there, at this time of a monotonic clock (seconds)."""
    try:
        lease = os.stat(run.folder / "lease").st_mtime_ns
    except OSError:
        return
    # Who has given a directory back, or died, comes back only by a new takeover.
    if run.seen and not run.alive and lease == run.lease:
        return
    run.lease = lease
    run.seen = look(run.seen, holder_sign(run.folder), clock, time.time())
    run.alive = run.seen is not None and run.seen.alive(clock)


class Runs:
    """All runs below `folders`."""

    def __init__(
        self,
        folders: Sequence[Path],
        cache: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.all: dict[str, Run] = {}
        """By id; replaced as a whole where runs come or go."""
        self.wanted = ""
        """The id of the run that somebody looks at: it is read first."""
        self._cache = cache
        self._changed: Callable[[set[str]], None] = lambda ids: None
        self._clock = clock
        self._scanned = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)

    def start(self, changed: Callable[[set[str]], None]) -> None:
        """Begin to read; `changed` is told the ids of runs that have changed, on the thread that reads."""
        self._changed = changed
        changed(self.scan())
        self._thread.start()

    def close(self) -> None:
        """Stop reading, and keep what was read."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for run in self.all.values():
            self._save(run)

    def scan(self) -> set[str]:
        """Look for runs that came or went, and at who trains; returns the ids of those that are new or changed."""
        self._scanned = self._clock()
        found = {}
        for folder in self.folders:
            for path in find(folder):
                id = run_id(path)
                found[id] = self.all.get(id) or Run(id, path, Index(path / "ledger.jsonl"), RecipeFile(path))
        changed = found.keys() ^ self.all.keys()
        for id in self.all.keys() - found.keys():
            self.all[id].gone = True
        self.all = found
        for run in found.values():
            alive = run.alive
            look_at(run, self._clock())
            if run.alive != alive:
                changed.add(run.id)
        return changed

    def poll(self) -> tuple[set[str], bool]:
        """Read a block of each ledger that has grown; returns the ids of those that changed, and whether there is more
        to read."""
        changed, more = set(), False
        runs = sorted(self.all.values(), key=lambda run: run.id != self.wanted)
        for run in runs:
            if self._closing.is_set():
                break
            try:
                state = os.stat(run.index.ledger)
                stamp = (state.st_ino, state.st_size)
                if stamp == run.stamp and not run.more:
                    continue
                run.more = self._follow(run)
                more |= run.more
                run.stamp = stamp
                changed.add(run.id)
            except FileNotFoundError:
                # It starts, or its directory is being removed.
                pass
            except OSError as error:
                run.stamp = (0, -1)
                run.index.damage = f"the ledger cannot be read: {error.strerror}"
                changed.add(run.id)
        return changed, more

    def _follow(self, run: Run) -> bool:
        if not run.loaded:
            run.loaded = True
            if self._cache and snapshot.load(run.index, self._cache / run.id):
                run.saved = run.index.records
        more = run.index.follow()
        if not more and run.index.records > run.saved + _UNSAVED:
            self._save(run)
        return more

    def _save(self, run: Run) -> None:
        if self._cache and run.index.records > run.saved:
            # A cache that cannot be written costs time at the next start, and nothing else.
            with suppress(OSError):
                snapshot.save(run.index, self._cache / run.id)
                run.saved = run.index.records

    def _work(self) -> None:
        while not self._closing.is_set():
            changed: set[str] = set()
            if self._clock() - self._scanned >= _SCAN:
                changed |= self.scan()
            followed, more = self.poll()
            if changed | followed:
                self._changed(changed | followed)
            # Somebody may wait for an index's lock meanwhile: a thread that never sleeps would keep it from them.
            self._closing.wait(0.001 if more else POLL)
