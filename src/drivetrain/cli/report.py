"""`drivetrain report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Curves, metrics, attempts, and where the time went."""
    import json

    from rich.console import Console

    from drivetrain.ledger.ledger import plain, read
    from drivetrain.watch.console import tolerant
    from drivetrain.watch.report import show, summary

    records = list(read(run / "ledger.jsonl"))
    if as_json:
        typer.echo(json.dumps(plain(summary(run, records)), allow_nan=False))
    else:
        show(tolerant(Console()), run, records)
