"""`drivetrain board`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def board(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN_OR_FOLDER]...", help="Runs, or folders of runs; else runs/.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0: any that is free.")] = 8642,
    host: Annotated[str, typer.Option(help="Another address than this machine's own.")] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Show, and steer nothing.")] = False,
) -> None:
    """See, compare and steer runs in a browser. It prints the address to open, and runs until Ctrl-C."""
    from drivetrain.board.serve import serve

    serve(folders or [Path("runs")], port=port, host=host, read_only=read_only, say=typer.echo)
