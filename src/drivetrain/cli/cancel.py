"""`drivetrain cancel`."""

from __future__ import annotations

import typer

from drivetrain.cli.status import Token
from drivetrain.cli.submit import AsJson


def cancel(job: Token, as_json: AsJson = False) -> int:
    """End a job for good; what it has trained is committed first, if the engine gives it the time."""
    import json

    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.jobs import cancel as end
    from drivetrain.launch.standing import standing
    from drivetrain.launch.store import Store
    from drivetrain.spec.exits import Exit

    store = Store()
    record = end(store, found(store, job))
    typer.echo(json.dumps(standing(record)) if as_json else f"{record.token}: {record.state.value}")
    return Exit.DONE
