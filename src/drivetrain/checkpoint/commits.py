"""The commits of a run: which one to go on from, and the writing of the next one beside training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.commit import StateTree, boxes_file, load, read_manifest, values_file
from drivetrain.checkpoint.draft import Commit, CommitFailure, Draft, Files
from drivetrain.checkpoint.files import discard, is_removed, remove
from drivetrain.checkpoint.manifest import FOLDER, Damaged, entries, name_of, step_of
from drivetrain.checkpoint.publication import Publication, names
from drivetrain.checkpoint.reading import Wanted
from drivetrain.checkpoint.retention import Retention
from drivetrain.checkpoint.snapshot import Arena, pieces_of
from drivetrain.checkpoint.stored import StoredCommit
from drivetrain.ledger.queue import TURN, Patience, stalled
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.lease import Lease, Takeover, fenced, takeovers
from drivetrain.spec.exits import Exit, Failure

MAX_FAILURES = 3
"""Commits in a row that may fail before the run ends with 74."""
_WRITERS, _WRITERS_BESIDE = 4, 2
"""Threads that write a commit's files while training waits, and beside it: most of the time each waits for the disk."""


@dataclass(frozen=True)
class LoadedCommit:
    """The commit to go on from, its state, and the newer ones that were passed over, each with the reason.

    `volatile`: survivors left it in memory when the run was cut off. Where it is `stored`, the state has no tensors
    yet: `read` gives those that are wanted.
    """

    path: Path
    metadata: dict[str, Any]
    state: StateTree
    passed_over: tuple[str, ...]
    volatile: bool = False
    stored: StoredCommit | None = None

    @property
    def step(self) -> int:
        """The step after which it was made."""
        return self.metadata["step"]

    def read(self, wanted: Wanted) -> dict[str, Tensor]:
        """What this rank wants of each tensor, by name. Where it is `stored`, all ranks call it.

        Raises what `StoredCommit.read` and `wanted` raise.
        """
        if self.stored is not None:
            return self.stored.read(wanted)
        found = {}
        for name, tensor in self.state.tensors.items():
            box = wanted(name, tuple(tensor.shape))
            if box is not None:
                found[name] = tensor[box.slices]
        return found


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


def newest(
    run: Path, group: Group | None = None, volatile: Path | None = None, *, whole: bool = True, keep: bool = False
) -> LoadedCommit | None:
    """The highest commit that verifies, the same on all ranks of a group; None where there are none.

    `volatile` is where survivors may have left another. Where it is not to be `whole`, the ranks share out its files
    to check them, and each reads its own tensors later; it may `keep` what it is likely to want.

    Raises Failure(86) where commits exist and none verifies, 76 where one is of a newer format.
    """
    group = group or Group()
    history, reasons = takeovers(run), []
    for path in _candidates(run, volatile) if whole else _shared_candidates(run, group):
        require = partial(_require_ours, path, history)
        try:
            if not whole:
                stored = StoredCommit.verified(path, group, require, keep=keep)
                state = StateTree({}, stored.values)
                return LoadedCommit(path, stored.metadata, state, tuple(reasons), stored=stored)
            metadata, state = load(path)
            require(metadata)
        except Damaged as damage:
            reasons.append(f"{path.name}: {damage}")
            continue
        # Each rank reads the files itself, and a shared file system may show them different ones.
        group.agree("the commit that verifies", [path.name, metadata["sha256"]])
        return LoadedCommit(path, metadata, state, tuple(reasons), path.parent == volatile)
    # A rank that sees none beside one that sees some must not begin a fresh run.
    group.agree("the commits", "none")
    if reasons:
        raise Failure(
            Exit.NO_VALID_COMMIT,
            f"none of {len(reasons)} commits in {run / FOLDER} verifies: {'; '.join(reasons)}",
            "restore one from a copy, or start another run by --run",
        )
    return None


def pick(run: Path, name: str, *, whole: bool = True) -> LoadedCommit:
    """The commit of this name (or step), which must verify; `whole` as for `newest`.

    Raises Failure(66) where there is none, 65 where it is damaged.
    """
    wanted, there = name, names(run)
    if name.isdigit():
        wanted = name_of(int(name))
    if wanted not in there:
        raise Failure(Exit.INPUT_MISSING, f"no commit {name!r} in {run}", f"there are {', '.join(there) or 'none'}")
    try:
        if not whole:
            stored = StoredCommit.verified(run / FOLDER / wanted, Group())
            return LoadedCommit(stored.path, stored.metadata, StateTree({}, stored.values), (), stored=stored)
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


def _shared_candidates(run: Path, group: Group) -> list[Path]:
    """The same on all ranks, which look at each of them together."""
    return [run / FOLDER / name for name in group.broadcast_json(names(run))]


def _step_left(name: str) -> int | None:
    """The step of a commit's folder, or of what a survivor left: there, its rank is after a dot."""
    return step_of(name.partition(".")[0])


def _require_ours(path: Path, history: list[Takeover], metadata: Mapping[str, Any]) -> None:
    if "volatile" not in metadata and fenced(history, path.name, metadata.get("epoch", 0)):
        raise Damaged(f"it was made by a run that had lost the directory (epoch {metadata.get('epoch', 0)})")


