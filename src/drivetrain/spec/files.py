"""Small files written so that nobody else reads them and nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_TICK = 0.1  # seconds


def own_name() -> str:
    """A name that no other process has that sees the same files: containers number their processes alike."""
    return f"{os.uname().nodename}-{os.getpid()}"


def write_private(path: Path, data: bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Replace a file by one with this content, whole or in parts, mode 0600, in one step (a temporary neighbour, then a
    rename).

    Where it is not `durable`, nothing waits for the disk: whoever reads the file must see whether it is whole.
    """
    temporary = path.with_name(f".{path.name}.{own_name()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        if durable:
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


def within(seconds: float, action: Callable[[], T], hurry: Callable[[], bool] = lambda: False) -> T:
    """What an action comes to that touches a disk, on a thread of its own: a disk may stall for ever.

    Raises what the action raises, and TimeoutError where it does not end in so many seconds, or by the time that
    `hurry` says so: the thread is then left to itself.
    """
    result: list[T] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            result.append(action())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=work, name="within", daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end and not hurry():
        thread.join(min(_TICK, seconds))
    if error:
        raise error[0]
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result[0]
