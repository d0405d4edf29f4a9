"""Batches of samples that are about as long as each other, as a function of position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drivetrain.data.blend import BlendStage, ordering_of, training_order
from drivetrain.data.order import Sampler, mix64
from drivetrain.data.recipe import Train
from drivetrain.data.source import ENDLESS, Source
from drivetrain.runtime.mix import mix
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure

ONE_BATCH = Batches(ENDLESS)
"""Of samples that are read one after the other, by whoever it is."""
_TURNS = 1 << 36
"""A place in the seeds' path that nothing else has."""


class Buckets(Sampler):
    """An order whose samples change places among the batches of a window, so that those of a batch stand side by side
    in the source. Of a source that is numbered by length these are about as long as each other.

    A window holds `batches` batches and ends where an epoch does, so every sample is still there once an epoch. In a
    batch samples ascend; which batch of the window gets which of them is drawn.
    """

    def __init__(self, order: Sampler, batch: int, batches: int) -> None:
        """`batch` is the size of a global batch."""
        super().__init__()
        self.size = order.size
        self.metadata = {**order.metadata, "buckets": [batch, batches]}
        self._order, self._batch, self._batches = order, batch, batches
        self._seed = mix(order.metadata["seed"], _TURNS)

    def compute(self, positions: np.ndarray) -> np.ndarray:
        """The sample ids at consecutive positions, int64."""
        first, last = int(positions[0]), int(positions[-1]) + 1
        start, at = self._window(first)[0], first
        parts = []
        while at < last:
            begin, at = self._window(at)
            parts.append(self._dealt(begin, at))
        return np.concatenate(parts)[first - start : last - start]

    def _window(self, position: int) -> tuple[int, int]:
        """The first position of the window that a position is in, and that behind its last."""
        length = self._batch * self._batches
        window = position // length * length
        epoch = position // self.size * self.size
        return max(window, epoch), min(window + length, epoch + self.size)

    def _dealt(self, start: int, stop: int) -> np.ndarray:
        """A window's samples. Its first and last batch may lie partly in another epoch's window."""
        ids = np.sort(self._order.ids(start, stop))
        cuts = range((start // self._batch + 1) * self._batch, stop, self._batch)
        sizes = np.diff([start, *cuts, stop])
        # Which batch gets which stretch follows from where the window begins, so any window can be asked for by itself.
        keys = mix64(np.arange(len(sizes), dtype=np.uint64) + np.uint64(mix(self._seed, start)))
        turns = np.argsort(keys)
        stretches = np.split(ids, np.cumsum(sizes[turns])[:-1])
        dealt = dict(zip(turns.tolist(), stretches, strict=True))
        return np.concatenate([dealt[place] for place in range(len(sizes))])


def reading_order(
    train: Train, sources: Mapping[str, Source], seed: int, scale: Scale, lanes: int, told: Sequence[BlendStage] = ()
) -> tuple[Source, Sampler]:
    """`training_order`, with its buckets where the recipe asks for them. With batches by cost it is one order, which
    these are cut from, and lanes have no streams of their own.

    Raises Failure(78) where the source is not numbered by length.
    """
    if not scale.batches.even:
        scale, lanes = Scale(ONE_BATCH), 1
    source, order = training_order(train, sources, seed, scale, lanes, told)
    if train.buckets is None:
        return source, order
    if not getattr(source, "by_length", False):
        cause = f"data.train.buckets: the samples of {next(iter(sources))} are not numbered by their lengths"
        raise Failure(Exit.BAD_RECIPE, cause, "leave buckets out; the task, or a source of your own, must number them")
    return source, Buckets(order, scale.batches.size, train.buckets)


def order_of(metadata: Mapping[str, Any]) -> Sampler:
    """The ordering that has this metadata."""
    inner = ordering_of({name: fact for name, fact in metadata.items() if name != "buckets"})
    if "buckets" not in metadata:
        return inner
    return Buckets(inner, *metadata["buckets"])