@dataclass
class Committer:
    """Writes a run's commits, one at a time, beside training.

    `before` makes the ledger durable, `scores` gives the metric by which commits are the best. `patience` is for how
    long training waits for a commit to end. Either one rank has a committer, which does everything; or, `in_parts`,
    every rank has one and writes what it counts. What each has come to (`part`) is then told to rank 0, which makes
    the commit (`seal`), and the others forget theirs (`drop`).
    """

    run: Path
    lease: Lease | None
    retention: Retention
    before: Callable[[], None] = lambda: None
    scores: Callable[[], Mapping[int, float]] = dict
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    blocking: bool = False
    patience: Patience | None = None
    rank: int = 0
    in_parts: bool = False
    failures: int = 0
    _arena: Arena = field(default_factory=Arena)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "commit"))
    _part: tuple[Draft, Future[Files | CommitFailure]] | None = None
    _under_way: Future[Commit | CommitFailure] | None = None
    _waited: float = 0.0  # seconds, by the training's thread for the commit under way
    _attempts: int = 0

    def __post_init__(self) -> None:
        self._publication = Publication(self.run, self.lease)

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Have the memory for snapshots ready, beside training."""
        if not self.blocking:
            self._pool.submit(self._arena.reserve, tensors)

    def next_folder(self, step: int) -> str:
        """The name of the folder in which the next commit is made: on rank 0, which tells it to all."""
        # Never used twice: after a failed fsync nobody knows what a file holds.
        return f".tmp-{name_of(step)}-{self._epoch}-{self._attempts + 1}"

    def begin(self, step: int, state: StateTree, metadata: Mapping[str, Any], folder: str | None = None) -> None:
        """Take the state as it is now and start writing it. `metadata`, with the position, go into the manifest;
        `folder` is rank 0's `next_folder`.

        The commit before must have been taken by `finished` or `wait`. Where it is `blocking`, the state must stay as
        it is until this one has ended.
        """
        assert self._running is None
        self.heartbeat.enter("snapshot")
        self.heartbeat.passing("snapshot", step)
        # Training waits until all is written, so the live tensors need no copy.
        take = pieces_of if self.blocking else self._arena.take
        pieces = take(state.tensors)
        # Plain values are the same on all ranks, so one writes them.
        others = values_file(state.values) if self.rank == 0 else {}
        if self.in_parts and (pieces or self.rank == 0):
            others |= boxes_file(state.boxes, self.rank)
        temporary = self.run / FOLDER / (folder or self.next_folder(step))
        self._attempts += 1
        rank = self.rank if self.in_parts else None
        draft = Draft(step, temporary, {"epoch": self._epoch, **metadata}, rank, self.heartbeat)
        work = (pieces, others, _WRITERS if self.blocking else _WRITERS_BESIDE, self.before)
        if self.in_parts:
            self._part = draft, self._pool.submit(draft.write, *work)
        else:
            self._under_way = self._pool.submit(lambda: self._publish(draft, draft.write(*work)))
        self._waited = 0.0

    def part(self) -> dict[str, Any] | None:
        """What this rank's part of the commit under way has come to, for `seal`; None where there is none, or it is
        still being written. Nothing waits."""
        if self._part is None or not self._part[1].done():
            return None
        result = self._part[1].result()
        if isinstance(result, CommitFailure):
            return {"failure": asdict(result)}
        return {"files": {name: asdict(file) for name, file in result.items()}}

    def seal(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Make a commit of the parts that all ranks have told, in their order, beside training: on rank 0."""
        assert self._part is not None
        draft, self._part = self._part[0], None
        self._under_way = self._pool.submit(lambda: self._publish(draft, draft.join(parts)))

    def drop(self) -> None:
        """Forget this rank's part: rank 0 has it by now, or there will be no commit."""
        if self.rank == 0 and self._part is not None:
            self._pool.submit(discard, self._part[0].folder)
        self._part = None

    def finished(self) -> Commit | CommitFailure | None:
        """How the commit under way has ended; None where none is, or it has not."""
        if self._under_way is None or not self._under_way.done():
            return None
        return self.wait()

    def busy(self, within: float) -> bool:
        """Whether a commit, or this rank's part of one, is under way and does not end in so many seconds. Each call is
        a sign of life.

        Raises Failure(74) where it has been waited for as long as a disk is borne with.
        """
        running = self._running
        if running is None:
            return False
        self.heartbeat.enter("commit")
        began = time.monotonic()
        wait_for([running], within)
        if running.done():
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
    def _running(self) -> Future[Any] | None:
        return self._part[1] if self._part else self._under_way

    @property
    def _epoch(self) -> int:
        return self.lease.epoch if self.lease else 0

    @property
    def _overdue(self) -> bool:
        return self.patience is not None and self._waited > self.patience.seconds

    def _publish(self, draft: Draft, files: Files | CommitFailure) -> Commit | CommitFailure:
        publication = self._publication
        return draft.publish(files, publication, lambda: publication.rotate(self.scores(), self.retention))


def oldest_epoch(run: Path) -> int:
    """The smallest epoch of a commit that is there; 0 where one cannot be read."""
    epochs = []
    for name in names(run):
        try:
            epochs.append(read_manifest(run / FOLDER / name).get("epoch", 0))
        # Whose epoch cannot be read may be of the first one: then no takeover is forgotten.
        except (Damaged, Failure):
            return 0
    return min(epochs, default=0)
