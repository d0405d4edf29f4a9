"""`drivetrain report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson


def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it too: a file.png or a file.svg.")] = None,
    evaluations: Annotated[
        bool, typer.Option("--evaluations", help="Only the evaluations: a JSON object in a line for each.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Curves, metrics, attempts, and where the time went."""
    import json

    from rich.console import Console

    from drivetrain.ledger import derive
    from drivetrain.ledger.fields import plain
    from drivetrain.ledger.run_summary import summary_of
    from drivetrain.watch.console import tolerant
    from drivetrain.watch.plot import draw, panels, require_plot
    from drivetrain.watch.report import show, summary

    if plot:
        require_plot(plot)
    told = summary_of(run)
    if plot:
        draw(plot, run.resolve().name, panels({run.name: told}))
    if evaluations:
        for row in derive.evaluations(told.records):
            typer.echo(json.dumps(plain(row), allow_nan=False))
    elif as_json:
        typer.echo(json.dumps(plain(summary(run, told)), allow_nan=False))
    else:
        show(tolerant(Console()), run, told)
