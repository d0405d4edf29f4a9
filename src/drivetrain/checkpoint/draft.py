"""A commit while it is made: its files written and read back, by one rank or by each, then what makes it one."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.checkpoint.commit import require_complete, write_manifest, write_parts
from drivetrain.checkpoint.files import FileMetadata, OpenFolder, discard, make_folder, require_space
from drivetrain.checkpoint.manifest import FILE, Damaged, name_of, writer_of
from drivetrain.checkpoint.publication import Publication
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder

_SPARE = 1 << 20  # bytes for manifest and folders
_FILES = 8
_STATE = ("tensors", "boxes")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Commit:
    """A commit that is on the disk and verified.

    `bytes` counts all files, `manifest` is the manifest's SHA-256. `writing` is how many seconds the background took,
    `removed` are the commits that need not stay any longer, `written` bytes of rank 0's
    files of tensors and boxes.
    """

    name: str
    step: int
    bytes: int
    manifest: str
    writing: float
    removed: tuple[str, ...] = ()
    written: int = 0


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

    @classmethod
    def told(cls, fields: Mapping[str, Any], rank: int) -> CommitFailure:
        """What another rank has told of its part, by `asdict`."""
        cause = f"{fields['cause']} (rank {rank})"
        return cls(**{**fields, "code": Exit(fields["code"]), "cause": cause})


Files = dict[str, FileMetadata]


@dataclass(frozen=True)
class Draft:
    """A commit that is being made in `folder`, which is not there yet. `rank` is whose part is written, None where one
    rank writes all; `metadata` go into the manifest.

    Whatever goes wrong leaves the commits before as they were.
    """

    step: int
    folder: Path
    metadata: Mapping[str, Any]
    rank: int | None
    heartbeat: Heartbeat
    started: float = field(default_factory=time.monotonic)

    def write(
        self, pieces: Sequence[TensorBytes], others: Mapping[str, bytes], threads: int, before: Callable[[], None]
    ) -> Files | CommitFailure:
        """Make this rank's files, durable and read back, after what is to come `before`."""

        def written() -> Files:
            self.heartbeat.passing("write", self.step)
            before()
            parent, shared = self.folder.parent, self.rank is not None
            if not parent.is_dir():
                make_folder(parent, shared=shared)
                sync_folder(parent.parent)
            require_space(parent, sum(piece.data.numel() for piece in pieces) + _SPARE, _FILES)
            make_folder(self.folder, shared=shared)
            return write_parts(self.folder, pieces, others, threads, self.rank)

        return self._attempted(written)

    def join(self, parts: Sequence[Mapping[str, Any]]) -> Files | CommitFailure:
        """All ranks' files, from what each has told of its part, in their order."""
        for rank, part in enumerate(parts):
            if failure := part.get("failure"):
                return CommitFailure.told(failure, rank)
        return self._attempted(lambda: _joined(self.folder, parts))

    def publish(
        self, files: Files | CommitFailure, publication: Publication, rotate: Callable[[], tuple[str, ...]]
    ) -> Commit | CommitFailure:
        """The manifest and the rename; then what need not stay is removed by `rotate`."""

        def published() -> Commit:
            assert not isinstance(files, CommitFailure)
            own = write_manifest(self.folder, self.step, files, self.metadata)
            self.heartbeat.passing("publish", self.step)
            publication.publish(self.folder, self.step, self.metadata.get("position", 0))
            total = sum(file.size for file in files.values())
            parts = [file.size for name, file in files.items() if name.startswith(_STATE) and writer_of(name) == 0]
            seconds = time.monotonic() - self.started
            return Commit(name_of(self.step), self.step, total, own, seconds, written=sum(parts))

        result = files if isinstance(files, CommitFailure) else self._attempted(published)
        if isinstance(result, CommitFailure):
            discard(self.folder)
            return result
        self.heartbeat.passing("rotate", self.step)
        removed: tuple[str, ...] = ()
        # The commit is there. What could not be removed is tried again with the next one, which will also tell where
        # the directory is another's by now.
        with suppress(OSError, Failure):
            removed = rotate()
        return replace(result, removed=removed)

    def _attempted(self, work: Callable[[], _T]) -> _T | CommitFailure:
        """What `work` gives, or the end that it has come to."""
        try:
            return work()
        except (OSError, Damaged) as error:
            return CommitFailure(self.step, Exit.STORAGE, f"{name_of(self.step)} cannot be committed: {error}")
        except Failure as failure:
            return CommitFailure.of(self.step, failure)


def _joined(folder: Path, parts: Sequence[Mapping[str, Any]]) -> Files:
    """Raises Damaged where the files do not make up a whole state, OSError where one is not to be seen here."""
    files: Files = {}
    with OpenFolder(folder) as seen:
        for rank, part in enumerate(parts):
            for name, file in part["files"].items():
                if not FILE.fullmatch(name) or writer_of(name) != rank:
                    raise Damaged(f"rank {rank} says that it has written {name!r}")
                _require_seen(seen, folder / name, rank, file["size"])
                files[name] = FileMetadata(**file)
        require_complete(seen, {"files": {name: asdict(file) for name, file in files.items()}})
    return files


def _require_seen(folder: OpenFolder, path: Path, rank: int, size: int) -> None:
    """The files are whole, their rank has read them back; but it may have another disk."""
    try:
        found = folder.size(path.name)
    except FileNotFoundError:
        found = -1
    if found != size:
        raise OSError(errno.ENOENT, f"rank 0 does not see what rank {rank} has written: do they share this disk?", path)
