"""`drivetrain cancel`."""

from __future__ import annotations

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token


def cancel(job: Token, as_json: AsJson = False) -> int:
    """End a job for good; what it has trained is committed first, if the engine gives it the time."""
    import json

    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.job_status import job_status
    from drivetrain.launch.jobs import cancel as end
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit

    store = JobStore()
    record = end(store, found(store, job))
    if as_json:
        typer.echo(json.dumps(job_status(record)))
    else:
        typer.echo(f"{record.token}: {record.state.value}")
    return Exit.DONE
