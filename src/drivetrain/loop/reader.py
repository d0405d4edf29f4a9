"""What is read ahead of the loop, and what ranks tell each other about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from drivetrain.data.batch_reader import BatchReader, LocalBatch
from drivetrain.data.blend import coverage, wanted
from drivetrain.data.order import Sampler
from drivetrain.data.prefetch import BatchIterator, InlineReader
from drivetrain.data.quarantine import Quarantine
from drivetrain.loop.step_sync import StepSync, SyncResult
from drivetrain.loop.streams import Streams


class Reader:
    """Hands out this rank's batches in order, one step ahead of the loop.

    While step s is made, the batch of step s+1 is here already: its counts travel with the pulse of step s, so every
    rank knows the global counts of s+1, which are its divisors, before it begins.
    """

    def __init__(
        self,
        batches: BatchReader,
        sync: StepSync,
        sources: Sequence[str],
        open_iterator: Callable[[BatchReader, int], BatchIterator],
        streams: Streams | None = None,
        announce: Callable[[LocalBatch], None] | None = None,
    ) -> None:
        """`sources` are the training sources' names; `open_iterator` reads ahead from a step on; `streams` are those
        sources that are streams, where there are some. `announce` is told each upcoming batch one step ahead."""
        self.batches = batches
        self.counts: dict[str, int] = {}
        """Global counts of the upcoming batch, by unit."""
        self.streams = streams
        self._sync = sync
        self._announce = announce
        self._sources = sources
        self._open = open_iterator
        self._iterator: BatchIterator = InlineReader(batches, range(0), 0)  # reads nothing yet
        self._ahead: LocalBatch | None = None

    @property
    def upcoming(self) -> int | None:
        """The step of the next batch; None where no samples are left."""
        return self._ahead.step if self._ahead and not self.exhausted else None

    @property
    def exhausted(self) -> bool:
        """Whether the streams have ended before the budget."""
        return self._ahead is not None and self.streams is not None and self.streams.exhausted

    def start(self, step: int) -> SyncResult:
        """Begin to read at this step, and hear what all ranks say before it. Every rank calls it."""
        self._reopen(step)
        self._ahead = next(self._iterator, None)
        self._sync.send(ahead=self._ahead)  # no step is under way whose pulse could carry the first batch's counts
        return self.receive()

    def next(self) -> LocalBatch:
        """The upcoming batch, once the one after it is read too."""
        batch, self._ahead = self._ahead, next(self._iterator, None)
        assert batch is not None, "`upcoming` says whether there is one"
        if self.streams and self.counts["samples"] < len(self.batches.samples(batch.step, ended=False).ids):
            batch = batch._replace(gaps=True)  # a rank that reads all it wants cannot know it of the others
        return batch

    def send(self, batch: LocalBatch) -> None:
        """Start telling the other ranks what this one has read: the pulse of this batch's step leaves."""
        self._sync.send(batch, self._ahead)
        if self._announce and self._ahead:
            self._announce(self._ahead)

    def receive(self) -> SyncResult:
        """What all ranks have said, the same on each."""
        heard = self._sync.receive()
        self.counts = heard.counts
        if self.streams and self._ahead:
            self._hear_of_ends(self.streams, self._ahead.step)
        return heard

    def leave_out(self, quarantine: Quarantine) -> None:
        """Leave these samples out of what is read by the next `start`."""
        self.batches = replace(self.batches, quarantine=quarantine)

    def change_order(self, sampler: Sampler, step: int) -> None:
        """Read in another order from this step on. What is read already stays: all ranks know its counts."""
        self.batches = replace(self.batches, order=sampler)
        # Steps beyond `_ahead` may be read already, too, in the old order: reading them begins anew.
        if self._ahead is not None:
            self._reopen(step)

    def coverage(self, position: int) -> dict[str, int]:
        """How many samples of each source lie before a position."""
        return coverage(self.batches.order, self._sources, position)

    def close(self) -> None:
        """End what reads ahead."""
        self._iterator.close()

    def _hear_of_ends(self, streams: Streams, step: int) -> None:
        """Learn which streams end in the upcoming step, and whether it is one behind all ends."""
        start, stop = self.batches.geometry.batches.span(step)
        # Fewer samples than the known ends leave: there is one that not all ranks know.
        if self.counts["samples"] != len(self.batches.samples(step).ids):
            streams.hear(self.coverage(stop))
        streams.look(self.coverage(start), wanted(self.batches.order, self._sources, start))

    def _reopen(self, step: int) -> None:
        self.close()
        self._iterator = self._open(self.batches, step)
