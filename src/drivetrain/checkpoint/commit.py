"""One commit on the disk: a folder of tensors and values under a manifest that has the hash of everything.

It appears by one rename after every byte of it is on the disk. Whoever reads it checks every byte first, and uses the
bytes that were checked.
"""

from __future__ import annotations

import errno
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.checkpoint.files import FileMetadata, OpenFolder, write_file
from drivetrain.checkpoint.manifest import FILE, LONGEST, MANIFEST, Damaged, name_of, parse_manifest
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.checkpoint.tensors import parse_tensors, write_tensors
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import sync_folder

PART = 64 << 20
"""Bytes of tensors from which another file is begun: files are written, hashed and read beside each other."""
_READERS = 2  # threads that read a commit's files


@dataclass(frozen=True)
class StateTree:
    """Everything that decides a later bit: tensors by flat name, and plain values."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


def write_parts(
    folder: Path, pieces: Sequence[TensorBytes], values: Mapping[str, Any], threads: int
) -> dict[str, FileMetadata]:
    """Write a commit's files into a new folder, and read each one back from the disk; what a manifest says of them.

    Raises OSError where the disk refuses or gives back other bytes, Failure(83) where the memory has changed under way.
    """
    parts = {f"tensors-{n:05d}.safetensors": part for n, part in enumerate(_parts(pieces))}
    with OpenFolder(folder) as files:

        def written(name: str, metadata: FileMetadata) -> FileMetadata:
            # Before there is a manifest: a commit that does not read back never gets its name.
            if files.metadata(name, written=True) != metadata:
                raise OSError(errno.EIO, "it reads back differently", str(folder / name))
            return metadata

        with ThreadPoolExecutor(max(1, min(threads, len(parts))), "write") as pool:
            made = pool.map(lambda name: written(name, write_tensors(folder / name, parts[name])), parts)
            metadata = dict(zip(parts, made, strict=True))
        name = "values-00000.json"
        metadata[name] = written(name, write_file(folder / name, json.dumps(values).encode()))
    return metadata


def write_manifest(folder: Path, step: int, files: Mapping[str, FileMetadata], metadata: Mapping[str, Any]) -> str:
    """Write the manifest, which makes the folder whole, and make all durable; returns the manifest's SHA-256."""
    parts = {name: asdict(file) for name, file in files.items()}
    manifest = {"step": step, "time": time.time(), "files": parts, **metadata}
    line = json.dumps(manifest, separators=(",", ":")).encode()
    own = hashlib.sha256(line).hexdigest()
    write_file(folder / MANIFEST, line + b"\n" + own.encode() + b"\n")
    sync_folder(folder)
    return own


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a commit whose files all have the size and hash it says; `sha256` is the manifest's own.

    Raises Damaged where they have not, Failure(77) where a file is a link.
    """
    with _opened(path) as folder:
        manifest = manifest_in(folder, path)
        _each(manifest["files"], lambda name: _require_whole(folder, name, manifest))
    return manifest


def load(path: Path) -> tuple[dict[str, Any], StateTree]:
    """Manifest and state of a commit, checked as `verify` does; the bytes that were checked are the ones in use."""
    with _opened(path) as folder:
        manifest = manifest_in(folder, path)
        contents = _each(manifest["files"], lambda name: _content(folder, name, manifest))
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, content in contents.items():
        try:
            if name.endswith(".safetensors"):
                tensors.update(parse_tensors(content))
            else:
                values.update(json.loads(bytes(content)))
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{name}: {error}") from error
    return manifest, StateTree(tensors, values)


def read_manifest(path: Path) -> dict[str, Any]:
    """Only the manifest, checked against its own hash."""
    with _opened(path) as folder:
        return manifest_in(folder, path)


@contextmanager
def _opened(path: Path) -> Iterator[OpenFolder]:
    """A commit's folder; that it cannot be opened is damage."""
    try:
        folder = OpenFolder(path)
    except OSError as error:
        raise Damaged(f"it cannot be opened: {error}") from error
    with folder:
        yield folder


def _parts(pieces: Sequence[TensorBytes]) -> Iterable[list[TensorBytes]]:
    """The pieces in runs of about `PART` bytes; at least one run."""
    part: list[TensorBytes] = []
    size = 0
    for piece in pieces:
        if part and size + piece.data.numel() > PART:
            yield part
            part, size = [], 0
        part.append(piece)
        size += piece.data.numel()
    yield part


def _each(names: Iterable[str], work: Callable[[str], Any]) -> dict[str, Any]:
    """What `work` gives for each name, several at a time."""
    names = list(names)
    if len(names) == 1:
        return {names[0]: work(names[0])}
    with ThreadPoolExecutor(_READERS, "read") as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


def manifest_in(folder: OpenFolder, path: Path) -> dict[str, Any]:
    """The manifest of an open commit at this path, checked against its own hash; its files are not read.

    Raises Damaged where there is none or it has another form, Failure(77) where it names what no commit of ours has.
    """
    try:
        size = folder.size(MANIFEST)
        if size > LONGEST:
            raise Damaged(f"a manifest of {size} bytes")
        manifest = parse_manifest(bytes(folder.read(MANIFEST)))
    except FileNotFoundError:
        raise Damaged("no manifest") from None
    except OSError as error:
        raise Damaged(f"the manifest cannot be read: {error}") from error
    if name_of(manifest["step"]) != path.name.partition(".")[0]:
        raise Damaged(f"the manifest is of step {manifest['step']}")
    # Names are opened below the commit's folder, so none may lead out of it.
    strange = [name for name in manifest["files"] if not FILE.fullmatch(name)]
    if strange:
        raise Failure(Exit.SECURITY, f"{path}: the manifest names {strange[0]!r}", "no commit of ours has such a file")
    return manifest


def _require_whole(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> None:
    """Damaged where a file's bytes are not those that the manifest says."""
    with _damage(name):
        _require_size(folder, name, manifest)
        metadata = folder.metadata(name)
    if asdict(metadata) != manifest["files"][name]:
        raise Damaged(f"{name} does not have its SHA-256")


def _content(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> memoryview:
    """A file's bytes, of the size and hash that the manifest says."""
    with _damage(name):
        _require_size(folder, name, manifest)
        content = folder.read(name)
    if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
        raise Damaged(f"{name} does not have its SHA-256")
    return content


def _require_size(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> None:
    """Looked at first: a file that is larger than it should be is not read."""
    size, expected = folder.size(name), manifest["files"][name]["size"]
    if size != expected:
        raise Damaged(f"{name} has {size} bytes instead of {expected}")


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """A file that is not there or cannot be read is damage."""
    try:
        yield
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    except OSError as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
