"""A plan as a whole: the numbers of `run.planning` with the run's length, disk, time and cost, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from drivetrain.ledger.run_summary import summary_of
from drivetrain.plan.chips import Chip
from drivetrain.plan.duration import Rate, Seconds, Work, at_rate, at_utilization
from drivetrain.plan.flops import peak
from drivetrain.plan.picture import draw
from drivetrain.run.planning import (
    Limit,
    Opened,
    Prediction,
    in_host_memory,
    kept_commits,
    largest,
    open_plan,
    predictions,
    require_fits,
    taken,
)
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import AXES, MeshSizes
from drivetrain.spec.recipe import Recipe

MFU = 0.4
"""The share of a device's peak that a chip's figures are taken with, where nobody says another one."""
_LAST = 100  # steps of another run that its rate is taken over


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is asked of a plan. `price` is that of an hour of a process, `rates` what has been measured.

    Raises Failure(64) for numbers that no run could have.
    """

    processes: int
    limit: Limit | None = None
    chip: Chip | None = None
    mfu: float = MFU
    like: Sequence[Path] = ()
    rates: Sequence[Rate] = field(default_factory=tuple)
    price: float | None = None
    data: bool = True
    rank: int = 0
    whole: bool = False
    picture: Path | None = None

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise Failure(Exit.BAD_COMMAND, f"--processes {self.processes}: a run has one at least", "name how many")
        if not 0 <= self.rank < self.processes:
            cause = f"--rank {self.rank}: of {self.processes} processes ranks are 0 to {self.processes - 1}"
            raise Failure(Exit.BAD_COMMAND, cause, "name one of these")
        if not 0 < self.mfu <= 1:
            raise Failure(Exit.BAD_COMMAND, f"--mfu {self.mfu}: it is a share, above 0 and up to 1", "such as 0.4")
        if self.price is not None and not 0 <= self.price < inf:
            raise Failure(Exit.BAD_COMMAND, f"--price {self.price}: it is an amount, 0 or more", "such as 2.50")


def plan(recipe: Recipe, options: PlanOptions) -> dict[str, Any]:
    """All that can be said before the run. Raises Failure(78) where it does not fit the limit, and what building
    raises."""
    sizes = mesh_of(recipe, options.processes)
    opened = open_plan(recipe, options.processes, data=options.data)
    every = predictions(opened, sizes, rank=options.rank, whole=options.whole)
    found, limit = every[options.rank], options.limit
    if options.picture:
        title = f"{recipe.name} on {sizes}: memory of a step, rank {options.rank}; {found.how}"
        options.picture.write_text(draw(found.curve, title, limit.bytes if limit else None))
    if limit:
        require_fits(opened, sizes, largest(recipe, every), limit)
    flops = opened.task.flops_per_sample()
    per_step = max(opened.scale.batches.sizes)
    work = Work(opened.scale.batches.steps(opened.total), opened.total, flops, sizes.world)
    state = sum(each.state for each in every.values())
    return {
        "name": recipe.name,
        "task": getattr(recipe.task, "kind", "custom"),
        "mesh": str(sizes),
        "processes": sizes.world,
        "rank": options.rank,
        "networks": _networks(found),
        "length": _length(opened, work),
        "flops": _flops(recipe, every, flops and flops * per_step, options),
        "memory": _memory(recipe, found, limit) | _of_stages(recipe, every),
        "commit": _commit(opened, found, state),
        "time": [each.to_json() for each in durations(recipe, work, options)],
        "notes": list(opened.notes),
    }


def mesh_of(recipe: Recipe, processes: int) -> MeshSizes:
    """The mesh of so many processes. Raises Failure(78) where they are not its product."""
    try:
        return recipe.parallel.sizes(processes)
    except ValueError as error:
        raise Failure(Exit.BAD_RECIPE, f"parallel: {error}", "plan as many, or change parallel") from error


