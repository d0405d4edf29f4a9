"""The sinks that a recipe asks for."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from drivetrain.spec.custom import check_custom
from drivetrain.watch.console import ConsoleSink, tolerant
from drivetrain.watch.own_sink import OwnSink
from drivetrain.watch.recipe import Watch
from drivetrain.watch.sink import Follower, Sink
from drivetrain.watch.trackers import Tracker, Trackers


def follow(run: Path, settings: Watch, console: Console | None, started: float) -> Follower:
    """Follow a run's ledger with the console (unless there is None) and the recipe's other sinks.

    Raises Failure: 78 where the package of one is missing, and what `check_custom` raises.
    """
    trackers = _trackers(settings)
    sinks: list[Sink] = [ConsoleSink(tolerant(console), started)] if console else []
    if settings.tensorboard:
        from drivetrain.watch.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(run / "tensorboard"))
    if trackers:
        sinks.append(Trackers(run, trackers))
    return Follower(run / "ledger.jsonl", sinks)


def require_sinks(settings: Watch) -> None:
    """Raises Failure: 78 where the package of a sink is missing, and what `check_custom` raises. Nothing is begun."""
    _trackers(settings)
    if settings.tensorboard:
        from drivetrain.watch.tensorboard import TensorBoardSink

        TensorBoardSink(Path())


def _trackers(settings: Watch) -> list[Tracker]:
    """The trackers that a recipe names; their libraries are imported later, by their threads."""
    trackers: list[Tracker] = []
    if settings.wandb:
        from drivetrain.watch.wandb import WandbTracker

        trackers.append(WandbTracker(settings.wandb))
    if settings.mlflow:
        from drivetrain.watch.mlflow import MlflowTracker

        trackers.append(MlflowTracker(settings.mlflow))
    if settings.trackio:
        from drivetrain.watch.trackio import TrackioTracker

        trackers.append(TrackioTracker(settings.trackio))
    for place, custom in enumerate(settings.sinks):
        check_custom(custom)
        trackers.append(OwnSink(custom, place))
    return trackers
