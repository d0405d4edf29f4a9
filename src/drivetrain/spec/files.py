"""Small files written so that nobody else reads them and nobody ever sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def own_name() -> str:
    """A name that no other process has that sees the same files: containers number their processes alike."""
    return f"{os.uname().nodename}-{os.getpid()}"


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one with this content, mode 0600, in one step (a temporary neighbour, then a rename)."""
    temporary = path.with_name(f".{path.name}.{own_name()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        # Before the rename: else a power cut could leave the name with none of the content.
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON by `write_private`."""
    write_private(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def sync_folder(path: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
