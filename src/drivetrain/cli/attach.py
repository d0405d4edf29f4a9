"""`drivetrain attach`."""

from __future__ import annotations

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token


def attach(job: Token, as_json: AsJson = False) -> int:
    """The live progress of a job whose run directory can be read here. Ctrl-C ends the show, not the job."""
    import json
    import time
    from contextlib import closing, suppress

    from rich.console import Console

    from drivetrain.cli.watch import Newest
    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.jobs import watched
    from drivetrain.launch.store import JobStore
    from drivetrain.ledger.records import Record
    from drivetrain.spec.exits import Exit
    from drivetrain.watch.console import ConsoleSink, tolerant
    from drivetrain.watch.sink import Follower, Sink

    class Plain:
        """Records as they are in the ledger."""

        def record(self, record: Record) -> None:
            typer.echo(json.dumps(record.to_json()))

        def close(self) -> None:
            pass

    store = JobStore()
    record = found(store, job)
    sink: Sink = Plain() if as_json else ConsoleSink(tolerant(Console()), 0.0)
    # The ledger may hold weeks of steps: the show begins with the last seconds.
    newest = Newest(sink, time.time() - 5.0)
    with closing(Follower(record.run / "ledger.jsonl", [newest])), suppress(KeyboardInterrupt):
        for seen in watched(store, record):
            record = seen
    if not as_json:
        typer.echo(f"{record.token}: {record.state.value}")
    return Exit.DONE
