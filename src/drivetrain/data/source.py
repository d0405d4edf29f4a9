"""Sources: numbered samples that can be read in any order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from drivetrain.data.recipe import Parted
from drivetrain.data.recipe import Source as SourceSettings
from drivetrain.data.split import parted
from drivetrain.spec.registry import Custom, imported


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


def open_source(settings: SourceSettings | Custom, seed: int, cache: Path) -> Source:
    """Open a source. `cache` is a JSON file of content digests, so that an unchanged file is not read again.

    Raises Failure(66) where a file is missing, 65 where its content is unusable.
    """
    if isinstance(settings, Custom):
        from drivetrain.data.dataset import MapSource  # imports torch, which token sources do without

        source = MapSource(settings, seed)
        return parted(source, settings.parted, settings.kind) if isinstance(settings.parted, Parted) else source
    opener = imported(settings.factory)
    return opener(settings, cache, seed) if settings.seeded else opener(settings, cache)
