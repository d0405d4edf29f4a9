"""A run directory is removed: never one that trains, and whole."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit, Failure

TRASH = ".trash-"
"""What the name of a removed run directory begins with while its files go; the board does not list it."""


def trash(run: Path, confirm: str) -> Path:
    """Take a run directory out of sight, by one rename, and return where it lies; `confirm` is its name.

    The lease is taken first, so that nobody trains in it or starts to. Raises Failure: 64 for another name, 77 for a
    link, 85 where somebody trains, 73 where it cannot be renamed.
    """
    if confirm != run.name:
        raise Failure(Exit.BAD_COMMAND, "this is not the run's name", f"type {run.name} to remove it")
    if run.is_symlink() or not run.is_dir():
        raise Failure(Exit.SECURITY, f"{run} is no folder of its own", "remove what it leads to by hand")
    lease = Lease.take(run, commits=list)
    try:
        place = run.with_name(f"{TRASH}{run.name}-{secrets.token_hex(4)}")
        os.rename(run, place)
    except OSError as error:
        lease.release()
        raise Failure(Exit.CANNOT_CREATE, f"{run} cannot be moved away: {error}", "see whose it is") from error
    lease.release()
    return place


def empty(place: Path) -> None:
    """Remove what lies there; what cannot be removed stays in the trash."""
    shutil.rmtree(place, ignore_errors=True)
