"""`drivetrain requeue`."""

from __future__ import annotations

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token


def requeue(job: Token, as_json: AsJson = False) -> int:
    """Give a job another attempt, from its last commit. One that has succeeded is left alone."""
    import json

    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.job_status import job_status
    from drivetrain.launch.jobs import requeue as again
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit

    store = JobStore()
    record = again(store, found(store, job))
    if as_json:
        typer.echo(json.dumps(job_status(record)))
    else:
        typer.echo(f"{record.token}: {record.state.value}")
    return Exit.DONE
