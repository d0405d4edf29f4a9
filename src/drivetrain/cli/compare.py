"""`drivetrain compare`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson


class Places(str, Enum):
    """What runs are laid side by side along."""

    step = "step"
    samples = "samples"
    tokens = "tokens"
    seconds = "seconds"


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two run directories or more.")],
    by: Annotated[Places, typer.Option("--by", help="Seconds are those of steps and their data.")] = Places.step,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it too: a file.png or a file.svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Runs side by side: recipes, metrics, losses at equal steps, samples, tokens or seconds, and what it took.

    Their code, environment and data are for `diff`, the weights of two commits for `checkpoint diff`.
    """
    import json

    from rich.console import Console

    from drivetrain.ledger.fields import plain
    from drivetrain.watch.compare import comparison, gather, show
    from drivetrain.watch.console import tolerant
    from drivetrain.watch.plot import draw, panels, require_plot

    # Before the ledgers, which may take a while to read.
    if plot:
        require_plot(plot)
    gathered = gather(runs, by.value)
    if plot:
        stories = {name: run.story for name, run in gathered.items()}
        draw(plot, " and ".join(gathered), panels(stories, by.value))
    found = comparison(gathered, by.value)
    if as_json:
        typer.echo(json.dumps(plain(found), allow_nan=False))
    else:
        show(tolerant(Console()), gathered, found)
