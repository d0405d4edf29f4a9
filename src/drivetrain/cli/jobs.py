"""`drivetrain jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.submit import Targets

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

    from drivetrain.launch.job_status import listing
    from drivetrain.launch.targets.config import build, settings_of
    from drivetrain.spec.exits import Exit

    if to is None:
        rows = _from_here(every=every, look=look)
    else:
        rows = []
        for one in build(settings_of(to, {}, targets)).listed():
            if every or not one.seen.state.final:
                rows.append(listing(to, one))
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        _show(rows, every=every)
    return Exit.DONE


def _from_here(*, every: bool, look: bool) -> list[dict[str, Any]]:
    """The jobs of the store, those that have ended too where `every`; an engine that is away is told in its row."""
    from drivetrain.launch.job_status import job_status
    from drivetrain.launch.jobs import refresh
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Failure
    from drivetrain.spec.text import printable

    store = JobStore()
    for path in store.damaged():
        typer.echo(printable(f"{path} is damaged, and its job is not shown"), err=True)
    rows = []
    for record in store.all():
        if record.state.final and not every:
            continue
        said = ""
        if look:
            try:
                record = refresh(store, record)
            except Failure as failure:
                said = failure.outcome.cause
        row = job_status(record)
        if said:
            row["unreachable"] = said
        rows.append(row)
    return rows


def _show(rows: Sequence[Mapping[str, Any]], *, every: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from drivetrain.spec.text import printable

    if not rows:
        none = "no jobs"
        if not every:
            none = "no jobs that have not ended; --all has the others"
        Console().print(none)
        return
    table = Table(box=None)
    # A job's name is never cut: it is what other commands are given.
    table.add_column("job", min_width=max(len(row["job"]) for row in rows))
    for name in ("target", "state", "engine", "step", "run"):
        table.add_column(name)
    for row in rows:
        engine = _short(row.get("unreachable") or row["native_state"])
        cells = (row["job"], row["target"], row["state"], engine, row["progress"], row["run"])
        table.add_row(*[printable(str(cell)) for cell in cells])
    Console().print(table)


def _short(text: str) -> str:
    """The beginning of a text's first line."""
    line = next(iter(text.splitlines()), "")
    if line == text and len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST - 1]}…"
