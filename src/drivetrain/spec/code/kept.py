"""The sources that a run keeps, in a folder of its directory: each file's name is the SHA-256 of its content."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from drivetrain.spec.code.scan import CodeFile
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

FOLDER = "code"
"""Below the run directory."""
MOST = 8 << 20
"""Bytes of sources that an attempt keeps."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def keep(run: Path, files: Mapping[str, CodeFile]) -> list[str]:
    """Keep sources, small ones first; the names of those that there is no room for. Raises what `put` raises."""
    _require_own_folder(run)
    room, left = MOST, []
    for name, file in sorted(files.items(), key=lambda item: (len(item[1].content or b""), item[0])):
        if file.content is None or len(file.content) > room:
            left.append(name)
            continue
        room -= len(file.content)
        if kept(run, file.sha256) is None:
            put(run, file.sha256, file.content)
    return left


def put(run: Path, sha256: str, content: bytes) -> None:
    """Keep a content by its SHA-256.

    Without a wait for the disk: one that a power cut has torn is told from a whole one by its name, and is written
    again by the next attempt. Raises Failure(77) where something else stands in the folder's place.
    """
    _require_own_folder(run)
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private(folder / sha256, content, durable=False)


def _require_own_folder(run: Path) -> None:
    folder = run / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Failure(Exit.SECURITY, f"{folder} is a link or a file", "see who made it, and remove it")


def kept(run: Path, sha256: str) -> bytes | None:
    """The content that is kept by this SHA-256; None where there is none, or where it is damaged."""
    if not is_digest(sha256):  # a ledger may have been changed by hand: no name leaves the directory
        return None
    try:
        content = (run / FOLDER / sha256).read_bytes()
    except OSError:
        return None
    return content if is_of(content, sha256) else None


def all_kept(run: Path) -> list[str]:
    """The SHA-256 of each content that is kept, damaged or not."""
    try:
        return sorted(filter(is_digest, os.listdir(run / FOLDER)))
    except FileNotFoundError:
        return []


def is_digest(name: str) -> bool:
    """Whether a text is a SHA-256 in hex digits."""
    return bool(_SHA256.fullmatch(name))


def is_of(content: bytes, sha256: str) -> bool:
    """Whether a content has this SHA-256."""
    return hashlib.sha256(content).hexdigest() == sha256
