"""Training sources that are streams: what a recipe can ask of them, and where a run goes on in them."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.checkpoint.compatible import accepts
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import coverage
from drivetrain.data.source import ENDLESS, Source
from drivetrain.data.stream import Deal, StreamSource
from drivetrain.loop.streams import Streams
from drivetrain.run.build import Inputs
from drivetrain.run.opened import OpenedRun
from drivetrain.run.restored import RestoredRun
from drivetrain.spec.check import amounts
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.tree import dotted


def streams_of(sources: Mapping[str, Source]) -> dict[str, StreamSource]:
    """Those that are streams, by name."""
    return {name: source for name, source in sources.items() if isinstance(source, StreamSource)}


def sizes_of(sources: Mapping[str, Source]) -> dict[str, int | None]:
    """How many samples each source has; None for a stream, of which nobody knows it."""
    return {name: None if len(source) == ENDLESS else len(source) for name, source in sources.items()}


def resumed(opened: OpenedRun, restored: RestoredRun, batches: BatchReader) -> Streams | None:
    """The training streams, where the run is in them; None where there are none. Every rank calls it.

    Raises Failure(78) where the recipe asks for what they cannot give, 76 where they are not what they were.
    """
    inputs, recipe, group, data = opened.inputs, opened.context.recipe, opened.group, opened.placement.data
    found = streams_of(inputs.train)
    require_possible(recipe, inputs, data.world)
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


def require_possible(recipe: Recipe, inputs: Inputs, world: int) -> None:
    """Raises Failure(78) where the recipe asks for what streams cannot give."""
    streamed = [name for name, source in inputs.train.items() if len(source) == ENDLESS]
    if not streamed:
        return
    what = f"data.train.sources: {streamed[0]} is a stream"
    if not isinstance(inputs.train[streamed[0]], StreamSource):
        raise Failure(Exit.BAD_RECIPE, f"{what}, and this task looks its samples up", "give it a source with a length")
    for path, amount in amounts(recipe):
        if amount.epochs is not None:
            cause = f"{dotted(path)}: {what}, of which nobody knows the length"
            raise Failure(Exit.BAD_RECIPE, cause, "say it in steps or samples")
    if recipe.data.train.workers:
        hint = "leave workers at 0; a stream that has `thread_safe = True` is read beside training"
        raise Failure(Exit.BAD_RECIPE, f"data.train.workers: {what}, which one process reads in its order", hint)
    if recipe.guard.recompute and world > 1:
        cause = f"guard.recompute: {what}, and a process cannot read again what another one has read"
        raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or give a source with a length")
