"""A stream of tokens as samples: windows that overlap by one token."""

from __future__ import annotations

import numpy as np


class Windows:
    """Window i is the tokens [i * context, (i + 1) * context]; its last token is the first of the next one.

    So each token but the first is predicted exactly once. What is left at the end is a shorter stretch that no window
    covers: fewer than `context` tokens.
    """

    thread_safe = True

    def __init__(self, tokens: np.ndarray, context: int, fingerprint: str) -> None:
        """`tokens` is one-dimensional, in memory or memory-mapped."""
        self.fingerprint = fingerprint
        self._count = max(0, (len(tokens) - 1) // context)
        # A view that strides by `context` over rows of context + 1: a gather of rows is a plain copy.
        self._rows = np.lib.stride_tricks.as_strided(
            tokens, (self._count, context + 1), (context * tokens.itemsize, tokens.itemsize), writeable=False
        )

    def __len__(self) -> int:
        """Number of windows."""
        return self._count

    def read(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Windows [samples, context + 1] of the stored type."""
        return self._rows[ids]
