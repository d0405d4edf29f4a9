"""The commits of a run: which one to go on from, and the writing of the next one beside training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.commit import (
    StateTree,
    load,
    manifest_in,
    read_manifest,
    verify,
    write_manifest,
    write_parts,
)
from drivetrain.checkpoint.files import (
    OpenFolder,
    discard,
    is_removed,
    make_folder,
    remove,
    rename,
    require_space,
)
from drivetrain.checkpoint.manifest import FOLDER, Damaged, entries, name_of, step_of
from drivetrain.checkpoint.retention import Retention, pinned_steps, retained
from drivetrain.checkpoint.snapshot import Arena, TensorBytes, pieces_of
from drivetrain.ledger.queue import TURN, Patience, stalled
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.lease import Lease, Takeover, fenced, taken_over, takeovers
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder

MAX_FAILURES = 3
"""Commits in a row that may fail before the run ends with 74."""
_SPARE = 1 << 20  # bytes for manifest and folders
_FILES = 8


@dataclass(frozen=True)
class Commit:
    """A commit that is on the disk and verified.

    `bytes` counts all files, `manifest` is the manifest's SHA-256. `writing` is how many seconds the background took,
    `removed` are the commits that need not stay any longer.
    """

    name: str
    step: int
    bytes: int
    manifest: str
    writing: float
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommitFailure:
    """A commit that could not be made; the ones before are as they were.

    `lasting`: none after it can be made either.
    """

    step: int
    code: Exit
    cause: str
    hint: str = "the commit before is whole; free space, then start again"
    lasting: bool = False

    @classmethod
    def of(cls, step: int, failure: Failure) -> CommitFailure:
        """The commit that a failure has ended."""
        outcome = failure.outcome
        lasting = outcome.code is Exit.OWNED_ELSEWHERE or "gone" in outcome.where
        return cls(step, outcome.code, f"{name_of(step)}: {outcome.cause}", outcome.hint, lasting)


@dataclass(frozen=True)
class LoadedCommit:
    """The commit to go on from, its state, and the newer ones that were passed over, each with the reason.

    `volatile`: survivors left it in memory when the run was cut off.
    """

    path: Path
    metadata: dict[str, Any]
    state: StateTree
    passed_over: tuple[str, ...]
    volatile: bool = False

    @property
    def step(self) -> int:
        """The step after which it was made."""
        return self.metadata["step"]


def names(run: Path) -> list[str]:
    """Names of all commits, valid or not, newest first; without those that somebody has begun to remove."""
    there = [name for name in entries(run / FOLDER) if step_of(name) is not None]
    found = [name for name in there if not is_removed(run / FOLDER / name)]
    return sorted(found, key=lambda name: step_of(name) or 0, reverse=True)


def clean(run: Path) -> None:
    """Remove what was never a commit, or is no longer one. For the holder of the lease."""
    for name in entries(run / FOLDER):
        path = run / FOLDER / name
        if name.startswith((".tmp-", ".trash-")):
            discard(path)
        elif step_of(name) is not None:
            with suppress(OSError):
                if is_removed(path):
                    remove(path)
                else:
                    os.rmdir(path)  # an empty one is what is left of one that was removed; others refuse


def newest(run: Path, group: Group | None = None, volatile: Path | None = None) -> LoadedCommit | None:
    """The highest commit that verifies, read by all ranks of a group alike; None where there are none.

    `volatile` is where survivors may have left another. Raises Failure(86) where commits exist and none verifies.
    """
    group = group or Group()
    history, reasons = takeovers(run), []
    for path in _candidates(run, volatile):
        try:
            metadata, state = load(path)
            _require_ours(metadata, path, history)
        except Damaged as damage:
            reasons.append(f"{path.name}: {damage}")
            continue
        # Each rank reads the files itself, and a shared file system may show them different ones.
        group.agree("the commit that verifies", [path.name, metadata["sha256"]])
        return LoadedCommit(path, metadata, state, tuple(reasons), path.parent == volatile)
    group.agree("the commits", "none")
    if reasons:
        raise Failure(
            Exit.NO_VALID_COMMIT,
            f"none of {len(reasons)} commits in {run / FOLDER} verifies: {'; '.join(reasons)}",
            "restore one from a copy, or start another run by --run",
        )
    return None


def pick(run: Path, name: str) -> LoadedCommit:
    """The commit of this name (or step), which must verify.

    Raises Failure(66) where there is none, 65 where it is damaged.
    """
    wanted, there = name, names(run)
    if name.isdigit():
        wanted = name_of(int(name))
    if wanted not in there:
        raise Failure(Exit.INPUT_MISSING, f"no commit {name!r} in {run}", f"there are {', '.join(there) or 'none'}")
    try:
        metadata, state = load(run / FOLDER / wanted)
    except Damaged as damage:
        raise Failure(Exit.BAD_DATA, f"{wanted} in {run} is damaged: {damage}", "take another commit") from damage
    return LoadedCommit(run / FOLDER / wanted, metadata, state, ())


def _candidates(run: Path, volatile: Path | None) -> list[Path]:
    """Highest step first; of equal steps the one on the disk."""
    found = [run / FOLDER / name for name in names(run)]
    if volatile is not None:
        found += [volatile / name for name in sorted(entries(volatile)) if _step_left(name) is not None]
    # The sort is stable, so those on the disk stay in front of those in memory.
    return sorted(found, key=lambda path: -(_step_left(path.name) or 0))


def _step_left(name: str) -> int | None:
    """The step of a commit's folder, or of what a survivor left: there, its rank is after a dot."""
    return step_of(name.partition(".")[0])


