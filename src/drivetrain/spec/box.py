"""A part of a tensor: where it begins in the whole, and how long it is. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Slices = tuple[slice, ...]
_MOST_NUMBERS = 1 << 62
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class Box:
    """A part of a tensor of shape `whole`: from `offset` on, `shape` long. It may be empty, or all of the tensor."""

    whole: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of_whole(cls, shape: Sequence[int]) -> Box:
        """All of a tensor of this shape."""
        return cls(tuple(shape), (0,) * len(shape), tuple(shape))

    @classmethod
    def from_json(cls, value: Any) -> Box:
        """What `to_json` gave. Raises ValueError, KeyError or TypeError for anything that is no part of a tensor."""
        whole, offset, shape = (checked_shape(value[key]) for key in ("whole", "offset", "shape"))
        ends = zip(offset, shape, whole, strict=True)  # a ValueError where they are of several lengths
        if not all(start + extent <= full for start, extent, full in ends):
            raise ValueError(f"{list(shape)} from {list(offset)} on is no part of {list(whole)}")
        return cls(whole, offset, shape)

    def to_json(self) -> dict[str, list[int]]:
        """For a file."""
        return {"whole": list(self.whole), "offset": list(self.offset), "shape": list(self.shape)}

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def slices(self) -> Slices:
        """Where it lies in the whole."""
        return tuple(slice(start, start + extent) for start, extent in zip(self.offset, self.shape, strict=True))

    def common(self, other: Box) -> tuple[Slices, Slices] | None:
        """What both have, as slices of this one and of the other; None where that is nothing."""
        here, there = [], []
        for mine, its in zip(self.slices, other.slices, strict=True):
            start, stop = max(mine.start, its.start), min(mine.stop, its.stop)
            if start >= stop:
                return None
            here.append(slice(start - mine.start, stop - mine.start))
            there.append(slice(start - its.start, stop - its.start))
        return tuple(here), tuple(there)


def checked_shape(value: Any) -> tuple[int, ...]:
    """A shape that a file claims. Raises ValueError where no tensor can have it, TypeError where it is no list."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no shape")
    if not all(type(extent) is int and 0 <= extent < _MOST_NUMBERS for extent in value):
        raise ValueError(f"shape {value}")
    # Also of an empty tensor: torch multiplies the other extents all the same.
    if len(value) > _MOST_DIMENSIONS or prod(max(extent, 1) for extent in value) >= _MOST_NUMBERS:
        raise ValueError(f"shape {value}")
    return tuple(value)
