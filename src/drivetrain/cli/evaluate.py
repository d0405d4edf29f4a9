"""`drivetrain evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.weights import WEIGHTS, weights_of


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory; or a recipe, with weights to begin with.")],
    data: Annotated[str, typer.Option(help="A set's name; validation, test or all.")] = "validation",
    commit: Annotated[str | None, typer.Option(help="A step or a commit's name; the newest where absent.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Score only so many of each set's first samples.")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    init: Annotated[Path | None, typer.Option(help="A recipe's weights: a run, an export, a safetensors file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a run's commit, or a recipe's initial weights, on validation or test sets; nothing is written."""
    import json

    from drivetrain.api import evaluate as evaluate_run

    scores = evaluate_run(run, data, commit=commit, samples=samples, weights=weights_of(weights), init=init)
    if as_json:
        typer.echo(json.dumps({"metrics": scores.metrics, "samples": scores.counts}))
        return
    for name, metrics in scores.metrics.items():
        words = "  ".join(f"{metric} {value:.6g}" for metric, value in metrics.items())
        words = words or "no metric has gathered anything"
        typer.echo(f"{name}  {words}  ({scores.counts[name]} samples)")
