"""A stream of tokens as samples: windows that overlap by one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from drivetrain.data.fingerprint import FileStamp, FileWatcher

Again = tuple[Callable[..., Any], tuple[Any, ...]]
"""How another process opens the same source: a function and its arguments."""


class Windows:
    """Window i is the tokens [i * context, (i + 1) * context]; its last token is the first of the next one.

    So each token but the first is predicted exactly once. What is left at the end is a shorter stretch that no window
    covers: fewer than `context` tokens.
    """

    thread_safe = True

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        fingerprint: str,
        file: FileStamp | None = None,
        again: Again | None = None,
    ) -> None:
        """`tokens` is one-dimensional, in memory or memory-mapped from `file`.

        Data workers are sent `again`; the tokens themselves where there is none.
        """
        self.fingerprint = fingerprint
        self._count = max(0, (len(tokens) - 1) // context)
        self._files = FileWatcher([file] if file else [])
        self._again: Again = again or (Windows, (tokens, context, fingerprint))
        # A view that strides by `context` over rows of context + 1: a gather of rows is a plain copy.
        self._rows = np.lib.stride_tricks.as_strided(
            tokens, (self._count, context + 1), (context * tokens.itemsize, tokens.itemsize), writeable=False
        )

    def __len__(self) -> int:
        """Number of windows."""
        return self._count

    def __reduce__(self) -> Again:
        """Data workers open the file again instead of being sent its content."""
        return self._again

    def read(self, ids: np.ndarray, positions: np.ndarray) -> Any:
        """Windows [samples, context + 1] of the stored type."""
        self._files.check()
        return self._rows[ids]

    def read_each(self, batches: Sequence[np.ndarray]) -> list[Any]:
        """`read` for each of these arrays of ids, by one gather."""
        self._files.check()
        return by_batch(self._rows[np.concatenate(batches)], batches)


def by_batch(rows: np.ndarray, batches: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The rows of each batch, of what was read for all of them."""
    ends = list(accumulate(map(len, batches)))
    return [rows[end - len(batch) : end] for batch, end in zip(batches, ends, strict=True)]
