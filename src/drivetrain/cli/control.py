"""`drivetrain control`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def control(
    run: Annotated[Path, typer.Argument(help="Run directory, also one that another host trains in.")],
    command: Annotated[
        list[str],
        typer.Argument(
            help="pause | resume | save | evaluate | stop | pin | profile N | set KEY=VALUE; or watch, the live line."
        ),
    ],
    wait: Annotated[float, typer.Option(help="Seconds to wait for the run to do it; 0: only leave it there.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="The ledger's record of it, for programs.")] = False,
) -> int:
    """Tell a run that trains what to do; all its processes do it after the same step, and its ledger keeps it."""
    import json

    from drivetrain.api import control as tell
    from drivetrain.spec.exits import Exit
    from drivetrain.spec.text import printable

    if command == ["watch"]:
        from drivetrain.cli.watch import watch

        return watch(run)
    told = tell(run, *command, wait=wait)
    if as_json:
        typer.echo(json.dumps(told))
    elif "step" in told:
        typer.echo(f"{printable(' '.join(command))}: done after step {told['step']}")
    else:
        typer.echo(f"{printable(' '.join(command))}: left for the run ({told['id']})")
    return Exit.DONE
