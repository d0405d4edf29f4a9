"""`drivetrain train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import Overrides


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, a file, or a run directory.")],
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option(help="Run directory; by default runs/NAME-DIGEST.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes on this machine.")] = None,
    resume: Annotated[str, typer.Option(help="auto, never or must go on from a commit.")] = "auto",
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Accept a change of this field on resume.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Do not restore this part of the commit: optimizer.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Make so many steps, commit, and stop; 0: a dry run, nothing is written.")
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="RECIPE is a run: make it again, with the commands that it was given."),
    ] = False,
    strict_env: Annotated[
        bool, typer.Option("--strict-env", help="Refuse to resume under another torch, instruction set or code.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What a dry run found, for programs.")] = False,
) -> int:
    """Train a recipe, or go on where its run stopped: the same command does both. At a terminal, single keys pause (p),
    resume (r), save (s), evaluate (e), pin (k) and stop (q) it."""
    # The imports below belong to the start, whose seconds the ledger keeps.
    started = time.time()
    from drivetrain.cli.start import TrainOptions, start_here

    options = TrainOptions(
        recipe=recipe,
        overrides=overrides or [],
        run=run,
        processes=processes,
        resume=resume,
        override=override or [],
        ignore=ignore or [],
        steps=steps,
        replay=replay,
        strict_environment=strict_env,
        as_json=as_json,
        started=started,
    )
    return start_here(options)
