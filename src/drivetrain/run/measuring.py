"""How fast a recipe trains here: a few steps of it, in a folder that is gone afterwards."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import prepare_job
from drivetrain.launch.supervisor import supervise
from drivetrain.plan.duration import Rate
from drivetrain.run.planned import rate_of_run
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import Resolved, load

STEPS = 20
_LAST = 15
"""Of these: the first ones pay for what is made once."""


def measured_rate(resolved: Resolved) -> Rate:
    """Train the first steps of a recipe on the processes that it asks for here, and tell their rate.

    It evaluates nothing on the way, and neither trackers nor callbacks nor the mirror hear of it. Raises Failure with
    what has ended it early.
    """
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        run = Path(folder) / "run"
        quiet = load(_quiet(resolved.tree), folder=resolved.folder, origins=resolved.places)
        job = prepare_job(quiet, run=run, overrides=(), options=StartOptions(most_steps=STEPS))
        outcome = supervise(replace(job, most_restarts=0, output=str(Path(folder) / "output")))
        if outcome.code not in (Exit.DONE, Exit.STOPPED):
            raise Failure.of(replace(outcome, cause=f"--measure: {outcome.cause}"))
        world = quiet.recipe.launch.processes
        here = "one process" if world == 1 else f"{world} processes"
        return rate_of_run(run, f"--measure: the last {_LAST} of {STEPS} steps on {here} here", _LAST)


def _quiet(tree: dict[str, Any]) -> dict[str, Any]:
    """The recipe without all that does not belong to its steps."""
    changed = {
        "checkpoint": {"every": None, "mirror": None},
        "evaluate": {"every": None},
        "telemetry": {"plan": None},
    }
    quiet = {name: {**tree[name], **settings} for name, settings in changed.items()}
    return {**tree, **quiet, "watch": {}, "callbacks": []}
