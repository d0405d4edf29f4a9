"""`drivetrain status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from drivetrain.cli.options import AsJson

if TYPE_CHECKING:
    from drivetrain.launch.store import Record

Token = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job, or the beginning or end of its name; TARGET:JOB where it was submitted elsewhere."
    ),
]


def tell(record: Record, as_json: bool) -> None:
    """Print how a job stands now, after a command that has changed it."""
    import json

    from drivetrain.launch.job_status import job_status

    typer.echo(json.dumps(job_status(record)) if as_json else f"{record.token}: {record.state.value}")


def status(
    job: Token,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until it has ended.")] = False,
    as_json: AsJson = False,
) -> int:
    """How a job stands, as its engine and its run directory tell."""
    import json

    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.job_status import job_status, status_text
    from drivetrain.launch.jobs import refresh, watched
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit
    from drivetrain.spec.text import printable

    store = JobStore()
    record = found(store, job)
    said = None
    looks = watched(store, record) if watch else [refresh(store, record)]
    for seen in looks:
        now = job_status(seen)
        if now != said:
            typer.echo(json.dumps(now) if as_json else printable(status_text(now), keep="\n"))
            said = now
    return Exit.DONE
