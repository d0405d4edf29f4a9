"""`drivetrain evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    data: Annotated[str | None, typer.Option(help="Only this validation set.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Score a run's newest commit on its validation sets; nothing is written."""
    import json

    from drivetrain.api import evaluate as evaluate_run

    scores = evaluate_run(run, data)
    if as_json:
        typer.echo(json.dumps({"metrics": scores.metrics, "samples": scores.counts}))
        return
    for name, metrics in scores.metrics.items():
        words = "  ".join(f"{metric} {value:.6g}" for metric, value in metrics.items())
        typer.echo(f"{name}  {words}  ({scores.counts[name]} samples)")
