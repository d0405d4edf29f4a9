"""What a process beside the run is asked to plan."""

from __future__ import annotations

from drivetrain.data.stream import StreamSource
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.plan_beside import PlanBeside, PlanRequest
from drivetrain.run.opened import OpenedRun
from drivetrain.run.restored import RestoredRun
from drivetrain.spec.affects import plan_digest
from drivetrain.spec.custom import Custom
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.settings import seconds_of


def plan_beside(opened: OpenedRun, restored: RestoredRun, ledger: LedgerWriter) -> PlanBeside | None:
    """What has this run planned, on the rank that keeps the ledger; None where the recipe wants none, or the ledger has
    the same plan already."""
    context, timetable, lanes = opened.context, restored.timetable, restored.lanes
    recipe, job, sizes = context.recipe, context.job, opened.mesh.sizes
    of = plan_digest(recipe, sizes.there, lanes)
    if recipe.telemetry.plan is None or not opened.group.leader or of in restored.history.planned:
        return None
    content = {
        "recipe": job.recipe,
        "origins": job.origins,
        "modules": job.modules,
        "world": sizes.world,
        "lanes": lanes,
        "epoch": timetable.scale.epoch,
    }
    last = timetable.steps
    if job.most_steps is not None:
        last = min(last, restored.values.progress.step + job.most_steps)
    request = PlanRequest(of, sizes.world, sizes.there, content, _refusal(recipe, opened))
    return PlanBeside(request, seconds_of(recipe.telemetry.plan), last, ledger)


def _refusal(recipe: Recipe, opened: OpenedRun) -> str | None:
    """Why no other process may look at samples, where the plan needs some: to read them twice could change them."""
    if hasattr(recipe.task, "blank_samples"):
        return None
    if any(isinstance(source, StreamSource) for source in opened.inputs.train.values()):
        return "this task is planned by its samples, and these are a stream, which the run alone reads"
    if any(isinstance(source, Custom) for source in recipe.data.train.sources):
        return "this task is planned by its samples, and these come from code of yours, which the run alone calls"
    return None
