"""`drivetrain checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drivetrain.cli.options import AsJson

if TYPE_CHECKING:
    from drivetrain.checkpoint.inspection import CommitRow

app = typer.Typer(help="List, verify, pin, remove and compare commits.")
Run = Annotated[Path, typer.Argument(help="Run directory.")]
Commit = Annotated[str, typer.Argument(help="A commit's name or step.")]


@app.command("list")
def list_commits(run: Run, as_json: AsJson = False) -> None:
    """The commits of a run, newest first. Only manifests are read: `verify` reads every byte."""
    from drivetrain.checkpoint.inspection import rows

    _show_commits(rows(run, every_byte=False), as_json)


@app.command()
def verify(run: Run, as_json: AsJson = False) -> int:
    """Read every byte of every commit; 65 where one is damaged, 86 where none is whole."""
    from drivetrain.checkpoint.inspection import rows
    from drivetrain.spec.exits import Exit, Failure

    found = rows(run, every_byte=True)
    _show_commits(found, as_json)
    bad = [row.name for row in found if row.damage]
    if found and len(bad) == len(found):
        raise Failure(Exit.NO_VALID_COMMIT, f"none of {len(found)} commits is whole", "restore one from a copy")
    if bad:
        cause = f"{', '.join(bad)} of {len(found)} commits damaged"
        raise Failure(Exit.BAD_DATA, cause, "a run goes on from the others")
    return Exit.DONE


@app.command()
def pin(
    run: Run,
    commit: Commit,
    off: Annotated[bool, typer.Option("--off", help="Take the pin away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a commit for good: rotation leaves it alone, also while the run goes on."""
    from drivetrain.checkpoint.inspection import pin as pin_commit

    _say({"commit": pin_commit(run, commit, off=off), "pinned": not off}, as_json)


@app.command()
def rm(
    run: Run,
    commit: Commit,
    force: Annotated[bool, typer.Option("--force", help="Also a pinned one, or the only whole one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a commit, whole or damaged."""
    from drivetrain.checkpoint.inspection import take_away

    _say({"removed": take_away(run, commit, force=force)}, as_json)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="A run (its newest commit), or a folder in its checkpoints/.")],
    second: Annotated[Path, typer.Argument(help="The same.")],
    as_json: AsJson = False,
) -> None:
    """What two commits do not share: recipe, data, environment, and every tensor whose bits differ.

    Two runs' code is for `drivetrain diff`, their metrics for `drivetrain compare`.
    """
    import json

    from drivetrain.checkpoint.inspection import difference

    found = difference(first, second)
    if as_json:
        typer.echo(json.dumps({"facts": found.metadata, "tensors": found.tensors, "equal": found.equal}, default=str))
        return
    for name, (one, two) in found.metadata.items():
        typer.echo(f"{name}: {one} | {two}")
    for name, how in found.tensors.items():
        typer.echo(f"{name}: {how}")
    typer.echo(f"{found.equal} tensors are the same bit for bit, {len(found.tensors)} differ")


def _show_commits(found: Sequence[CommitRow], as_json: bool) -> None:
    import json
    from dataclasses import asdict
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from drivetrain.spec.text import printable
    from drivetrain.watch.console import tolerant

    if as_json:
        typer.echo(json.dumps([asdict(row) for row in found]))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("commit", "made", "size", "attempt", "pinned"):
        table.add_column(name, no_wrap=True)
    table.add_column("state", overflow="fold", min_width=20)
    for row in found:
        # A damaged commit may have no manifest to tell any of these.
        made = size = ""
        if row.made:
            made = datetime.fromtimestamp(row.made).strftime("%Y-%m-%d %H:%M:%S")
        if row.bytes:
            size = f"{row.bytes / 1e6:.1f} MB"
        state = Text("whole", style="green")
        if row.damage:
            state = Text(printable(row.damage), style="red")
        pinned = "pinned" if row.pinned else ""
        table.add_row(row.name, made, size, str(row.attempt or ""), pinned, state)
    tolerant(Console()).print(table if found else "no commits")


def _say(fields: dict, as_json: bool) -> None:
    import json

    if as_json:
        typer.echo(json.dumps(fields))
    else:
        typer.echo("  ".join(f"{name} {value}" for name, value in fields.items()))
