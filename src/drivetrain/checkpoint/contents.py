"""What a commit's files hold: the parts of every tensor, and whether they are each of them once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from drivetrain.checkpoint.boxes import require_whole
from drivetrain.checkpoint.manifest import Damaged, writer_of
from drivetrain.checkpoint.tensors import Stored
from drivetrain.spec.box import Box

Boxes = Mapping[str, Box]
"""The tensors that a rank holds a part of, by name; whatever is not named is whole."""


class Part(NamedTuple):
    """A part of a tensor, and the file that has it."""

    file: str
    dtype: torch.dtype
    box: Box


def boxes_json(boxes: Boxes) -> bytes:
    """The content of a `boxes-RANK.json`."""
    return json.dumps({name: box.to_json() for name, box in boxes.items()}).encode()


def parse_boxes(content: Any) -> dict[str, Box]:
    """What `boxes_json` wrote, as JSON gives it back. Raises ValueError, KeyError or TypeError for anything else."""
    if not isinstance(content, dict):
        raise TypeError("it is no object")
    return {name: Box.from_json(value) for name, value in content.items()}


class Contents:
    """The parts of a commit's tensors, as its files are looked at, one after the other.

    What ranks claim to have written is believed only as far as their files are large, so that nobody who reads it asks
    for more memory than 8 times their bytes.
    """

    def __init__(self, boxes: Mapping[int, Boxes], sizes: Mapping[str, int]) -> None:
        """`boxes` by rank, `sizes` in bytes of each file of tensors. Raises Damaged where boxes cannot be."""
        self.parts: dict[str, list[Part]] = {}
        self._boxes = boxes
        self._unseen = {(rank, name) for rank, own in boxes.items() for name in own}
        room = dict.fromkeys(boxes, 0)
        for file, size in sizes.items():
            room[writer_of(file)] = room.get(writer_of(file), 0) + size
        for rank, own in boxes.items():
            if sum(box.size for box in own.values()) > room[rank]:
                raise Damaged(f"the boxes of rank {rank} have more numbers than its files have bytes")
        for name, several in _by_name(boxes).items():
            require_whole(name, several)

    def box(self, file: str, name: str, shape: tuple[int, ...]) -> Box:
        """Which part of a tensor of this name it is that a file has."""
        box = self._boxes.get(writer_of(file), {}).get(name)
        if box is None:
            return Box.of_whole(shape)
        if box.shape != shape:
            raise Damaged(f"{file}: {name} has shape {shape}, its box {box.shape}")
        return box

    def add(self, file: str, entries: Iterable[Stored]) -> None:
        """Note what the header of a file says. Raises Damaged where that contradicts what is known."""
        for entry in entries:
            part = Part(file, entry.dtype, self.box(file, entry.name, entry.shape))
            self.parts.setdefault(entry.name, []).append(part)
            self._unseen.discard((writer_of(file), entry.name))

    def require_whole(self) -> None:
        """Once all files are noted: raises Damaged where a tensor is not there once, or in several types."""
        for rank, name in sorted(self._unseen):
            raise Damaged(f"rank {rank} has a box of {name}, and no file of its has it")
        for name, parts in self.parts.items():
            if len({part.dtype for part in parts}) > 1:
                raise Damaged(f"{name} has parts of several types")
            require_whole(name, [part.box for part in parts])


def _by_name(boxes: Mapping[int, Boxes]) -> dict[str, list[Box]]:
    found: dict[str, list[Box]] = {}
    for own in boxes.values():
        for name, box in own.items():
            found.setdefault(name, []).append(box)
    return found