def processes_of(recipe: Recipe) -> int:
    """The product of its mesh; or, where an axis takes what is left, the processes of its launch."""
    sizes = [getattr(recipe.parallel, axis) for axis in AXES]
    fixed = 1
    for size in sizes:
        if size != "auto":
            fixed *= size
    if "auto" not in sizes:
        return fixed
    return max(fixed, recipe.launch.processes)


def durations(recipe: Recipe, work: Work, options: PlanOptions) -> list[Seconds]:
    """How long it takes, by each throughput that is known."""
    like = [rate_of_run(run, f"the last steps of {run}") for run in options.like]
    found = [at_rate(work, rate, options.price) for rate in [*options.rates, *like]]
    if options.chip:
        most = peak(options.chip.name, recipe.precision, recipe.matmul)
        if most:
            source = f"{options.chip.name} ({options.chip.source}) at an MFU of {options.mfu:.0%}, which is assumed"
            found.append(at_utilization(work, most, options.mfu, source, options.price))
    return [each for each in found if each is not None]


def rate_of_run(run: Path, source: str, most: int = _LAST) -> Rate:
    """What a run has done in a second, in so many of its last steps; `source` says where that is from. Raises
    Failure(66) where it has made none."""
    story = summary_of(run)
    last = story.throughput(most)
    if not story.attempts or not last.samples:
        raise Failure(
            Exit.INPUT_MISSING, f"--like {run}: no step of it is in its ledger", "name a run that has trained"
        )
    world = story.attempts[-1].world
    return Rate(source, world, last.samples_per_second, last.flops_per_second, last.mfu)


def _networks(found: Prediction) -> dict[str, dict[str, int]]:
    return {name: {"parameters": own[0], "trainable": own[1]} for name, own in found.parameters.items()}


def _length(opened: Opened, work: Work) -> dict[str, Any]:
    tokens = opened.scale.tokens and opened.scale.tokens * work.samples
    passes = opened.scale.epoch and work.samples / opened.scale.epoch
    return {
        "steps": work.steps,
        "samples": work.samples,
        "samples_per_step": max(opened.scale.batches.sizes),
        "tokens": tokens,
        "passes": passes or None,
    }


def _flops(
    recipe: Recipe, every: Mapping[int, Prediction], model: float | None, options: PlanOptions
) -> dict[str, Any]:
    """Model FLOPs of a step by the task's formula, and those that were counted, with what is computed again."""
    chip = options.chip
    most = chip and peak(chip.name, recipe.precision, recipe.matmul)
    return {
        "model": model,
        "model_source": "the task's formula",
        "counted": sum(each.flops for each in every.values()) * options.processes // len(every),
        "counted_source": "operations of the trace, all processes alike, with what is computed again",
        "peak": most and most * options.processes,
        "peak_source": chip and chip.source,
        "sent": every[options.rank].sent,
    }


def _memory(recipe: Recipe, found: Prediction, limit: Limit | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "first_step": found.first.to_json(),
        "step": found.later.to_json(),
        "peak": found.peak,
        "taken": taken(recipe, found),
        "how": found.how,
        "micro_batches": found.micro_batches,
    }
    if limit:
        said |= {"limit": limit.bytes, "limit_source": limit.source}
    return said


def _of_stages(recipe: Recipe, every: Mapping[int, Prediction]) -> dict[str, Any]:
    """What each place along a pipeline takes, by its rank, where there are several."""
    if len(every) == 1:
        return {}
    return {"stages": {str(rank): taken(recipe, each) for rank, each in every.items()}}


def _commit(opened: Opened, found: Prediction, state: int) -> dict[str, Any]:
    """`state` is that of all processes, bytes."""
    kept = kept_commits(opened)
    return {
        "bytes": state,
        "written_here": found.written,
        "copied_here": 0 if opened.recipe.checkpoint.blocking else found.copied,
        "beside_networks": in_host_memory(opened.recipe),
        "kept": kept,
        "disk": kept * state,
    }
