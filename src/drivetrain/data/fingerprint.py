"""What a file holds and whether it is still the same: digests, and the inode, size and time that stand for them."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from drivetrain.data.remote import identity_of, is_url, open_remote
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json

BLOCK = 1 << 22
"""Bytes that are read at a time where a file is gone through."""
_COLUMNS = 1 << 12
"""Words side by side in a checksum's table: their sums stay in the cache."""
LOOK = 0.2
"""Seconds between two looks at a mapped file."""


@dataclass(frozen=True)
class FileStamp:
    """A file as it was when a source was opened: of this machine, or behind a URL."""

    path: str
    identity: tuple[int | str, ...]

    @classmethod
    def now(cls, path: str | Path) -> FileStamp:
        """As it is now. Raises Failure(66) where it is not there."""
        return cls(str(path), _identity(str(path)))

    def check(self) -> None:
        """Raises Failure(65) where the file was written to, or another one has its name now; 66 where none has."""
        self._compare(_identity(self.path))

    def open(self) -> BinaryIO:
        """The very same file, opened for reading without a buffer. Raises as `check` does."""
        if is_url(self.path):
            self.check()
            return open_remote(self.path)
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - for the caller to close
        except OSError as error:
            raise _missing(self.path, error) from error
        try:
            # Of the open file, not of its name: between a look and the opening another one could take the name.
            self._compare(_of_status(os.fstat(file.fileno())))
        except Failure:
            file.close()
            raise
        return file

    def _compare(self, identity: tuple[int | str, ...]) -> None:
        if identity != self.identity:
            raise Failure(
                Exit.BAD_DATA,
                f"{self.path} was changed or replaced while the run reads it",
                "restore it, or give changed data a name of its own",
                file=self.path,
            )


class FileWatcher:
    """Files that are mapped into memory, looked at again every so often: each look takes longer than a small read."""

    def __init__(self, files: Sequence[FileStamp]) -> None:
        self._files = files
        self._next = 0.0

    def check(self) -> None:
        """Raises Failure(65) where one was changed or replaced, at the latest `LOOK` seconds after it was."""
        now = time.monotonic()
        if now < self._next:
            return
        for file in self._files:
            file.check()
        self._next = now + LOOK


def remembered(path: Path, cache: Path, question: str, compute: Callable[[], str]) -> str:
    """`compute()`, or what it gave for this file and question before, if the file has not changed since."""
    return remembered_each([path], cache, question, lambda _: compute())[0]


def remembered_each(
    paths: Sequence[str | Path], cache: Path, question: str, compute: Callable[[str], str]
) -> list[str]:
    """`compute(path)` for each file, or what it gave for this question before, if the file has not changed since."""
    known = _load(cache)
    found, fresh = [], {}
    for path in map(str, paths):
        # Resolved, so that a run that is started from another folder finds the answers.
        place = path if is_url(path) else Path(path).resolve()
        key, identity = f"{place}|{question}", list(_identity(path))
        if known.get(key, {}).get("identity") == identity:
            found.append(known[key]["digest"])
            continue
        found.append(compute(path))
        fresh[key] = {"identity": identity, "digest": found[-1]}
    # Over what is there now, since other processes of the run keep their answers in the same file.
    if fresh and cache.parent.is_dir():
        write_json(cache, _load(cache) | fresh)
    return found


def checksum(data: bytes) -> int:
    """A checksum of 32 bits at the speed of memory: the CRC of the sums over rows and over columns of a table of words,
    and of what lies behind it."""
    words = np.frombuffer(data, "<u8", len(data) // 8)
    table = words[: len(words) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS)
    # A flipped bit changes a sum of either kind. Only the sums go through the CRC, which is slower than memory.
    sums = np.concatenate([table.sum(0), table.sum(1)]) if len(table) else words[:0]
    return zlib.crc32(memoryview(data)[table.nbytes :], zlib.crc32(sums.tobytes()))


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def opened(path: str | Path) -> BinaryIO:
    """A file of this machine or behind a URL, to be read."""
    return open_remote(str(path)) if is_url(str(path)) else open(path, "rb")


def combined(parts: list[str]) -> str:
    """One digest of several, in their order. They may hold file names that are no Unicode."""
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def _identity(path: str) -> tuple[int | str, ...]:
    if is_url(path):
        return identity_of(path)
    try:
        return _of_status(os.stat(path))
    except OSError as error:
        raise _missing(path, error) from error


def _of_status(status: os.stat_result) -> tuple[int, ...]:
    # The inode too: `mv new old` keeps size and, with cp -p, also the time.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _missing(path: str, error: OSError) -> Failure:
    return Failure(Exit.INPUT_MISSING, f"{path}: {error.strerror}", "restore the file", file=path)


def _load(cache: Path) -> dict:
    try:
        return json.loads(cache.read_text())
    except (FileNotFoundError, ValueError):
        return {}
