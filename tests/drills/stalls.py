"""A holder that stalls within a commit (a shared disk that hangs), and wakes up after another has taken over.

The stall comes at every touch of the disk of a publication and of a rotation, one after the other. Nothing of it ships.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from drills.storage import Inline, Scoreboard, commit, judge
from drivetrain.checkpoint.commit import read_manifest
from drivetrain.checkpoint.commits import Commit, CommitFailure, clean, names
from drivetrain.checkpoint.manifest import FOLDER, name_of
from drivetrain.runtime import lease as leases
from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit
from states import committer

CALLS = ("open", "close", "fsync", "mkdir", "rename", "unlink", "rmdir", "stat", "listdir", "scandir")
PATIENCE = 0.05
"""Seconds; as short as a takeover can wait here."""


class Stall:
    """Holds up one thread at its n-th call, before it is made or right after it."""

    def __init__(self, number: int, *, after: bool) -> None:
        self.calls = 0
        self.here, self.go = threading.Event(), threading.Event()
        self.at = ""
        self._number = number
        self._after = after
        self._thread: int | None = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        """While entered, this thread's calls are counted, and one of them stalls."""
        self._thread = threading.get_ident()
        try:
            with ExitStack() as stack:
                for name in CALLS:
                    stack.enter_context(mock.patch.object(os, name, self._stalling(name, getattr(os, name))))
                yield
        finally:
            self._thread = None

    def _stalling(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return real(*arguments, **options)
            number, self.calls = self.calls, self.calls + 1
            if number == self._number and not self._after:
                self._wait(f"before {name}")
            result = real(*arguments, **options)
            if number == self._number and self._after:
                self._wait(f"after {name}")
            return result

        return called

    def _wait(self, where: str) -> None:
        self.at = where
        self.here.set()
        assert self.go.wait(30)


def sweep(folder: Path, keeps: Sequence[int] = (1, 2), every: int = 1) -> Scoreboard:
    """Every call, before and after it, with little and with more that stays. `every` 2: before and after in turn."""
    board = Scoreboard()
    with mock.patch.object(leases, "PATIENCE", PATIENCE):
        for keep in keeps:
            for after in (False, True):
                number = after % every
                while trial(folder / f"{keep}-{after}-{number}", number, keep, after=after, board=board):
                    number += every
    return board


def trial(run: Path, number: int, keep: int, *, after: bool, board: Scoreboard) -> bool:
    """One stall; False where the commit has fewer calls.

    The first holder has made steps 1 and 2, and has gone back to make step 2 again, so that it replaces a commit. The
    second one takes over while it stalls, and makes steps 2 and 3. Then the first one wakes up.
    """
    run.mkdir(parents=True)
    first = Lease.take(run, lambda: names(run))
    writer = committer(run, keep=keep, lease=first, _pool=Inline())
    for step in (1, 2):
        assert isinstance(commit(writer, step), Commit)
    stall, ends = Stall(number, after=after), []

    def make_again() -> None:
        with stall.armed():
            ends.append(commit(writer, 2))

    thread = threading.Thread(target=make_again)
    thread.start()
    while thread.is_alive() and not stall.here.is_set():
        stall.here.wait(0.01)
    if not stall.here.is_set():
        thread.join()
        first.release()
        return False
    _cut_off(first)
    second = Lease.take(run, lambda: names(run))
    clean(run)
    heir = committer(run, keep=keep, lease=second, _pool=Inline())
    results = [commit(heir, step) for step in (2, 3)]
    stall.go.set()
    thread.join()
    board.count(f"keep {keep}, {stall.at}, call {number}", _wrong(run, results, ends, heir, keep))
    second.release()
    return True


def _cut_off(lease: Lease) -> None:
    """Its node is gone, as others see it: no beat, and no lock."""
    lease._ended.set()
    lease._thread.join()
    os.close(lease._descriptor)


def _wrong(run: Path, results: list[Any], ends: list[Any], heir: Any, keep: int) -> str | None:
    """What does not hold: the heir's commits stay, they are what is found, and the first holder says that it lost."""
    for result in results:
        if isinstance(result, CommitFailure):
            return f"the second holder's commit failed: {result.cause}"
    if found := judge(run, [3]):
        return found
    wanted = {name_of(step) for step in ((3,) if keep == 1 else (2, 3))}
    if missing := wanted - set(names(run)):
        return f"{', '.join(missing)} of the second holder is gone"
    for name in wanted:
        if (epoch := read_manifest(run / FOLDER / name)["epoch"]) != heir.lease.epoch:
            return f"{name} is of epoch {epoch}"
    (end,) = ends
    if isinstance(end, Commit) and end.removed:
        return f"a holder that had lost the directory removed {end.removed}"
    if isinstance(end, CommitFailure) and end.code not in (Exit.OWNED_ELSEWHERE, Exit.STORAGE):
        return f"the first holder ended with {int(end.code)}: {end.cause}"
    again = commit(heir, 4)
    if isinstance(again, CommitFailure):
        return f"the next commit failed: {again.cause}"
    if found := judge(run, [4]):
        return found
    left = [path.name for path in (run / FOLDER).glob(".t*")]
    return None if len(left) <= 1 else f"left: {left}"
