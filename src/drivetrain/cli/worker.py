"""`drivetrain worker`: what an engine starts on a node. Users have no need of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_CONDUCTORS = {
    "local": "drivetrain.launch.targets.local:run",
    "slurm": "drivetrain.launch.targets.slurm_allocation:run",
}


def worker(
    file: Annotated[
        Path | None,
        typer.Argument(help="The job's work.json; else the variable DRIVETRAIN_WORK has its content."),
    ] = None,
    conduct: Annotated[
        str | None, typer.Option(metavar="KIND", help="Conduct the whole job, from inside an engine of this kind.")
    ] = None,
) -> int:
    """Do one node's part of a submitted job: what an engine's container or script starts."""
    import os
    import sys

    from drivetrain.api import work
    from drivetrain.launch.attempts import exit_code
    from drivetrain.launch.submission import NodeWork
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.registry import imported

    if conduct is not None:
        if file is None or conduct not in _CONDUCTORS:
            raise Failure(Exit.BAD_COMMAND, f"--conduct {conduct}", "a target's script says it as it should be")
        return imported(_CONDUCTORS[conduct])(file)
    if file is None and "DRIVETRAIN_WORK" not in os.environ:
        raise Failure(Exit.BAD_COMMAND, "no FILE, and no DRIVETRAIN_WORK", "`drivetrain submit` starts jobs")
    if file is not None:
        given = NodeWork.read(file)
    else:
        given = NodeWork.parse(os.environ["DRIVETRAIN_WORK"], "DRIVETRAIN_WORK")
    outcome = work(given, os.environ)
    print(outcome.line(), file=sys.stderr, flush=True)
    return exit_code(outcome)
