"""The sinks that a recipe asks for."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from drivetrain.watch.console import ConsoleSink, tolerant
from drivetrain.watch.recipe import Watch
from drivetrain.watch.sink import Follower, Sink


def follow(run: Path, settings: Watch, console: Console | None, started: float) -> Follower:
    """Follow a run's ledger with the console (unless there is None) and the recipe's other sinks."""
    sinks: list[Sink] = [ConsoleSink(tolerant(console), started)] if console else []
    if settings.tensorboard:
        from drivetrain.watch.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(run / "tensorboard"))
    return Follower(run / "ledger.jsonl", sinks)
