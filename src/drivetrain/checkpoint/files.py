"""Every touch of the disk that a commit makes: files created once, written, made durable, renamed, removed, read."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.checkpoint.memory import room, same
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder

REMOVED = "REMOVED"
"""A file in a folder that is being removed."""
CHUNK = 512 << 10
"""Bytes that are hashed and written, or read and hashed, while they are in the processor's cache."""
_KEPT = 64
"""Chunks of a mapped file whose pages stay in memory while it is hashed."""


@dataclass(frozen=True)
class FileMetadata:
    """What a manifest says of a file."""

    size: int
    sha256: str


def create(path: Path) -> int:
    """Open a new file for writing, 0600; it must not be there yet, not even as a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def written(path: Path) -> Iterator[Callable[[Any], None]]:
    """A new file, which is durable at the end; what is given writes all of a bytes-like object."""
    descriptor = create(path)

    def write(data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:  # the system may take less at a time
            view = view[os.write(descriptor, view) :]

    try:
        yield write
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """A new file with this content, durable."""
    with written(path) as write:
        write(data)


def make_folder(path: Path, *, shared: bool = False) -> None:
    """A new folder, 0700; where it is `shared`, another process may just have made it."""
    path.mkdir(mode=0o700, exist_ok=shared)


def rename(old: Path, new: Path) -> None:
    """Rename within one folder, durably."""
    os.rename(old, new)
    sync_folder(new.parent)


def remove(path: Path, require: Callable[[OpenFolder], None] = lambda folder: None) -> None:
    """Remove a folder of files. It is marked first, so that a half-removed one is never taken for what it was.

    All of it is done through one descriptor: whoever stalls on the way, and wakes up when another folder has come into
    this one's place, takes nothing from that one. `require` is called once the folder is open, and may raise.
    """
    with OpenFolder(path) as folder:
        require(folder)
        folder.empty()
    with suppress(OSError):  # not empty: it is another folder by now
        os.rmdir(path)
    sync_folder(path.parent)


def is_removed(path: Path) -> bool:
    """Whether somebody has begun to remove this folder."""
    return (path / REMOVED).exists()


def discard(path: Path) -> None:
    """Remove a folder whose name already says that it is nothing; what cannot be removed stays nothing."""
    with suppress(OSError):  # some come through in spite of ignore_errors
        shutil.rmtree(path, ignore_errors=True)


def require_space(folder: Path, size: int, files: int) -> None:
    """Raises OSError(ENOSPC) where the file system has no room for this many bytes and files."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < size:
        left = free.f_bavail * free.f_frsize
        raise OSError(errno.ENOSPC, f"{size / 1e6:.1f} MB are needed, {left / 1e6:.1f} MB are free", str(folder))
    if free.f_files and free.f_favail < files:
        raise OSError(errno.ENOSPC, f"{files} files are needed, {free.f_favail} can be made", str(folder))


class OpenFolder:
    """A folder that is open for reading. Its files are read through it, so that nobody can exchange it meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises Failure(77) where the path is a link, FileNotFoundError where there is no folder."""
        self._path = path
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags)
        except NotADirectoryError as error:
            if path.is_symlink():
                raise _link(path) from error
            raise FileNotFoundError(errno.ENOENT, "no folder", str(path)) from error

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def empty(self) -> None:
        """Remove all files, after a mark that says so and is durable before the first one goes."""
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(REMOVED, flags, 0o600, dir_fd=self._descriptor))
        os.fsync(self._descriptor)
        for _, folders, files, within in os.fwalk(".", topdown=False, dir_fd=self._descriptor):
            for name in files:
                if name != REMOVED:
                    os.unlink(name, dir_fd=within)
            for name in folders:  # none of ours, but a person may have left one
                os.rmdir(name, dir_fd=within)
        os.fsync(self._descriptor)
        os.unlink(REMOVED, dir_fd=self._descriptor)

    def size(self, name: str) -> int:
        """A file's size; Failure(77) where it is a link."""
        status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise _link(self._path / name)
        return status.st_size

    def read(self, name: str) -> memoryview:
        """A file's bytes."""
        return read_file(self._path / name, self._descriptor)

    def read_hashed(self, name: str) -> tuple[memoryview, str]:
        """A file's bytes, and their SHA-256."""
        digest = hashlib.sha256()
        return read_file(self._path / name, self._descriptor, digest.update), digest.hexdigest()

    def beginning(self, name: str, size: int) -> bytes:
        """At most so many bytes of a file, from its first on."""
        with _opened(self._path / name, self._descriptor) as file:
            return os.pread(file.fileno(), size, 0)

    def metadata(self, name: str) -> FileMetadata:
        """A file's size and hash, without keeping its bytes."""
        with _opened(self._path / name, self._descriptor) as file:
            digest, size, view = hashlib.sha256(), 0, memoryview(bytearray(CHUNK))
            while count := file.readinto(view):
                digest.update(view[:count])
                size += count
        return FileMetadata(size, digest.hexdigest())

    def read_back(self, name: str, content: Iterable[np.ndarray]) -> FileMetadata:
        """Size and hash of what the disk has of a durable file, which must be this content (uint8 [n], one after the
        other); OSError(EIO) where it is not.

        The bytes that are hashed are the disk's, and each is compared with the memory it came from: so one hash says
        what both have.
        """
        digest, size, chunk = hashlib.sha256(), 0, np.empty(CHUNK, np.uint8)
        with _opened(self._path / name, self._descriptor) as file:
            # The kernel's copy is dropped first: it would tell what was written, not what the disk has.
            with suppress(OSError, AttributeError):  # a file system that is memory, a system that has it not
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for expected in chunks(content):
                found = chunk[: len(expected)]
                count = _filled(file, found)
                digest.update(found.data)
                # Compared after the hash: what was hashed must not have changed before it either.
                if count != len(expected) or not same(found, expected):
                    raise OSError(errno.EIO, "it reads back differently", str(self._path / name))
                size += len(expected)
            if file.read(1):
                raise OSError(errno.EIO, "it reads back longer than it was written", str(self._path / name))
        return FileMetadata(size, digest.hexdigest())


