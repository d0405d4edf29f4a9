"""Training sources that are streams: which ones, and where a run goes on in them."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.checkpoint.compatible import accepts
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import coverage
from drivetrain.data.deal import Deal
from drivetrain.data.source import ENDLESS, Source
from drivetrain.data.stream import StreamSource
from drivetrain.loop.streams import Streams
from drivetrain.run.opened import OpenedRun
from drivetrain.run.restored import RestoredRun


def streams_of(sources: Mapping[str, Source]) -> dict[str, StreamSource]:
    """Those that are streams, by name."""
    return {name: source for name, source in sources.items() if isinstance(source, StreamSource)}


def sizes_of(sources: Mapping[str, Source]) -> dict[str, int | None]:
    """How many samples each source has; None for a stream, of which nobody knows it."""
    found: dict[str, int | None] = {}
    for name, source in sources.items():
        found[name] = len(source) if len(source) < ENDLESS else None
    return found


def resumed(opened: OpenedRun, restored: RestoredRun, batches: BatchReader) -> Streams | None:
    """The training streams, where the run is in them; None where there are none. Every rank calls it.

    Raises Failure(76) where they are not what they were.
    """
    inputs, group, data = opened.inputs, opened.group, opened.mesh.data
    found = streams_of(inputs.train)
    if not found:
        return None
    own = restored.lanes // data.world
    if len(inputs.train) == 1:  # in a blend a lane's samples are now of one source, now of another
        for source in found.values():
            source.deal(Deal(batches.geometry.batches, restored.lanes))
    streams = Streams(found, range(data.rank * own, (data.rank + 1) * own), group)
    names, accepted = list(inputs.train), []
    for number, name in enumerate(names):
        if accepts(opened.context.job.override, f"data.train.sources[{number}]"):
            accepted.append(name)
    values = restored.values
    positions = coverage(batches.order, names, values.progress.position)
    opened.resumer.notes += streams.resume(values.streams, positions, accepted)
    return streams
