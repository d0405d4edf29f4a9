"""Tensors of a commit as pages of its files: they are read when they are looked at, and take no memory that lasts."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from drivetrain.checkpoint.contents import Part
from drivetrain.checkpoint.files import MappedFile, forget
from drivetrain.checkpoint.stored import StoredCommit
from drivetrain.checkpoint.tensors import parse_tensors
from drivetrain.spec.exits import Exit, Failure

BLOCK = 4 << 20
"""Numbers that are looked at before their pages are given back."""


class MappedTensors:
    """Some `tensors` of a commit, by name, whole. What several ranks wrote of one is joined in an unnamed file."""

    def __init__(self, stored: StoredCommit, wanted: Callable[[str], bool], beside: Path) -> None:
        """`beside` is a folder with room for what is joined. Raises Failure(74) where a file is no longer as it was
        when it was checked."""
        self._files: dict[str, MappedFile] = {}
        self._joined: list[mmap.mmap] = []
        self._stored = stored
        self._beside = beside
        self._parts: dict[str, dict[str, Tensor]] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, parts in stored.contents.parts.items():
            if wanted(name):
                self.tensors[name] = self._whole(name, parts)

    def forget(self) -> None:
        """Give all pages back: what is looked at again is read again."""
        for file in self._files.values():
            file.forget()
        for pages in self._joined:
            forget(pages)

    def require_unchanged(self) -> None:
        """Raises Failure(65) where a file was written since it was checked."""
        for file in self._files.values():
            file.require_unchanged()

    def _whole(self, name: str, parts: list[Part]) -> Tensor:
        found = [self._in_file(part.file)[name] for part in parts]
        if len(parts) == 1 and found[0].shape == parts[0].box.whole:
            return found[0]
        whole = self._room(parts[0])
        for part, tensor in zip(parts, found, strict=True):
            here = whole[part.box.slices]
            # By lines: a table that is cut has many, and each is short.
            lines = max(1, BLOCK // max(1, tensor[:1].numel()))
            for line in range(0, len(tensor), lines):
                here[line : line + lines].copy_(tensor[line : line + lines])
                self.forget()
        return whole

    def _in_file(self, file: str) -> dict[str, Tensor]:
        if file not in self._files:
            mapped = MappedFile(self._stored.path / file)
            if mapped.sha256 != self._stored.metadata["files"][file]["sha256"]:
                cause = f"{self._stored.path / file} was whole when it was checked, and is not where it is read"
                raise Failure(Exit.STORAGE, cause, "see that its disk or file server answers alike, then start again")
            self._files[file] = mapped
            self._parts[file] = parse_tensors(mapped.data)
        return self._parts[file]

    def _room(self, part: Part) -> Tensor:
        """Memory for a whole tensor, which lies on the disk."""
        size = prod(part.box.whole) * part.dtype.itemsize
        with tempfile.TemporaryFile(dir=self._beside) as file:
            file.truncate(size)
            self._joined.append(mmap.mmap(file.fileno(), size))
        return torch.frombuffer(self._joined[-1], dtype=torch.uint8).view(part.dtype).view(part.box.whole)
