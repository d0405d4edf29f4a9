"""A run's networks on new input."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from drivetrain.run.finished import Weights, open_finished
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.folders import Converted, Report, convert, find_sounds
from drivetrain.tasks.speech.listener import Listener
from drivetrain.tasks.speech.recipe import Listening


def infer_speech(
    run: Path, source: Path, to: Path, commit: str | None, weights: Weights | None, report: Report
) -> Converted:
    """Send a folder of recordings through a run's networks. Raises Failure(64) where they are not for speech."""
    sounds = find_sounds(source)
    finished = open_finished(run, commit, weights)
    task, networks, settings = finished.task, finished.networks, finished.recipe.task
    if not isinstance(settings, Listening) or not isinstance(task, Listener):
        raise Failure(
            Exit.BAD_COMMAND,
            f"{run} is a run of task {getattr(settings, 'kind', '')}, not of speech",
            "name another run",
        )
    for network in networks.values():
        network.eval()

    def change(sound: Tensor) -> Tensor:
        return task.changed(networks, sound.to(finished.device)).float().cpu()

    return convert(change, settings.model, sounds, source, to, report)
