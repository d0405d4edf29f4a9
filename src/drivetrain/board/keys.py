"""What tells the board's own pages from everybody else."""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_LENGTH = 32  # bytes of a secret
_MOST = 4096  # bytes of the file


@dataclass(frozen=True)
class Keys:
    """`token` is in the first address, `session` in the cookie. `key` is in a header of what changes something: a
    cookie goes to every other port of the same host too, but only pages of this very port have the key."""

    token: str
    session: str
    key: str


def keys_of(folder: Path) -> Keys:
    """The keys of this user's boards. Session and key are kept (0600), so that pages know a board that was started
    again; the token is new.

    Raises Failure: 77 where the file is not this user's own, or open to others; 73 where it cannot be made.
    """
    path = folder / "keys.json"
    if not path.is_symlink() and not path.exists():
        made = {"session": secrets.token_urlsafe(_LENGTH), "key": secrets.token_urlsafe(_LENGTH)}
        try:
            write_private(path, json.dumps(made).encode())
        except OSError as error:
            raise Failure(Exit.CANNOT_CREATE, f"{path} cannot be made: {error}", "set XDG_STATE_HOME") from error
    # Read also where it was just made: of two boards that start at once, both take what was written last.
    told = _read(path)
    return Keys(secrets.token_urlsafe(_LENGTH), told["session"], told["key"])


def _read(path: Path) -> dict[str, str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            own = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077
            told = json.loads(file.read(_MOST)) if own else {}
        if not all(isinstance(told[name], str) and len(told[name]) >= _LENGTH for name in ("session", "key")):
            raise ValueError("too short")
    except (OSError, ValueError, KeyError, TypeError) as error:
        cause = f"{path} is not a file of this user's alone with the board's keys"
        raise Failure(Exit.SECURITY, cause, "remove it: the next start makes it anew") from error
    return told
