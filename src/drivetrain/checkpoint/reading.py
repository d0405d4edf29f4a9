"""The files of a commit, opened through its folder and checked against its manifest, and tensors put together of them.

What they say is input that anybody may have written: whatever makes no sense is damage, and nothing worse.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from drivetrain.checkpoint.boxes import Filling
from drivetrain.checkpoint.contents import Contents, parse_boxes
from drivetrain.checkpoint.files import OpenFolder
from drivetrain.checkpoint.manifest import FILE, LONGEST, MANIFEST, Damaged, name_of, parse_manifest, writer_of
from drivetrain.checkpoint.tensors import Stored, header_size, parse_header
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure

_READERS = 2  # threads that read a commit's files
_BOXES, _VALUES, _TENSORS = "boxes-", "values-", "tensors-"
_T = TypeVar("_T")
Wanted = Callable[[str, tuple[int, ...]], Box | None]
"""Which part of a tensor is to be read, by its name and its whole shape; None where none is."""


@contextmanager
def opened(path: Path) -> Iterator[OpenFolder]:
    """A commit's folder; that it cannot be opened is damage."""
    try:
        folder = OpenFolder(path)
    except OSError as error:
        raise Damaged(f"it cannot be opened: {error}") from error
    with folder:
        yield folder


@contextmanager
def damage(name: str) -> Iterator[None]:
    """A file that is not there, cannot be read, or makes no sense is damage."""
    try:
        yield
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    except OSError as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{name}: {error}") from error


def manifest_in(folder: OpenFolder, path: Path) -> dict[str, Any]:
    """The manifest of an open commit at this path, checked against its own hash; its files are not read.

    Raises Damaged where there is none or it has another form, Failure(77) where it names what no commit of ours has,
    Failure(76) where it is of a newer format.
    """
    try:
        size = folder.size(MANIFEST)
        if size > LONGEST:
            raise Damaged(f"a manifest of {size} bytes")
        manifest = parse_manifest(bytes(folder.read(MANIFEST)), str(path))
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


def tensor_files(manifest: Mapping[str, Any]) -> dict[str, int]:
    """The files of tensors, with their sizes."""
    return {name: file["size"] for name, file in manifest["files"].items() if name.startswith(_TENSORS)}


def in_parts(manifest: Mapping[str, Any]) -> bool:
    """Whether several ranks wrote a commit: each of them left a file of boxes."""
    return any(name.startswith(_BOXES) for name in manifest["files"])


def plain(folder: OpenFolder, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, dict[str, Box]]]:
    """A commit's values, and the boxes of each rank; their files are checked as `content` does."""
    values: dict[str, Any] = {}
    boxes: dict[int, dict[str, Box]] = {}
    for name in manifest["files"]:
        if name.startswith((_BOXES, _VALUES)):
            text = content(folder, name, manifest)
            with damage(name):
                parsed = json.loads(bytes(text))
                if name.startswith(_BOXES):
                    boxes[writer_of(name)] = parse_boxes(parsed)
                else:
                    values |= parsed
    return values, boxes


def checked_entries(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> list[Stored]:
    """What is in a file of tensors, once it was checked as `content` does; its bytes are not kept."""
    require_hash(folder, name, manifest)
    return entries(folder, name, manifest["files"][name]["size"])


def entries(folder: OpenFolder, name: str, size: int) -> list[Stored]:
    """What the header of a file of tensors says, without a look at its hash."""
    with damage(name):
        length = header_size(folder.beginning(name, 8), size)
        return parse_header(folder.beginning(name, length), size)


def content(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> memoryview:
    """A file's bytes, of the size and hash that the manifest says. Raises Damaged where it has others."""
    with damage(name):
        _require_size(folder, name, manifest)
        data, digest = folder.read_hashed(name)
    if digest != manifest["files"][name]["sha256"]:
        raise Damaged(f"{name} does not have its SHA-256")
    return data


def require_hash(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> None:
    """Damaged where a file's bytes are not those that the manifest says; they are not kept."""
    with damage(name):
        _require_size(folder, name, manifest)
        metadata = folder.metadata(name)
    if asdict(metadata) != manifest["files"][name]:
        raise Damaged(f"{name} does not have its SHA-256")


def _require_size(folder: OpenFolder, name: str, manifest: Mapping[str, Any]) -> None:
    """Looked at first: a file that is larger than it should be is not read."""
    size, expected = folder.size(name), manifest["files"][name]["size"]
    if size != expected:
        raise Damaged(f"{name} has {size} bytes instead of {expected}")


def ahead(names: Iterable[str], work: Callable[[str], _T]) -> Iterator[tuple[str, _T]]:
    """Each name with what `work` gives for it, in order; it is done for the next one meanwhile, and for no more."""
    names = list(names)
    if len(names) == 1:
        yield names[0], work(names[0])
        return
    with ThreadPoolExecutor(_READERS, "read") as pool:
        coming: deque[tuple[str, Future[_T]]] = deque()
        for name in names:
            coming.append((name, pool.submit(work, name)))
            if len(coming) == _READERS:
                yield _first(coming)
        while coming:
            yield _first(coming)


def _first(coming: deque[tuple[str, Future[_T]]]) -> tuple[str, _T]:
    """Taken out, so that its user alone holds it: it may be a whole file."""
    name, result = coming.popleft()
    return name, result.result()


class Assembly:
    """The parts of tensors that are wanted, put together while files come in."""

    def __init__(self, contents: Contents, wanted: Wanted, *, copies: bool = True) -> None:
        """Without `copies`, a tensor that is whole in its file stays there, and so does the file's memory."""
        self._contents = contents
        self._wanted = wanted
        self._copies = copies
        self._fillings: dict[str, Filling] = {}
        self._shared: dict[str, Tensor] = {}

    def want(self, name: str, whole: tuple[int, ...], dtype: torch.dtype) -> Filling | None:
        """What is made of a tensor; None where nothing of it is wanted."""
        if name not in self._fillings:
            box = self._wanted(name, whole)
            if box is None:
                return None
            self._fillings[name] = Filling(name, box, dtype)
        return self._fillings[name]

    def add(self, file: str, tensors: Mapping[str, Tensor]) -> None:
        """Take what is wanted of a file's tensors. Raises Damaged where they contradict those of another."""
        for name, tensor in tensors.items():
            box = self._contents.box(file, name, tuple(tensor.shape))
            if not self._copies and box.shape == box.whole:
                self._shared[name] = tensor
            elif filling := self.want(name, box.whole, tensor.dtype):
                filling.add(box, tensor)

    def tensors(self) -> dict[str, Tensor]:
        """All of them, by name. Raises Damaged where one has a hole."""
        return self._shared | {name: filling.filled() for name, filling in self._fillings.items()}
