"""`drivetrain train`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, a file, or a run directory.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as optimizer.lr=1e-3.")
    ] = None,
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
    started = time.time()
    import os
    import shlex
    from contextlib import nullcontext

    from rich.console import Console

    from drivetrain.api import start
    from drivetrain.cli.dry_run import dry_run
    from drivetrain.cli.keys import keys
    from drivetrain.launch.preparation import prepare_job
    from drivetrain.runtime.place import from_environment
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.load import load
    from drivetrain.watch.console import closing

    if resume not in ("auto", "never", "must"):
        raise Failure(Exit.BAD_COMMAND, f"--resume {resume}", "it is auto, never or must")
    if unknown := [part for part in ignore or [] if part != "optimizer"]:
        raise Failure(Exit.BAD_COMMAND, f"--ignore {unknown[0]}", "only the optimizer's state can be ignored")
    if as_json and steps != 0:
        raise Failure(Exit.BAD_COMMAND, "--json without --steps 0", "see `drivetrain report --json`")
    place = from_environment(os.environ)
    leads = place is None or place.rank == 0
    asked = [
        *(overrides or []),
        *([f"launch.processes={place.world if place else processes}"] if place or processes else []),
    ]
    source = Path(recipe).resolve() if replay else Path(recipe)
    if replay and not (source / "ledger.jsonl").is_file():
        raise Failure(Exit.BAD_COMMAND, f"--replay: {recipe} is no run", "name a run directory")
    if run is None and source.is_dir():
        run = source.with_name(f"{source.name}-replay") if replay else source
    if replay and run is not None and run.resolve() == source:
        raise Failure(Exit.BAD_COMMAND, f"--replay into {run} itself", "leave --run out, or name another directory")
    resolved = load(recipe, asked)
    job = prepare_job(
        resolved,
        run=run,
        overrides=asked,
        resume=resume,
        override=override or [],
        ignore=ignore or [],
        strict_environment=strict_env,
        most_steps=steps,
        replay=str(source) if replay else None,
        started=started,
    )
    console = Console(file=sys.stdout)
    for note in resolved.notes if leads and not as_json else ():
        console.print(note, markup=False, highlight=False)
    if steps == 0:
        outcome = dry_run(job, resolved, in_process=place is not None, tells=leads, as_json=as_json)
    else:
        with keys(Path(job.folder), console.print) if place is None else nullcontext():
            outcome = start(job, resolved, console if leads else None, in_process=place is not None)
        if leads:
            with _terminal_may_be_gone():
                closing(console, Path(job.folder), outcome, shlex.join(["drivetrain", *sys.argv[1:]]))
    with _terminal_may_be_gone():
        sys.stdout.flush()
        if outcome.code is not Exit.DONE:
            print(outcome.line(), file=sys.stderr, flush=True)
    if place is not None:
        os._exit(outcome.code)  # gloo's threads sometimes abort the interpreter's own teardown
    return int(outcome.code)


@contextmanager
def _terminal_may_be_gone() -> Iterator[None]:
    """What is said to a terminal that was closed goes nowhere, and is no error."""
    import os

    try:
        yield
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
