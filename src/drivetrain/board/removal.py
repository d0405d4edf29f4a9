"""A run directory is removed: never one that trains, and whole."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from pathlib import Path

from drivetrain.checkpoint.manifest import FOLDER, entries, step_of
from drivetrain.runtime.lease import Lease, Takeover, holder_sign, require_free
from drivetrain.spec.exits import Exit, Failure

TRASH = ".trash-"
"""What the name of a removed run directory begins with while its files go; the board does not list it."""
_SHOWN = 40  # characters of the run's own name in the trash: no name grows beyond what a file system takes


def trash(run: Path, confirm: str) -> Path:
    """Take a run directory out of sight, by one rename, and return where it lies; `confirm` is its name.

    The lease is taken first, so that nobody trains in it or starts to; that waits up to `PATIENCE` seconds for a holder
    that gives no sign. Raises Failure: 64 for another name, 77 where a link leads there, 85 where somebody trains, or
    is stopped, 73 where it cannot be renamed.
    """
    if confirm != run.name:
        raise Failure(Exit.BAD_COMMAND, "this is not the run's name", f"type {run.name} to remove it")
    if os.path.realpath(run) != str(run) or not run.is_dir():
        raise Failure(Exit.SECURITY, f"{run} is no folder of its own", "remove what it leads to by hand")
    place = run.with_name(f"{TRASH}{run.name[:_SHOWN]}-{secrets.token_hex(4)}")
    try:
        lease = _lease(run)
        try:
            os.rename(run, place)
        finally:
            lease.release()
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{run} cannot be moved away: {error}", "see whose it is") from error
    return place


def _lease(run: Path) -> Lease:
    """The directory is ours. A holder that is only stopped would wake up without it, so it is left its own."""
    silent, sign = require_free(run), holder_sign(run)
    if silent is not None and sign is not None and _is_stopped(sign.holder):
        cause = f"{run} belongs to a run that is stopped: {sign.holder}"
        raise Failure(Exit.OWNED_ELSEWHERE, cause, "let it go on, or end it, first")
    return Lease.take(run, lambda: _commits(run), silent)


def _is_stopped(holder: Takeover) -> bool:
    """Whether its process is here. The number may be another process's by now: then somebody has to look, and nothing
    is lost."""
    return holder.host == socket.gethostname() and os.path.exists(f"/proc/{holder.pid}")


def _commits(run: Path) -> list[str]:
    """What a takeover has to list: what it leaves out counts no more, and the rename may still fail."""
    return [name for name in entries(run / FOLDER) if step_of(name) is not None]


def empty(place: Path) -> None:
    """Remove what lies there; what cannot be removed stays in the trash."""
    shutil.rmtree(place, ignore_errors=True)
