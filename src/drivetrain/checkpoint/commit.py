"""Commits: state that is there whole and verified, or not there.

A commit appears in `checkpoints/` by one rename, after every byte of it is on the disk, and is read back from there
before anything older is removed. The newest commit is the highest one that verifies; there is no pointer file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.tensors import FileFacts, parse_tensors, read_file, write_file, write_tensors
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

FOLDER = "checkpoints"
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-(\d{8,})")
_FILE = re.compile(r"[a-z]+-\d{5}\.(safetensors|json)")


@dataclass(frozen=True)
class StateTree:
    """Everything that decides a later bit: tensors by flat name, and plain values."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Commit:
    """A commit that is on the disk and verified. `bytes` counts all files, `manifest` is the manifest's SHA-256."""

    name: str
    step: int
    bytes: int
    manifest: str


@dataclass(frozen=True)
class Found:
    """The commit to go on from, its state, and the newer ones that were passed over, each with the reason."""

    path: Path
    facts: dict[str, Any]
    state: StateTree
    passed_over: tuple[str, ...]


class Damaged(Exception):  # noqa: N818 - says what a commit is, and is always caught
    """Why a commit does not verify."""


class Commits:
    """The commits of one run, written and read by all its processes together.

    The leader coordinates: it writes the manifest, renames, verifies and removes. Replicated state is the leader's to
    write; the others add what they alone hold, which with replication is nothing.
    """

    def __init__(self, run: Path, group: Group) -> None:
        self._folder = run / FOLDER
        self._group = group

    def save(self, step: int, state: StateTree, facts: Mapping[str, Any], keep: int) -> Commit:
        """Commit `state` as of `step`, keep the newest `keep` commits, and return when it is durable and verified.

        `facts` go into the manifest. Raises Failure(74) where the disk refuses; then the commits before are untouched.
        """
        name = f"step-{step:08d}"
        temporary = self._folder / f".tmp-{name}"
        error, commit = "", None
        if self._group.leader:
            try:
                files = self._write(temporary, state)
                commit = self._publish(temporary, name, step, files, facts)
                self._rotate(keep)
            except OSError as problem:
                error = f"{name} cannot be committed: {problem}"
                shutil.rmtree(temporary, ignore_errors=True)
        said = self._group.broadcast_json({"error": error, "commit": asdict(commit) if commit else None})
        if said["error"]:
            raise Failure(
                Exit.STORAGE, said["error"], "the commit before is whole; free space, then start again", step=step
            )
        return Commit(**said["commit"])

    def latest(self) -> Found | None:
        """The highest commit that verifies, read; None where there are none.

        What earlier attempts left half done is removed first. Raises Failure(86) where commits exist and none verifies.
        """
        if self._group.leader:
            self._clean()
        self._group.barrier()
        reasons = []
        for name in self._names():
            try:
                path = self._folder / name
                facts, state = load(path)
            except Damaged as damage:
                reasons.append(f"{name}: {damage}")
                continue
            self._group.agree("the commit that verifies", [name, facts["sha256"]])
            return Found(path, facts, state, tuple(reasons))
        self._group.agree("the commits", "none")
        if reasons:
            raise Failure(
                Exit.NO_VALID_COMMIT,
                f"none of {len(reasons)} commits in {self._folder} verifies: {'; '.join(reasons)}",
                "restore one from a copy, or start another run by --run",
            )
        return None

    def _names(self) -> list[str]:
        """Names of all commits, newest first."""
        if not self._folder.is_dir():
            return []
        names = [entry.name for entry in self._folder.iterdir() if _NAME.fullmatch(entry.name)]
        return sorted(names, key=_step, reverse=True)

    def _write(self, folder: Path, state: StateTree) -> dict[str, FileFacts]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        rank = f"{self._group.rank:05d}"
        return {
            f"tensors-{rank}.safetensors": write_tensors(folder / f"tensors-{rank}.safetensors", state.tensors),
            f"values-{rank}.json": write_file(folder / f"values-{rank}.json", json.dumps(state.values).encode()),
        }

    def _publish(
        self, temporary: Path, name: str, step: int, files: Mapping[str, FileFacts], facts: Mapping[str, Any]
    ) -> Commit:
        """Manifest, rename, and a look from the disk: after this the commit exists."""
        manifest = {"step": step, "time": time.time(), "files": {n: asdict(f) for n, f in files.items()}, **facts}
        line = json.dumps(manifest, separators=(",", ":")).encode()
        seal = hashlib.sha256(line).hexdigest()
        write_file(temporary / MANIFEST, line + b"\n" + seal.encode() + b"\n")
        _sync(temporary)
        final = self._folder / name
        if final.exists():  # an older attempt's commit of this step that did not verify
            _remove(final)
        os.rename(temporary, final)
        _sync(self._folder)
        try:
            verify(final)
        except Damaged as damage:
            raise OSError(f"it reads back differently: {damage}") from damage
        return Commit(name, step, sum(facts.size for facts in files.values()), seal)

    def _rotate(self, keep: int) -> None:
        """Remove all but the newest `keep` commits; the newest has just been verified."""
        for name in self._names()[keep:]:
            _remove(self._folder / name)

    def _clean(self) -> None:
        """Remove what was never a commit, or is no longer one."""
        if self._folder.is_dir():
            for entry in self._folder.iterdir():
                if entry.name.startswith((".tmp-", ".trash-")):
                    shutil.rmtree(entry, ignore_errors=True)


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a commit whose files all have the size and hash it says; `sha256` is the manifest's own.

    Raises Damaged where they have not, Failure(77) where a file is a link.
    """
    manifest = _manifest(path)
    for name in manifest["files"]:
        _content(path, name, manifest)
    return manifest


def load(path: Path) -> tuple[dict[str, Any], StateTree]:
    """Manifest and state of a commit; the bytes that were verified are the ones that are used."""
    manifest = _manifest(path)
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name in manifest["files"]:
        content = _content(path, name, manifest)
        try:
            if name.endswith(".safetensors"):
                tensors.update(parse_tensors(content))
            else:
                values.update(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{name}: {error}") from error
    return manifest, StateTree(tensors, values)


def _manifest(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        raise Failure(Exit.SECURITY, f"{path} is a link", "a commit is a folder; remove the link")
    try:
        line, seal, end = bytes(read_file(path / MANIFEST)).split(b"\n")
    except FileNotFoundError:
        raise Damaged("no manifest") from None
    except ValueError:
        raise Damaged("the manifest is torn") from None
    if end or hashlib.sha256(line).hexdigest().encode() != seal:
        raise Damaged("the manifest does not have its own hash")
    manifest = json.loads(line)
    if f"step-{manifest['step']:08d}" != path.name:
        raise Damaged(f"the manifest is of step {manifest['step']}")
    strange = [name for name in manifest["files"] if not _FILE.fullmatch(name)]
    if strange:
        raise Failure(Exit.SECURITY, f"{path}: the manifest names {strange[0]!r}", "no commit of ours has such a file")
    return manifest | {"sha256": seal.decode()}


def _content(path: Path, name: str, manifest: Mapping[str, Any]) -> bytearray:
    """A file's bytes, of the size and hash that the manifest says."""
    expected = manifest["files"][name]
    try:
        content = read_file(path / name)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    except OSError as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if len(content) != expected["size"]:
        raise Damaged(f"{name} has {len(content)} bytes instead of {expected['size']}")
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise Damaged(f"{name} does not have its SHA-256")
    return content


def _remove(path: Path) -> None:
    """Take a commit away: renamed first, so that a half-removed one is never taken for one."""
    trash = path.with_name(f".trash-{path.name}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    _sync(path.parent)
    shutil.rmtree(trash, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match.group(1))
