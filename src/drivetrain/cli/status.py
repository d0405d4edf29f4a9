"""`drivetrain status`."""

from __future__ import annotations

from typing import Annotated

import typer

from drivetrain.cli.submit import AsJson

Token = Annotated[str, typer.Argument(metavar="JOB", help="A job, or the beginning or end of its name.")]


def status(
    job: Token,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until it has ended.")] = False,
    as_json: AsJson = False,
) -> int:
    """How a job stands, as its engine and its run directory tell."""
    import json
    import time

    from drivetrain.launch.jobs import patience, refresh
    from drivetrain.launch.standing import standing, told
    from drivetrain.launch.store import Store
    from drivetrain.spec.exits import Exit
    from drivetrain.watch.console import printable

    store = Store()
    record = store.find(job)
    said = None
    while True:
        record = refresh(store, store.again(record))
        now = standing(record)
        if now != said:
            typer.echo(json.dumps(now) if as_json else printable(told(now), keep="\n"))
            said = now
        if not watch or record.state.final:
            return Exit.DONE
        time.sleep(patience(record))
