"""Training sources that are streams: what a recipe can ask of them, and where a run goes on in them."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.checkpoint.compatible import accepts
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import coverage
from drivetrain.data.source import ENDLESS, Source
from drivetrain.data.stream import Deal, StreamSource
from drivetrain.loop.streams import Streams
from drivetrain.run.opened import OpenedRun
from drivetrain.run.restored import RestoredRun
from drivetrain.spec.check import stream_contradictions
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.tree import dotted


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

    Raises Failure(78) where the recipe asks for what they cannot give, 76 where they are not what they were.
    """
    inputs, recipe, group, data = opened.inputs, opened.context.recipe, opened.group, opened.placement.data
    found = streams_of(inputs.train)
    require_possible(recipe, inputs.train)
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


def require_possible(recipe: Recipe, sources: Mapping[str, Source]) -> None:
    """Raises Failure(78) where the recipe asks for what training streams cannot give."""
    streams = []
    for number, (name, source) in enumerate(sources.items()):
        path = ("data", "train", "sources", number)
        if isinstance(source, StreamSource):
            streams.append(path)
        elif len(source) >= ENDLESS:
            cause = f"{dotted(path)}: {name} is a stream, and this task looks samples up by their numbers"
            raise Failure(Exit.BAD_RECIPE, cause, "give a source that has a length")
    for wrong in stream_contradictions(recipe, streams):
        raise Failure(Exit.BAD_RECIPE, f"{dotted(wrong.path)}: {wrong.message}", "mend the recipe")
