"""A run's networks on new input."""

from __future__ import annotations

from pathlib import Path

from drivetrain.run.finished import Weights, restored
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.folders import Converted, Report, convert, find_sounds
from drivetrain.tasks.speech.recipe import Speech


def infer_speech(
    run: Path, source: Path, to: Path, commit: str | None, weights: Weights | None, report: Report
) -> Converted:
    """Send a folder of recordings through a run's denoiser. Raises Failure(64) where the run has none."""
    sounds = find_sounds(source)
    recipe, _, networks, _ = restored(run, commit, weights)
    if not isinstance(recipe.task, Speech):
        kind = recipe.task.kind
        raise Failure(Exit.BAD_COMMAND, f"{run} is a run of task {kind}, not of speech", "name another run")
    return convert(networks["model"].eval(), recipe.task.model, sounds, source, to, report)
