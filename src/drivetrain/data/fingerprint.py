"""Content digests of files, remembered while a file is the same inode with the same size and time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from drivetrain.spec.files import write_json


def remembered(path: Path, cache: Path, question: str, compute: Callable[[], str]) -> str:
    """`compute()`, or what it gave for this file and question before, if the file has not changed since."""
    status = os.stat(path)
    key = f"{path.resolve()}|{question}"
    identity = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    known = _load(cache)
    if known.get(key, {}).get("identity") == identity:
        return known[key]["digest"]
    digest = compute()
    if cache.parent.is_dir():
        write_json(cache, _load(cache) | {key: {"identity": identity, "digest": digest}})
    return digest


def combined(parts: list[str]) -> str:
    """One digest of several, in their order. They may hold file names that are no Unicode."""
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def _load(cache: Path) -> dict:
    try:
        return json.loads(cache.read_text())
    except (FileNotFoundError, ValueError):
        return {}
