"""Sources: numbered samples that can be read in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

ENDLESS = 1 << 40
"""The length that a stream has for those who number samples: where it ends, nobody knows before."""


class Source(Protocol):
    """Samples 0 .. len - 1.

    `fingerprint` is a digest of the content. `thread_safe` says that reading may go on beside training: it touches no
    global generator and no shared cursor. A source that leaves something out has `notes`, lines that say what.
    """

    fingerprint: str
    thread_safe: bool

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Sequence[Any]:
        """The samples with these ids (int64), in this order; `positions` seed what a sample draws at random.

        Token sources give one array [samples, context + 1] of the stored type, packed documents `Stacked` samples,
        others a list.
        """
        ...


@runtime_checkable
class ReadsTogether(Protocol):
    """A source that reads the samples of several batches at once, for less than one batch after the other."""

    def read_each(self, batches: Sequence[np.ndarray]) -> list[Any]:
        """For each of these arrays of ids (int64) what `read` gives for it."""
        ...


@runtime_checkable
class Ending(Protocol):
    """A source that may end: of the samples that it is asked for, some may not be there."""

    def there(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples (int64, ascending) there are, bool of the same shape. They are read for it."""
        ...

    def left(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples (int64, ascending) no known end has cut off, bool of the same shape."""
        ...
