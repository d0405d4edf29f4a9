"""`drivetrain submit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drivetrain.cli.options import AsJson, Overrides

if TYPE_CHECKING:
    from drivetrain.launch.store import Record
    from drivetrain.launch.targets.target import Request

Targets = Annotated[
    Path | None,
    typer.Option(help="File of targets; else $DRIVETRAIN_TARGETS or ~/.config/drivetrain/targets.yaml."),
]


def submit(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, a file, or a run directory.")],
    overrides: Overrides = None,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="`drivetrain targets` lists them.")] = "local",
    run: Annotated[
        str | None,
        typer.Option(help="Run directory that all nodes see, or a mirror's URL; else below the target's `runs`."),
    ] = None,
    resume: Annotated[str, typer.Option(help="auto, never or must go on from a commit.")] = "auto",
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Accept a change of this field on resume.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the native request.")] = False,
    targets: Targets = None,
    as_json: AsJson = False,
) -> int:
    """Have a recipe trained somewhere else. The same command again, while the job has not ended, is the same job."""
    import json
    import time

    from drivetrain.cli.checks import require_resume
    from drivetrain.launch import jobs
    from drivetrain.launch.job import StartOptions
    from drivetrain.launch.preparation import plan
    from drivetrain.launch.store import JobStore
    from drivetrain.launch.targets.config import build, settings_of
    from drivetrain.spec.exits import Exit
    from drivetrain.spec.load import load

    require_resume(resume)
    if run is None and Path(recipe).is_dir():
        run = str(Path(recipe))
    own = load(recipe, overrides or [], whole=False).recipe.launch.targets  # the target says how many processes
    settings = settings_of(to, own, targets)
    options = StartOptions(resume=resume, override=override or [], started=time.time())
    job = plan(recipe, overrides or [], to, settings, run=run, options=options)
    # Rendered also where it is sent: what the engine would refuse is refused before anything is written.
    requests = build(settings).render(job)
    if dry_run:
        _show_requests(requests, as_json)
        return Exit.DONE
    record, new = jobs.submit(JobStore(), job, recipe)
    differs = not new and record.differs(job)
    if not as_json:
        _show_submitted(record, to, new=new, differs=differs)
        return Exit.DONE
    told = {"job": record.token, "native": record.native, "run": str(record.run), "new": new, "differs": differs}
    typer.echo(json.dumps(told))
    return Exit.DONE


def _show_requests(requests: Sequence[Request], as_json: bool) -> None:
    """What the engine would be sent."""
    import json

    from drivetrain.spec.text import printable

    if as_json:
        typer.echo(json.dumps([{"what": one.what, "body": one.body} for one in requests]))
        return
    for one in requests:
        typer.echo(f"--- {printable(one.what)}\n{printable(one.body, keep=chr(10))}")


def _show_submitted(record: Record, to: str, *, new: bool, differs: bool) -> None:
    from drivetrain.spec.text import printable

    said = "submitted" if new else f"already {record.state.value}"
    typer.echo(f"{record.token}: {said} on {to} as {printable(record.native or '?')}")
    if differs:
        typer.echo("it goes on as it was submitted, and what is asked for now differs: cancel it first")
    typer.echo(f"status: drivetrain status {record.token} --watch")
