"""The code that travels with a job: one commit of a repository, or its working tree, as a tar file."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import own_name, write_private

ARCHIVE = "code.tar"
_TIMEOUT = 60  # seconds


def root_of(folder: Path) -> Path:
    """The repository that a folder is in; Failure(66) where there is none."""
    return Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))


def pack(root: Path, commit: str | None) -> bytes:
    """A tar file of one commit, or for None of the working tree: what is tracked, and what is new and not ignored."""
    if commit is not None:
        return _git(root, "archive", "--format=tar", commit)
    # NUL between names: a name may hold a line break.
    names = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in sorted(filter(None, names)):
            path = root / os.fsdecode(name)
            # What was removed and not yet committed is left out.
            if path.is_symlink() or path.is_file():
                tar.add(path, os.fsdecode(name), recursive=False)
    return content.getvalue()


def leave(root: Path, commit: str | None, folder: Path) -> None:
    """Put the archive into a job's folder."""
    write_private(folder / ARCHIVE, pack(root, commit))


@contextmanager
def exported(root: Path, commit: str | None) -> Iterator[Path]:
    """A folder with what `pack` packs, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(pack(root, commit))) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


def unpack(archive: Path) -> Path:
    """The folder with an archive's content, beside it; several machines may do so at once."""
    final = archive.with_suffix("")
    if not final.is_dir():
        mine = archive.with_name(f".{final.name}-{own_name()}")
        with tarfile.open(archive) as tar:
            tar.extractall(mine, filter="data")
        # A rename is atomic: nobody imports from a folder that is half unpacked. It fails where another machine was
        # first, whose folder has the same content.
        try:
            mine.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    return final


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT).stdout
    except FileNotFoundError as error:
        raise Failure(Exit.INPUT_MISSING, "git is not installed", "submit with code: {kind: as_it_stands}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        hint = "submit from inside the repository, or with code: {kind: as_it_stands}"
        raise Failure(Exit.INPUT_MISSING, f"git {' '.join(arguments)}: {said}", hint) from error
    except subprocess.TimeoutExpired as error:
        raise Failure(Exit.PEER_UNAVAILABLE, f"git: no answer in {_TIMEOUT} s", "try again") from error
