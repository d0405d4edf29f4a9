"""One commit on the disk: a folder of tensors and values under a manifest that has the hash of everything.

It appears by one rename after every byte of it is on the disk. Whoever reads it checks every byte first, and uses the
bytes that were checked. One rank writes all of it, or each rank the parts of tensors that it counts, and their boxes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from drivetrain.checkpoint.contents import Boxes, Contents, boxes_json
from drivetrain.checkpoint.files import FileMetadata, OpenFolder, write_file
from drivetrain.checkpoint.manifest import FORMAT, MANIFEST
from drivetrain.checkpoint.reading import (
    Assembly,
    ahead,
    content,
    damage,
    entries,
    in_parts,
    manifest_in,
    opened,
    plain,
    require_hash,
    tensor_files,
)
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.checkpoint.tensors import parse_header, parse_tensors, write_tensors, written_size
from drivetrain.spec.box import Box
from drivetrain.spec.files import sync_folder

PART = 64 << 20
"""Bytes of tensors from which another file is begun, at the latest: files are written, hashed and read beside each
other."""
_PARTS, _LEAST_PART = 8, 16 << 20
"""Of how many files a state is that is not too large for it, and how many bytes each of them has at least."""


@dataclass(frozen=True)
class StateTree:
    """Everything that decides a later bit: tensors by flat name, and plain values.

    `boxes` says where those tensors lie in the whole that are a part of one.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    boxes: Boxes = field(default_factory=dict)


def write_parts(
    folder: Path, pieces: Sequence[TensorBytes], others: Mapping[str, bytes], threads: int, rank: int | None = None
) -> dict[str, FileMetadata]:
    """Write files of tensors, and the `others` by name, into a folder, and read each one back from the disk; what a
    manifest says of them. `rank` is who writes a part of a commit; None where one writes all.

    Raises OSError where the disk refuses or gives back other bytes, Failure(83) where the memory has changed under way.
    """
    parts = _named_parts(pieces, rank)
    with OpenFolder(folder) as files:
        # Each is read back before there is a manifest: a commit that does not read back never gets its name.
        def made(name: str) -> FileMetadata:
            header = write_tensors(folder / name, parts[name])
            return files.read_back(name, [_array(header), *(piece.data.numpy() for piece in parts[name])])

        with ThreadPoolExecutor(max(1, min(threads, len(parts))), "write") as pool:
            metadata = dict(zip(parts, pool.map(made, parts), strict=True))
        for name, text in others.items():
            write_file(folder / name, text)
            metadata[name] = files.read_back(name, [_array(text)])
    return metadata


def file_sizes(pieces: Sequence[TensorBytes], rank: int | None = None) -> dict[str, int]:
    """Bytes of each file of tensors that `write_parts` would write; of the pieces only their sizes are looked at."""
    return {name: written_size(part) for name, part in _named_parts(pieces, rank).items()}


def _named_parts(pieces: Sequence[TensorBytes], rank: int | None) -> dict[str, list[TensorBytes]]:
    """The pieces by the file that they go into."""
    own, runs = "", _parts(pieces)
    if rank is not None:
        own, runs = f"{rank:05d}-", _parts(pieces) if pieces else ()
    return {f"tensors-{own}{n:05d}.safetensors": part for n, part in enumerate(runs)}


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def values_file(values: Mapping[str, Any]) -> dict[str, bytes]:
    """The file of plain values, by its name."""
    return {"values-00000.json": json.dumps(values).encode()}


def boxes_file(boxes: Boxes, rank: int) -> dict[str, bytes]:
    """The file of a rank's boxes, by its name."""
    return {f"boxes-{rank:05d}.json": boxes_json(boxes)}


def write_manifest(folder: Path, step: int, files: Mapping[str, FileMetadata], metadata: Mapping[str, Any]) -> str:
    """Write the manifest, which makes the folder whole, and make all durable; returns the manifest's SHA-256."""
    parts = {name: asdict(file) for name, file in files.items()}
    manifest = {"format": FORMAT, "step": step, "time": time.time(), "files": parts, **metadata}
    # One line, and its hash in the next: whoever reads the first can check it without knowing how it was made.
    line = json.dumps(manifest, separators=(",", ":")).encode()
    own = hashlib.sha256(line).hexdigest()
    write_file(folder / MANIFEST, line + b"\n" + own.encode() + b"\n")
    sync_folder(folder)
    return own


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a commit whose files all have the size and hash it says, and all tensors once; `sha256` is the
    manifest's own.

    Raises Damaged where they have not, Failure(77) where a file is a link, 76 where the format is a newer one.
    """
    with opened(path) as folder:
        manifest = manifest_in(folder, path)
        # Hashing is what takes long: files are read beside each other, and the first that is wrong ends it.
        for _ in ahead(manifest["files"], lambda name: require_hash(folder, name, manifest)):
            pass
        require_complete(folder, manifest)
    return manifest


def require_complete(folder: OpenFolder, manifest: Mapping[str, Any]) -> None:
    """Raises Damaged unless the files of a commit that several ranks wrote have every tensor once.

    Only boxes, and headers of tensors, are read.
    """
    if not in_parts(manifest):
        return
    files = tensor_files(manifest)
    contents = Contents(plain(folder, manifest)[1], files)
    for name, size in files.items():
        contents.add(name, entries(folder, name, size))
    contents.require_whole()


def load(path: Path) -> tuple[dict[str, Any], StateTree]:
    """Manifest and state of a commit, checked as `verify` does; the bytes that were checked are the ones in use.

    All tensors are whole: those that several ranks wrote are put together, file by file.
    """
    with opened(path) as folder:
        manifest = manifest_in(folder, path)
        values, boxes = plain(folder, manifest)
        files = tensor_files(manifest)
        contents = Contents(boxes, files)
        assembly = Assembly(contents, lambda _, whole: Box.of_whole(whole), copies=False)
        for name, data in ahead(files, lambda name: content(folder, name, manifest)):
            with damage(name):
                contents.add(name, parse_header(data, len(data)))
                assembly.add(name, parse_tensors(data))
    # Again after the files: until all headers are read, a tensor that none of them has looks like one to come.
    contents.require_whole()
    return manifest, StateTree(assembly.tensors(), values)


def read_manifest(path: Path) -> dict[str, Any]:
    """Only the manifest, checked against its own hash."""
    with opened(path) as folder:
        return manifest_in(folder, path)


def _parts(pieces: Sequence[TensorBytes]) -> Iterable[list[TensorBytes]]:
    """The pieces in runs of about as many bytes, `PART` at most but for a larger piece; at least one run."""
    total = sum(piece.data.numel() for piece in pieces)
    # Some files for every state, so that small ones are hashed and read beside each other, too, and none so small that
    # opening it takes longer.
    most = min(PART, max(_LEAST_PART, total // _PARTS))
    part: list[TensorBytes] = []
    size = 0
    for piece in pieces:
        if part and size + piece.data.numel() > most:
            yield part
            part, size = [], 0
        part.append(piece)
        size += piece.data.numel()
    yield part
