"""Text files as a stream of bytes."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from drivetrain.data.fingerprint import combined
from drivetrain.data.recipe import Text
from drivetrain.data.windows import Windows
from drivetrain.spec.exits import Exit, Failure

STDLIB = "python-stdlib"
_NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_LARGEST = 4 << 30  # bytes that are held in memory; more belongs into a token file
_SEPARATOR = b"\0"  # after each file; no text file holds it


def open_text(settings: Text, cache: Path) -> Windows:
    """Windows over the files' bytes, in order of their relative paths, held in memory.

    Raises Failure(66) where the path or a file in it cannot be read, 65 where no file fits, one is not a regular file,
    or they are too short or too large.
    """
    windows, found = _windows(settings)
    if len(windows) == 0:
        cause = f"{settings.path}: {found}: no sample of {settings.context} + 1"
        raise Failure(Exit.BAD_DATA, cause, "look at include, part and holdout, or give more text")
    return windows


def _windows(settings: Text) -> tuple[Windows, str]:
    """The windows, and how much text there is in words."""
    assert settings.context is not None, "spec derives the context"
    root, files = _files(settings)
    chosen = [path for path in files if _wanted(path, root, settings)]
    size = sum(_size(path) for path in chosen)
    if size > _LARGEST:
        raise Failure(
            Exit.BAD_DATA,
            f"{settings.path}: {size / 2**30:.1f} GiB of text; more than {_LARGEST >> 30} GiB are not held in memory",
            "write it into a token file and use kind: tokens",
        )
    try:
        contents = [path.read_bytes() for path in chosen]
    except OSError as error:
        raise _unreadable(error) from error
    marks: list[str] = []
    for path, content in zip(chosen, contents, strict=True):
        marks.append(f"{path.relative_to(root)} {hashlib.sha256(content).hexdigest()}")
    digest = combined(marks)
    text = np.frombuffer(_SEPARATOR.join([*contents, b""]), dtype=np.uint8)
    windows = Windows(text, settings.context, digest, again=(_reopen, (settings, digest)))
    return windows, f"{len(chosen)} of {len(files)} files, {size} bytes"


def _reopen(settings: Text, digest: str) -> Windows:
    """The same windows in another process; Failure(65) where the files are not the same any more."""
    windows, _ = _windows(settings)
    if windows.fingerprint != digest:
        cause = f"{settings.path} was changed while the run reads it"
        raise Failure(Exit.BAD_DATA, cause, "restore it, or give changed data a name of its own", file=settings.path)
    return windows


def _files(settings: Text) -> tuple[Path, list[Path]]:
    """The root, and all files under it that the patterns name, by relative path."""
    stdlib = settings.path == STDLIB
    root = Path(settings.path)
    if stdlib:
        root = Path(sysconfig.get_paths()["stdlib"])
    if root.is_file():
        return root.parent, [root]
    if not root.is_dir():
        raise Failure(Exit.INPUT_MISSING, f"no text at {root}", "give a file, a folder, or python-stdlib as path")
    patterns = ("*.py",) if stdlib else settings.include
    found: list[Path] = []
    for folder, below, names in os.walk(root, onerror=_refuse):
        if stdlib:
            below[:] = [name for name in below if name not in _NOT_STDLIB]
        for name in names:
            if any(fnmatch(name, pattern) for pattern in patterns):
                found.append(Path(folder, name))
    return root, sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _size(path: Path) -> int:
    """Bytes of a regular file; a pipe or a device would be read for ever."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(error) from error
    if not stat.S_ISREG(status.st_mode):
        raise Failure(Exit.BAD_DATA, f"{path} is not a regular file", "remove it, or narrow include", file=str(path))
    return status.st_size


def _unreadable(error: OSError) -> Failure:
    return Failure(
        Exit.INPUT_MISSING, f"{error.filename}: {error.strerror}", "mend or remove it", file=str(error.filename)
    )


def _refuse(error: OSError) -> None:
    """For `os.walk`, which passes over a folder that it cannot list: that would be a shorter data set."""
    raise _unreadable(error) from error


def _wanted(path: Path, root: Path, settings: Text) -> bool:
    """Whether a file belongs to the part: its relative path, hashed, decides for ever."""
    if settings.part == "all":
        return True
    word = hashlib.sha256(path.relative_to(root).as_posix().encode(errors="surrogateescape")).digest()[:8]
    held_out = int.from_bytes(word, "big") < settings.holdout * 2**64
    return held_out == (settings.part == "validation")
