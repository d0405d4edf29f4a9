"""Training samples as text, in the order that a run reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.buckets import reading_order
from drivetrain.data.inspection import Owner, describe_samples
from drivetrain.data.order import Sampler
from drivetrain.data.orders import Orders
from drivetrain.data.quarantine import Quarantine
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord
from drivetrain.run.build import build_task, first_lanes, only_training, open_inputs, run_scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load


def inspect_recipe(
    what: str, overrides: Sequence[str], position: int | None, step: int | None, count: int | None
) -> list[dict[str, Any]]:
    """`count` samples of a recipe or a run, from this position or step on, as JSON data; without `count` one sample, or
    the whole step. A run's are those that its ledger tells of.

    Raises Failure(64) for a position and a step, 76 where the data are not those that the run has read.
    """
    if position is not None and step is not None:
        raise Failure(Exit.BAD_COMMAND, "--position and --step both name a place", "give one of them")
    recipe = load(what, overrides).recipe
    train = recipe.data.train
    with tempfile.TemporaryDirectory() as folder:
        opened = open_inputs(only_training(recipe), Path(folder), build_task(recipe)).train
    sources = list(opened.values())
    # Of a run without a commit the order is that of its ledger, whatever the processes were.
    lanes = first_lanes(recipe, recipe.parallel.sizes(recipe.launch.processes).data)
    scale = run_scale(recipe, opened, lanes)
    source, order = reading_order(train, opened, recipe.seed, scale, lanes)
    quarantine = Quarantine([(1, recipe.guard.quarantine)])
    if not overrides and (ledger := Path(what) / "ledger.jsonl").is_file():
        order, quarantine = _as_it_went(ledger, order, quarantine)
    start = position or 0
    stop = start + 1
    if step is not None:
        start, stop = scale.batches.span(step)
    positions = np.arange(start, start + count if count else stop)
    ids = order.ids(start, start + len(positions))
    steps = np.array([scale.batches.steps(place + 1) for place in positions.tolist()])
    firsts = [sum(map(len, sources[:number])) for number in range(len(sources))]
    owners = [Owner(*owner) for owner in zip(firsts, opened, train.sources, strict=True)]
    return describe_samples(source, positions, ids, owners, quarantine.kept(steps, ids))


def _as_it_went(ledger: Path, order: Sampler, quarantine: Quarantine) -> tuple[Sampler, Quarantine]:
    """A run's own, with the weights that were set while it trained and the samples that it went back from; those of its
    recipe where it has not begun."""
    orders, begun = Orders(), False
    for record in read(ledger):
        orders.add(record)
        begun = begun or isinstance(record, AttemptRecord)
    if not begun:
        return order, quarantine
    if orders.current.metadata["sizes"] != order.metadata["sizes"]:
        cause = "the training data have another number of samples than the run has read"
        raise Failure(Exit.INCOMPATIBLE, cause, "bring them back, or give the recipe in place of the run")
    return orders.current, orders.quarantine
