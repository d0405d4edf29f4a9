"""The names of commits and their files, and the manifest that has the hash of everything. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure

FOLDER = "checkpoints"
MANIFEST = "MANIFEST.json"
NAME = re.compile(r"step-([0-9]{8,12})")
FILE = re.compile(r"tensors-(?:[0-9]{5}-)?[0-9]{5}\.safetensors|(?:values|boxes)-[0-9]{5}\.json")
"""`tensors-RANK-NUMBER` and `boxes-RANK` are of a commit that several ranks wrote, `tensors-NUMBER` of one that wrote
all."""
FORMAT = 2
"""What manifests say that are written today; one without a format is of the first."""
LONGEST = 64 << 20
"""Bytes of a manifest that is read."""


class Damaged(Exception):  # noqa: N818 - says what a commit is, and is always caught
    """Why a commit does not verify."""


def name_of(step: int) -> str:
    """A commit's folder."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a commit's folder; None where the name is not one."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    return int(match.group(1))


def writer_of(file: str) -> int:
    """The rank that writes a file of this name, which matches `FILE`."""
    kind, *numbers = file.partition(".")[0].split("-")
    if kind == "tensors" and len(numbers) == 1:
        return 0
    return int(numbers[0])


def entries(folder: Path) -> list[str]:
    """The names in a folder, in any order; none where there is no folder."""
    if not folder.is_dir():
        return []
    return os.listdir(folder)


def parse_manifest(content: bytes, where: str) -> dict[str, Any]:
    """A manifest's fields, with its own hash as `sha256`. Raises Damaged where it is torn, changed or no manifest, and
    Failure(76) where it is of a newer format; `where` names the commit.

    Its first line is JSON, its second the SHA-256 of the first. Names of files are not judged here.
    """
    try:
        line, own, end = content.split(b"\n")
    except ValueError:
        raise Damaged("the manifest is torn") from None
    if end:
        raise Damaged("the manifest goes on after its hash")
    if hashlib.sha256(line).hexdigest().encode() != own:
        raise Damaged("the manifest does not have its own hash")
    try:
        manifest = json.loads(line)
    except (ValueError, RecursionError):
        raise Damaged("the manifest has another form") from None
    # First: all else may be otherwise in another format.
    if isinstance(manifest, dict):
        _require_known(manifest.get("format", 1), where)
    if not _sensible(manifest):
        raise Damaged("the manifest has another form")
    return manifest | {"sha256": own.decode()}


def _require_known(version: Any, where: str) -> None:
    """It is whole, so it is never taken for damage, and no older commit is gone on from in its place."""
    if type(version) is not int or version < 1:
        raise Damaged(f"the manifest has the format {version!r}")
    if version > FORMAT:
        cause = f"{where} is a commit of format {version}, and this version of drivetrain knows formats up to {FORMAT}"
        raise Failure(Exit.INCOMPATIBLE, cause, "use the version that wrote it, or a newer one")


def _sensible(manifest: Any) -> bool:
    """Whether what a manifest must have is there, and of its type."""
    return (
        isinstance(manifest, dict)
        and type(manifest.get("step")) is int
        and isinstance(manifest.get("epoch", 0), int)
        and isinstance(manifest.get("position", 0), int)
        and isinstance(files := manifest.get("files"), dict)
        and len(files) > 0
        and all(_metadata(metadata) for metadata in files.values())
    )


def _metadata(metadata: Any) -> bool:
    if not isinstance(metadata, dict) or metadata.keys() != {"size", "sha256"}:
        return False
    return type(metadata["size"]) is int and metadata["size"] >= 0 and isinstance(metadata["sha256"], str)
