"""`drivetrain jobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from drivetrain.cli.submit import AsJson, Targets

_LONGEST = 60  # characters of an engine's error in the table; `status JOB` has it whole


def jobs(
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="Those that this target's engine has, from anywhere.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    look: Annotated[bool, typer.Option(help="Ask the engines how they stand.")] = True,
    targets: Targets = None,
    as_json: AsJson = False,
) -> int:
    """The jobs that were submitted from here, or that a target's engine has."""
    import json

    from rich.console import Console
    from rich.table import Table

    from drivetrain.launch.job_status import job_status, listing
    from drivetrain.launch.jobs import refresh
    from drivetrain.launch.store import JobStore
    from drivetrain.launch.targets.config import build, settings_of
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.text import printable

    rows = []
    store = JobStore() if to is None else None
    for path in store.damaged() if store else ():
        typer.echo(printable(f"{path} is damaged, and its job is not shown"), err=True)
    for record in store.all() if store else ():
        if record.state.final and not every:
            continue
        said = ""
        if store and look:
            try:
                record = refresh(store, record)
            except Failure as failure:
                said = failure.outcome.cause
        rows.append(job_status(record) | ({"unreachable": said} if said else {}))
    for one in build(settings_of(to, {}, targets)).listed() if to is not None else ():
        if every or not one.seen.state.final:
            rows.append(listing(to or "", one))
    if as_json:
        typer.echo(json.dumps(rows))
        return Exit.DONE
    table = Table(box=None)
    longest = max((len(row["job"]) for row in rows), default=0)
    table.add_column("job", min_width=longest)  # never cut: it is what other commands are given
    for name in ("target", "state", "engine", "step", "run"):
        table.add_column(name)
    for row in rows:
        cells = (row["job"], row["target"], row["state"], _short(row.get("unreachable") or row["native_state"]))
        table.add_row(*(printable(str(cell)) for cell in (*cells, row["progress"], row["run"])))
    Console().print(table if rows else "no jobs" if every else "no jobs that have not ended; --all has the others")
    return Exit.DONE


def _short(text: str) -> str:
    """The beginning of a text's first line."""
    line = next(iter(text.splitlines()), "")
    return line if line == text and len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
