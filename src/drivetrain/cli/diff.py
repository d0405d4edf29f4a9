"""`drivetrain diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson


def diff(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    other: Annotated[Path | None, typer.Argument(help="Another one; by default today.")] = None,
    data: Annotated[bool, typer.Option(help="Also open today's sources and compare their content.")] = True,
    as_json: AsJson = False,
) -> None:
    """What a run does not share with today's recipe, code, environment and data, or with another run's.

    What the runs came to is for `compare`, the weights of two commits for `checkpoint diff`.
    """
    import json
    import sys

    from rich.console import Console

    from drivetrain.api import diff as compared
    from drivetrain.watch.console import tolerant
    from drivetrain.watch.difference import show

    found = compared(run, other, data=data)
    if as_json:
        typer.echo(json.dumps(found, default=list))
    else:
        show(tolerant(Console(file=sys.stdout)), found)