def _require_ours(metadata: Mapping[str, Any], path: Path, history: list[Takeover]) -> None:
    if "volatile" not in metadata and fenced(history, path.name, metadata.get("epoch", 0)):
        raise Damaged(f"it was made by a run that had lost the directory (epoch {metadata.get('epoch', 0)})")


@dataclass
class Committer:
    """Writes a run's commits, one at a time, beside training: on the leader, since the state is replicated.

    `before` makes the ledger durable, `scores` gives the metric by which commits are the best. `patience` is for how
    long training waits for a commit to end.
    """

    run: Path
    lease: Lease | None
    retention: Retention
    before: Callable[[], None] = lambda: None
    scores: Callable[[], Mapping[int, float]] = dict
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    blocking: bool = False
    patience: Patience | None = None
    failures: int = 0
    _arena: Arena = field(default_factory=Arena)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "commit"))
    _under_way: Future[Commit | CommitFailure] | None = None
    _waited: float = 0.0  # seconds, by the training's thread for the commit under way
    _verified: dict[int, int] = field(default_factory=dict)  # step: position
    _damaged: set[str] = field(default_factory=set)
    _attempts: int = 0

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Have the memory for snapshots ready, beside training."""
        if not self.blocking:
            self._pool.submit(self._arena.reserve, tensors)

    def begin(self, step: int, state: StateTree, metadata: Mapping[str, Any]) -> None:
        """Take the state as it is now and start writing it. `metadata`, with the position, go into the manifest.

        The commit before must have been taken by `finished` or `wait`. Where it is `blocking`, the state must stay as
        it is until this one has ended.
        """
        assert self._under_way is None
        self.heartbeat.enter("snapshot")
        self.heartbeat.passing("snapshot", step)
        # Training waits until all is written, so the live tensors need no copy.
        take = pieces_of if self.blocking else self._arena.take
        pieces = take(state.tensors)
        self._under_way = self._pool.submit(self._make, step, pieces, state.values, metadata)
        self._waited = 0.0

    def finished(self) -> Commit | CommitFailure | None:
        """How the commit under way has ended; None where none is, or it has not."""
        if self._under_way is None or not self._under_way.done():
            return None
        return self.wait()

    def busy(self, within: float) -> bool:
        """Whether a commit is under way and does not end in so many seconds. Each call is a sign of life.

        Raises Failure(74) where it has been waited for as long as a disk is borne with.
        """
        if self._under_way is None:
            return False
        self.heartbeat.enter("commit")
        began = time.monotonic()
        wait_for([self._under_way], within)
        if self._under_way.done():
            return False
        self._waited += time.monotonic() - began
        if self._overdue:
            raise stalled(self.run, self._waited, "training has waited so long for a commit")
        return True

    def wait(self) -> Commit | CommitFailure | None:
        """How the commit under way ends; None where none is. Raises Failure(74) where it is not borne with any more."""
        while self.busy(TURN):
            pass
        if self._under_way is None:
            return None
        result, self._under_way = self._under_way.result(), None
        if isinstance(result, CommitFailure):
            self.failures += 1
        else:
            self.failures = 0
        return result

    def close(self) -> None:
        """Wait for what is under way, as long as it is borne with, and end the thread."""
        with suppress(Failure):  # the loop has heard of it, or ends for another reason
            while self.busy(TURN):
                pass
        self._pool.shutdown(wait=not self._overdue)

    @property
    def _overdue(self) -> bool:
        return self.patience is not None and self._waited > self.patience.seconds

    def _make(
        self, step: int, pieces: list[TensorBytes], values: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Commit | CommitFailure:
        """The whole protocol; whatever goes wrong leaves the commits before as they were."""
        started = time.monotonic()
        self._attempts += 1  # a name is never used twice: after a failed fsync nobody knows what a file holds
        epoch = self.lease.epoch if self.lease else 0
        temporary = self.run / FOLDER / f".tmp-{name_of(step)}-{epoch}-{self._attempts}"
        try:
            size = sum(piece.data.numel() for piece in pieces) + _SPARE
            self.heartbeat.passing("write", step)
            # The manifest has the hash of the ledger's last record: a commit must not outlive what it refers to.
            self.before()
            if not temporary.parent.is_dir():
                make_folder(temporary.parent)
                sync_folder(self.run)
            require_space(temporary.parent, size, _FILES)
            make_folder(temporary)
            files = write_parts(temporary, pieces, values, threads=2 if self.blocking else 1)
            own = write_manifest(temporary, step, files, {"epoch": epoch, **metadata})
            self.heartbeat.passing("publish", step)
            self._publish(temporary, step)
            self._verified[step] = metadata.get("position", 0)
        except OSError as error:
            discard(temporary)
            return CommitFailure(step, Exit.STORAGE, f"{name_of(step)} cannot be committed: {error}")
        except Failure as failure:
            discard(temporary)
            return CommitFailure.of(step, failure)
        self.heartbeat.passing("rotate", step)
        removed: tuple[str, ...] = ()
        # The commit is there. What could not be removed is tried again with the next one, which will also tell where
        # the directory is another's by now.
        with suppress(OSError, Failure):
            removed = self._rotate()
        total = sum(file.size for file in files.values())
        return Commit(name_of(step), step, total, own, time.monotonic() - started, removed)

    def _publish(self, temporary: Path, step: int) -> None:
        """The rename, while nobody can take the directory over: now the commit exists."""
        final = self.run / FOLDER / name_of(step)
        with self.lease.holding() if self.lease else nullcontext():
            if final.exists():  # of this step, but it did not verify, or was fenced off
                self._remove(final)
            # Where the process stalls here and another takes over, that one's commit may be there when it wakes up.
            # `rename` refuses a folder that is not empty; and a new one in an empty place is fenced off.
            rename(temporary, final)
            # A stall outlasts the patience of whoever waits for the directory: what is said now must be true now.
            if self.lease:
                self.lease.require()

    def _remove(self, path: Path) -> None:
        """Remove a commit, unless a newer holder has made it, or this one is no longer the holder: Failure(85)."""

        def require_ours(folder: OpenFolder) -> None:
            # After the folder is open: whoever takes over later puts another folder in its place.
            if self.lease is None:
                return
            self.lease.require()
            with suppress(Damaged):
                if manifest_in(folder, path).get("epoch", 0) > self.lease.epoch:
                    raise taken_over(self.run)

        remove(path, require_ours)

    def _rotate(self) -> tuple[str, ...]:
        """Remove what need not stay. Only commits that verify count, and one that does not is left for a person."""
        for name in names(self.run):
            step = step_of(name)
            if step is not None and step not in self._verified and name not in self._damaged:
                try:
                    self._verified[step] = verify(self.run / FOLDER / name).get("position", 0)
                except (Damaged, Failure):
                    self._damaged.add(name)
        there: dict[int, int] = {}
        for step, position in self._verified.items():
            if (self.run / FOLDER / name_of(step)).is_dir():  # a person may have removed it meanwhile
                there[step] = position
        stay = retained(there, pinned_steps(self.run), self.scores(), self.retention)
        removed: list[str] = []
        for step in sorted(there.keys() - stay):
            self._remove(self.run / FOLDER / name_of(step))
            removed.append(name_of(step))
        self._verified = {step: there[step] for step in stay}
        return tuple(removed)


def oldest_epoch(run: Path) -> int:
    """The smallest epoch of a commit that is there; 0 where one cannot be read."""
    epochs = []
    for name in names(run):
        try:
            epochs.append(read_manifest(run / FOLDER / name).get("epoch", 0))
        except (Damaged, Failure):
            return 0
    return min(epochs, default=0)
