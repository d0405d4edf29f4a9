"""Samples of packed documents that lie in arrays together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

IGNORED = -100
"""The target where there is none: what torch's cross-entropy leaves out by itself."""


class Stacked(Sequence[dict[str, np.ndarray]]):
    """Samples, each a dict (see `Packed`); what they have in common is there as arrays too, with samples along the
    first dimension.

    `tokens` and, where nothing is padded, `targets` are views of the same memory: who changes them makes a copy first.
    """

    def __init__(
        self, windows: np.ndarray, lengths: np.ndarray | None, documents: np.ndarray | Callable[[], np.ndarray]
    ) -> None:
        """`windows` [samples, context + 1] are the tokens, of which `lengths` [samples] are none of padding; None: all.

        The documents [samples, context + 1] may be given as a function, since not everyone asks for them.
        """
        self._windows, self._lengths, self._given = windows, lengths, documents

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._windows)

    def __getitem__(self, place: Any) -> Any:
        """One sample as a dict that shares no memory between its values, or a list of them."""
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        sample = {name: getattr(self, name)[place] for name in ("tokens", "targets", "documents", "mask")}
        return sample | {"targets": sample["targets"].copy()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers send the documents as they are, not how they are found."""
        return Stacked, (self._windows, self._lengths, self.documents)

    @property
    def tokens(self) -> np.ndarray:
        """What is read, int64 [samples, context]; 0 where padded."""
        return self._windows[:, :-1]

    @cached_property
    def targets(self) -> np.ndarray:
        """What is predicted, int64 [samples, context]; `IGNORED` where padded."""
        targets = self._windows[:, 1:]
        if self._lengths is None:
            return targets
        return np.where(self.mask, targets, IGNORED)

    @cached_property
    def mask(self) -> np.ndarray:
        """Where there is a target, bool [samples, context]."""
        width = self._windows.shape[1]
        if self._lengths is None:
            return np.ones((len(self), width - 1), bool)
        return np.arange(1, width) < self._lengths[:, None]

    @cached_property
    def documents(self) -> np.ndarray:
        """Each token's document, int64 [samples, context + 1]; -1 where padded."""
        if isinstance(self._given, np.ndarray):
            return self._given
        return self._given()


def stacked(samples: Sequence[Any], name: str) -> np.ndarray:
    """What samples have under a key, one above the other: without a copy where they lie so already."""
    if isinstance(samples, Stacked):
        return getattr(samples, name)
    return np.stack([sample[name] for sample in samples])
