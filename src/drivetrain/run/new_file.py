"""A new file for a command's result: written as it comes, and there once it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from drivetrain.spec.code.blame import own_place
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import own_name


def require_new(to: Path, formats: Sequence[str]) -> None:
    """Raises Failure: 64 where the file's name ends in none of these, 73 where it is there already or its folder is
    not."""
    if to.suffix not in formats:
        raise Failure(Exit.BAD_COMMAND, f"--to {to} is of no kind that is written", f"it ends in {', '.join(formats)}")
    if to.exists() or not to.parent.is_dir():
        why = "is there already" if to.exists() else "cannot be made: its folder is not there"
        raise Failure(Exit.CANNOT_CREATE, f"{to} {why}", "name another file")


@contextmanager
def new_file(to: Path) -> Iterator[IO[str]]:
    """The file to write to, mode 0600. It has its name once this is left, and not at all where something raises.

    Raises Failure(73) where it cannot be written.
    """
    temporary = to.with_name(f".{to.name}.{own_name()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", newline="") as file:
            yield file
        os.rename(temporary, to)
    except OSError as error:
        if own_place(error) is not None:  # of the code that makes what is written: it is told as that
            raise
        raise Failure(Exit.CANNOT_CREATE, f"{to} cannot be written: {error}", "name another file") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
