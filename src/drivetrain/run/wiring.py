"""What the loop works with, made of a recipe and of what an attempt has opened."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.checkpoint.commits import Committer, Found
from drivetrain.checkpoint.recipe import Checkpoint
from drivetrain.checkpoint.retention import Retention
from drivetrain.data.blend import Stage, coverage
from drivetrain.data.buckets import reading_order
from drivetrain.data.feed import Feed
from drivetrain.data.geometry import Geometry, choose_lanes
from drivetrain.data.order import Ordering
from drivetrain.data.quarantine import Quarantine
from drivetrain.engine.engine import Engine
from drivetrain.engine.recipe import scale_of
from drivetrain.launch.job import Job
from drivetrain.ledger.history import History
from drivetrain.ledger.ledger import Ledger
from drivetrain.loop.control import Control
from drivetrain.loop.exchange import WIDTH, Exchange
from drivetrain.loop.finals import Finals
from drivetrain.loop.guard import Guard
from drivetrain.loop.journal import Journal
from drivetrain.loop.observe import build_observer
from drivetrain.loop.parts import Parts
from drivetrain.loop.progress import Timetable
from drivetrain.loop.task import Task
from drivetrain.run.build import Inputs, most_scored
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.lease import Lease
from drivetrain.runtime.place import Place
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe


@dataclass(frozen=True)
class Start:
    """One start of a run, on one rank: what it was asked, and where and by what it runs. `environment` is what bits
    depend on beside the recipe."""

    job: Job
    recipe: Recipe
    place: Place
    stops: StopRequests
    heart: Heart
    environment: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The run directory."""
        return Path(self.job.folder)


def timetable_of(recipe: Recipe, tuned: Recipe, inputs: Inputs) -> Timetable:
    """When a run ends, evaluates and commits; `tuned` is the recipe with what was set while it trained."""
    scale = scale_of(recipe.batch, getattr(recipe.task, "tokens_per_sample", None), inputs.samples)
    total = recipe.budget.samples_at(scale)
    return Timetable(
        total=total,
        steps=scale.batches.steps(total),
        scale=scale,
        evaluate_every=tuned.evaluate.every,
        commit_every=tuned.checkpoint.every,
        commit_evaluated=recipe.checkpoint.keep_best is not None,
    )


def lanes_of(recipe: Recipe, world: int, found: Found | None) -> int:
    """The recipe's lanes; `auto` are those of the commit to go on from, or at the first start what fits."""
    if recipe.lanes != "auto":
        return recipe.lanes
    if found:
        return found.facts["lanes"]
    batch, exact = recipe.batch, recipe.exact
    whole = batch.micro if exact and batch.micro else 1  # samples that stay together
    return choose_lanes(math.gcd(*batch.sizes) // whole, world, apart=exact)


def scored_by(recipe: Recipe, lanes: int, world: int) -> int:
    """How many lanes share out an evaluation."""
    return lanes if recipe.exact else world


def parts_of(
    start: Start,
    task: Task,
    engine: Engine,
    inputs: Inputs,
    timetable: Timetable,
    group: Group,
    journal: Journal,
    found: Found | None,
    finals: Finals,
    lanes: int,
    control: Control,
    stages: Sequence[Stage],
    guard: Guard,
) -> Parts:
    """All that the loop works with, but for what only the ledger's keeper has."""
    recipe, scale = start.recipe, timetable.scale
    train = recipe.data.train
    names = list(inputs.train)
    source, order = reading_order(train, names, list(inputs.train.values()), recipe.seed, scale, stages)
    geometry = Geometry(scale.batches, lanes, group.world, recipe.batch.micro, apart=recipe.exact)
    feed = Feed(
        source, order, geometry, group.rank, timetable.total, task.collate, task.counts, _quarantine(guard, order)
    )
    facts = {
        "recipe": bits_digest(recipe),
        "data": inputs.digests,
        "environment": start.environment,
        "parent": found.path.name if found else None,
        "lanes": geometry.lanes,
        "task": dict(task.learned),
        "attempt": journal.attempt,
    }
    return Parts(
        task=task,
        engine=engine,
        feed=feed,
        validation=inputs.sets(recipe, scored_by(recipe, lanes, group.world), most_scored(recipe))["validation"],
        timetable=timetable,
        guard=guard,
        statistics=recipe.statistics,
        group=group,
        exchange=Exchange(Pulse(group, WIDTH), start.stops, group.world == 1, control.waiting),
        journal=journal,
        committer=None,
        mirror=None,
        facts=facts,
        coverage=partial(coverage, order, names),
        folder=start.folder,
        ahead=train.prefetch,
        workers=train.workers,
        stop=recipe.stop,
        most_steps=start.job.most_steps,
        finals=finals,
        observer=build_observer(recipe, timetable, group, engine, journal, start.folder),
        control=control,
    )


def committer_of(start: Start, lease: Lease | None, ledger: Ledger, history: History, scale: Scale) -> Committer:
    """What commits, on the rank that keeps the ledger."""
    settings = start.recipe.checkpoint
    scores = history.scores
    return Committer(
        run=start.folder,
        lease=lease,
        retention=_retention(settings, scale),
        before=ledger.sync,
        scores=lambda: scores(settings.keep_best.metric) if settings.keep_best else {},
        heart=start.heart,
        blocking=settings.blocking,
    )


def weights_digest(networks: Mapping[str, nn.Module]) -> str:
    """A checksum over all weights: ranks that start unequal would never become equal."""
    checksum = 0
    for network in networks.values():
        for parameter in network.parameters():
            data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            checksum = zlib.crc32(data, checksum)  # type: ignore[arg-type]
    return f"{checksum:08x}"


def _quarantine(guard: Guard, order: Ordering) -> Quarantine:
    """The samples that are left out; Failure(78) where the recipe names one that is not there."""
    strange = [sample for sample in guard.settings.quarantine if sample >= order.size]
    if strange:
        cause = f"guard.quarantine: there is no sample {strange[0]}, they are 0 to {order.size - 1}"
        raise Failure(Exit.BAD_RECIPE, cause, "give ids as the ledger tells them")
    return guard.quarantine


def _retention(settings: Checkpoint, scale: Scale) -> Retention:
    best = settings.keep_best
    return Retention(
        last=settings.keep,
        every=partial(settings.keep_every.multiples, scale=scale) if settings.keep_every else None,
        best=best.count if best else 0,
        sign=-1 if best and best.mode == "max" else 1,
    )