def chunks(content: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Each of several arrays (uint8 [n]) in pieces of at most `CHUNK`."""
    for array in content:
        for at in range(0, len(array), CHUNK):
            yield array[at : at + CHUNK]


def read_file(path: Path, within: int | None = None, seen: Callable[[Any], None] | None = None) -> memoryview:
    """The bytes of a regular file; Failure(77) for a link or anything else. `within`: a descriptor of its folder;
    `seen` is given the bytes as they come, while they are in the processor's cache.

    It is opened once: what is hashed later is what was read.
    """
    with _opened(path, within) as file:
        view, at = room(os.fstat(file.fileno()).st_size), 0
        turn = CHUNK if seen else len(view)
        while at < len(view) and (count := file.readinto(view[at : at + turn])):
            if seen:
                seen(view[at : at + count])
            at += count
        return view[:at]


class MappedFile:
    """The bytes of a regular file, as `data`, and their SHA-256. They are pages of the file: processes of a machine
    share them, and what is not looked at again takes no memory."""

    def __init__(self, path: Path) -> None:
        """Raises Failure(77) for a link or anything else than a file, ValueError for an empty one."""
        self._path = path
        with _opened(path, None) as file:
            self._stamp = _stamp(os.fstat(file.fileno()))
            # Private: torch wants memory that can be written, and nothing is.
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.data = memoryview(self._pages)
        digest = hashlib.sha256()
        for at in range(0, len(self.data), CHUNK):
            digest.update(self.data[at : at + CHUNK])
            if at % (_KEPT * CHUNK) == 0:
                self.forget()
        self.sha256 = digest.hexdigest()

    def forget(self) -> None:
        """Give the pages back to the system: what is looked at again is read again."""
        forget(self._pages)

    def require_unchanged(self) -> None:
        """Raises Failure(65) where the file was written since it was hashed: what was read may be other bytes."""
        if _stamp(os.stat(self._path)) != self._stamp:
            cause = f"{self._path} was changed while it was read"
            raise Failure(Exit.BAD_DATA, cause, "start again, and leave it as it is", file=str(self._path))


def forget(pages: mmap.mmap) -> None:
    """Give pages of a file back to the system, which reads them again when they are looked at."""
    with suppress(AttributeError):  # a system that has no such call does so by itself
        pages.madvise(mmap.MADV_DONTNEED)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _filled(file: FileIO, array: np.ndarray) -> int:
    """How many bytes of a file were read to an array: as many as it takes, or all that there were."""
    view, at = array.data, 0
    while at < len(view) and (count := file.readinto(view[at:])):
        at += count
    return at


def _opened(path: Path, within: int | None) -> FileIO:
    """A regular file, open for reading."""
    # Without O_NONBLOCK a pipe in the file's place would hold up its opening for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path if within is None else path.name, flags, dir_fd=within)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from error
        raise
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Failure(Exit.SECURITY, f"{path} is no regular file", "remove it", file=str(path))
    return file


def _link(path: Path) -> Failure:
    return Failure(Exit.SECURITY, f"{path} is a link", "put the thing itself there", file=str(path))
