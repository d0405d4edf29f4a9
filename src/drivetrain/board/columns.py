"""Numbers that only grow at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 64  # rows that there is room for at first


def drawable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these numbers four bytes can hold: not NaN, not infinite, not larger than they go."""
    return np.abs(values) <= np.finfo("f4").max


class Column:
    """Rows of `width` numbers of one dtype, in one array that is made larger by half where it is full."""

    def __init__(self, width: int, dtype: str, rows: NDArray[Any] | None = None) -> None:
        """`rows`: [rows, width] to begin with, such as those of a snapshot; they are not copied until some come."""
        self._array = np.empty((0, width), dtype) if rows is None else rows.reshape(-1, width)
        self._length = len(self._array)

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> NDArray[Any]:
        """[rows, width], a view: it is good until more come."""
        return self._array[: self._length]

    def extend(self, rows: NDArray[Any]) -> None:
        """More rows, [any, width]."""
        needed = self._length + len(rows)
        if needed > len(self._array):
            room = max(_LEAST, needed + needed // 2)
            larger = np.empty((room, self._array.shape[1]), self._array.dtype)
            larger[: self._length] = self.rows
            self._array = larger
        self._array[self._length : needed] = rows
        self._length = needed

    def cut(self, length: int) -> None:
        """Forget the rows from this one on."""
        self._length = min(self._length, length)
