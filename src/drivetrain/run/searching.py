"""Which meshes, micro-batches and activations are worth having: each is traced, for a bounded time."""

from __future__ import annotations

import time
from typing import Any

from drivetrain.plan.flops import peak
from drivetrain.plan.search import Setting, front, settings, tried
from drivetrain.run.planned import PlanOptions
from drivetrain.run.planning import Opened, Prediction, bounds_of, largest, open_plan, predictions, taken, with_setting
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe


def search(recipe: Recipe, options: PlanOptions, seconds: float) -> dict[str, Any]:
    """The settings that no other one beats in both memory and time, by memory; as plain data.

    Time is that of arithmetic and messages one after the other, where a chip is named; else the FLOPs of a process. It
    is a model for comparing settings, and no prediction. Raises Failure: 78 where no setting that was tried fits, 64
    for a time that is none.
    """
    if not seconds > 0:  # also where it is no number
        raise Failure(Exit.BAD_COMMAND, f"--seconds {seconds}: a search takes some", "such as 60")
    opened = open_plan(recipe, options.processes, data=False)
    bounds = bounds_of(opened, options.processes)
    candidates, found, refused = settings(bounds), {}, {}
    until = time.monotonic() + seconds

    def look(setting: Setting) -> None:
        try:
            other = with_setting(opened, setting)
            seen = largest(other.recipe, predictions(other, setting.sizes, rank=options.rank))
        except Failure as failure:
            refused[str(setting)] = failure.outcome.cause
            return
        found[setting] = (taken(other.recipe, seen), _time(opened, seen, options))

    count = tried(candidates, look, lambda: time.monotonic() > until)
    most = options.limit.bytes if options.limit else float("inf")
    fits = {setting: numbers for setting, numbers in found.items() if numbers[0] <= most}
    if not fits:
        cause = f"none of {count} settings fits: {next(iter(refused.values()), 'all take more')}"
        raise Failure(Exit.BAD_RECIPE, cause, "search for longer, or take more processes")
    rows = []
    for setting in front(fits):
        size, duration = fits[setting]
        rows.append({**setting.to_json(), "bytes": size, "time": duration, "overrides": setting.overrides})
    unit = "seconds a step, a model" if options.chip else "FLOPs of a process in a step"
    return {"tried": count, "of": len(candidates), "refused": refused, "unit": unit, "front": rows}


def _time(opened: Opened, seen: Prediction, options: PlanOptions) -> float:
    chip = options.chip
    most = chip and peak(chip.name, opened.recipe.precision, opened.recipe.matmul)
    if not chip or not most:
        return float(seen.flops)
    return seen.flops / (most * options.mfu) + seen.sent / chip.link
