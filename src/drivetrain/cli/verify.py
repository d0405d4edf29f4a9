"""`drivetrain verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drivetrain.cli.options import AsJson


def verify(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    data: Annotated[bool, typer.Option(help="Also read the sources again and compare them.")] = True,
    as_json: AsJson = False,
    follow: Annotated[bool, typer.Option(help="With --json: a line for each part once it holds.")] = False,
) -> None:
    """Prove that a run did what its ledger says; name the first thing that does not hold."""
    import json
    import sys

    from rich.console import Console

    from drivetrain.api import verify as verify_run
    from drivetrain.watch.certificate import show
    from drivetrain.watch.console import tolerant

    holds: list[str] = []

    def part_holds(part: str, so_far: dict[str, Any]) -> None:
        holds.append(part)
        typer.echo(json.dumps({"holds": holds, "certificate": so_far}))
        sys.stdout.flush()

    if as_json and follow:
        verify_run(run, data=data, told=part_holds)
        return
    certificate = verify_run(run, data=data)
    if as_json:
        typer.echo(json.dumps(certificate))
    else:
        show(tolerant(Console(file=sys.stdout)), certificate)
