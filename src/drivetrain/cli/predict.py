"""`drivetrain predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.weights import WEIGHTS, weights_of


def predict(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    data: Annotated[str, typer.Option(help="A set of the recipe, or a file, a folder, a pattern, several by commas.")],
    to: Annotated[Path, typer.Option(help="A new file: .jsonl, .csv, .tsv or .parquet.")],
    copy: Annotated[str | None, typer.Option(help="Columns to copy, such as user,item or truth=clicked.")] = None,
    commit: Annotated[str | None, typer.Option(help="A step or a commit's name; the newest where absent.")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many share the work: the file has the same bytes.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Write what a run's commit predicts of each sample of a set or a file, in their order."""
    import json

    from drivetrain.api import predict as predict_run
    from drivetrain.spec.text import printable

    columns = copy.split(",") if copy else ()
    count = predict_run(run, data, to, commit, weights=weights_of(weights), processes=processes, copy=columns)
    if as_json:
        typer.echo(json.dumps({"file": str(to), "samples": count}))
    else:
        typer.echo(f"{printable(str(to))}: {count} samples")
