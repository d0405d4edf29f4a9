"""The mirror's copy of a commit: its files, each uploaded by one rank, and the manifest last.

Where several ranks upload, each leaves `checkpoints/<commit>/part-<rank>-<manifest>` once its files are there: what is
left of an earlier upload of the same step never stands for this one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drivetrain.checkpoint.manifest import FILE, FOLDER, MANIFEST, NAME, Damaged, parse_manifest, step_of, writer_of
from drivetrain.checkpoint.store import ObjectStore, Stored, Unavailable, Unfit, open_file

_DONE = re.compile(r"part-([0-9]{5})-[0-9a-f]{16}")
_OBJECT = re.compile(rf"{FOLDER}/({NAME.pattern})/({re.escape(MANIFEST)}|{FILE.pattern}|{_DONE.pattern})")
_TURN = 1.0  # seconds between two looks at what others upload
_TURNS = 600
Commits = Mapping[str, Mapping[str, Stored]]


def commits_in(store: ObjectStore) -> dict[str, dict[str, Stored]]:
    """Files of each commit in the store, whole or not; whatever has another name than ours is as if not there."""
    commits: dict[str, dict[str, Stored]] = {}
    for key, metadata in store.list(FOLDER).items():
        if match := _OBJECT.fullmatch(key):
            commits.setdefault(match[1], {})[match[3]] = metadata
    return commits


def whole(commits: Commits) -> dict[str, Mapping[str, Stored]]:
    """The commits whose manifest is there: it is uploaded last, and removed first."""
    return {name: files for name, files in commits.items() if MANIFEST in files}


def by_step(name: str) -> int:
    """For sorting."""
    return step_of(name) or 0


def files_of(manifest: bytes, commit: str) -> tuple[dict[str, tuple[int, str]], int]:
    """Size and SHA-256 of each file, and the step. Raises Unfit for anything that no commit of ours has, Failure(76)
    for a commit of a newer format."""
    try:
        parsed = parse_manifest(manifest, commit)
    except Damaged as damage:
        raise Unfit(str(damage)) from None
    files: dict[str, tuple[int, str]] = {}
    for name, metadata in parsed["files"].items():
        if not FILE.fullmatch(name):
            raise Unfit(f"the manifest names {name[:80]!r}")
        files[name] = metadata["size"], metadata["sha256"]
    return files, parsed["step"]


@dataclass(frozen=True)
class Share:
    """Who of so many ranks uploads what: each what the rank of its number wrote, rank 0 the manifest, too. `sleep`
    takes seconds."""

    rank: int
    world: int
    sleep: Callable[[float], object]

    def uploads(self, file: str) -> int:
        """The rank that uploads a file."""
        return writer_of(file) % self.world


class LocalCommit:
    """A local commit's manifest and this rank's files of it, opened before anything slow: it may be rotated away while
    it is being uploaded."""

    def __init__(self, path: Path, share: Share, stack: ExitStack) -> None:
        """Raises Unfit where it is not there."""
        self.name = path.name
        try:
            self.manifest = stack.enter_context(open_file(path / MANIFEST)).read()
            self.expected, _ = files_of(self.manifest, path.name)
            self._own: dict[str, IO[bytes]] = {}
            for file in self.expected:
                if share.uploads(file) == share.rank:
                    self._own[file] = stack.enter_context(open_file(path / file))
        except FileNotFoundError:
            raise Unfit("it is no longer in the run's checkpoints") from None
        self._share = share
        self._ranks = {share.uploads(file) for file in self.expected}

    def push(self, store: ObjectStore, there: Mapping[str, Stored]) -> None:
        """Upload this rank's files, and from rank 0 the manifest once those of all are there, unless the same commit
        is. `there` is what the store lists of it.

        Raises Unavailable where others have not uploaded theirs in ten minutes.
        """
        if MANIFEST in there:
            # A step may be made twice, by attempts that went other ways: the same name is not yet the same commit.
            if self._same(store, there):
                return
            if self._share.rank == 0:
                store.remove(self._key(MANIFEST))  # from here on the commit is not there, until its files are
            else:
                before = "what was there before is not removed"
                self._wait(store, lambda commits: MANIFEST not in commits.get(self.name, {}), before)
        for file, content in self._own.items():
            size, digest = self.expected[file]
            store.put_file(self._key(file), content, size, digest)
        if self._share.rank:
            store.put(self._key(self._mark(self._share.rank)), b"done")
            return
        self._wait(store, self._all_there, "other ranks have not uploaded their files")
        store.put(self._key(MANIFEST), self.manifest)
        for rank in self._ranks - {0}:
            store.remove(self._key(self._mark(rank)))

    def _all_there(self, commits: Commits) -> bool:
        """Whether all ranks have uploaded their files. Raises Unavailable where one has left this commit out."""
        there = commits.get(self.name, {})
        missing = {rank for rank in self._ranks - {0} if self._mark(rank) not in there}
        for name, files in commits.items():
            done = {int(match[1]) for match in map(_DONE.fullmatch, files) if match}
            # A rank uploads the newest that is queued: one that has begun a later commit will not come back to this.
            if missing & done and by_step(name) > by_step(self.name):
                raise Unavailable(f"other ranks have gone on to {name}")
        return not missing

    def _mark(self, rank: int) -> str:
        return f"part-{rank:05d}-{parse_manifest(self.manifest, self.name)['sha256'][:16]}"

    def _key(self, file: str) -> str:
        return f"{FOLDER}/{self.name}/{file}"

    def _same(self, store: ObjectStore, there: Mapping[str, Stored]) -> bool:
        """Whether this very commit is there."""
        sizes = {file: size for file, (size, _) in self.expected.items()} | {MANIFEST: len(self.manifest)}
        listed = {file: metadata.size for file, metadata in there.items() if not _DONE.fullmatch(file)}
        if sizes != listed:
            return False
        try:
            return store.read(self._key(MANIFEST), 0, len(self.manifest)) == self.manifest
        except FileNotFoundError:
            return False

    def _wait(self, store: ObjectStore, happens: Callable[[Commits], bool], otherwise: str) -> None:
        for turn in range(_TURNS):
            if happens(commits_in(store)):
                return
            if turn + 1 < _TURNS:
                self._share.sleep(_TURN)
        raise Unavailable(f"{otherwise} in {_TURN * _TURNS:g} s")


def wait_for_commit(path: Path, share: Share, abandoned: Callable[[], bool]) -> None:
    """Return once rank 0 has made a commit of the parts that ranks have written. Raises Unfit where it has not."""
    for _ in range(_TURNS):
        if (path / MANIFEST).exists():
            return
        if abandoned():
            break
        share.sleep(_TURN)
    raise Unfit("it was not made")


def retire(store: ObjectStore, commits: Commits, pushed: str, local: Path) -> None:
    """Remove commits that are no longer in `local`, except the newest two and `pushed`; `commits` is from before."""
    there = sorted({*whole(commits), pushed}, key=by_step)
    # Two, whatever is kept here: were the newest found to be damaged, there has to be another.
    kept = {*there[-2:], pushed, *os.listdir(local)}
    for name in commits.keys() - kept:
        # The manifest first, so that no half-removed commit is taken for one.
        for file in sorted(commits[name], key=lambda file: file != MANIFEST):
            store.remove(f"{FOLDER}/{name}/{file}")
