"""`drivetrain infer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.weights import WEIGHTS, weights_of

app = typer.Typer(help="A run's networks on new input.")


@app.callback()
def infer() -> None:
    """A run's networks on new input."""


@app.command()
def speech(
    source: Annotated[Path, typer.Argument(metavar="IN_DIR", help="A folder of wav and flac files, of any length.")],
    to: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A new or empty folder.")],
    run: Annotated[Path, typer.Option(help="Run directory.")],
    commit: Annotated[str | None, typer.Option(help="A commit's name or step; by default the newest.")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    as_json: AsJson = False,
) -> None:
    """Denoise, copy or enhance recordings: same names, rates, channels, lengths and formats."""
    import json

    from drivetrain.api import infer_speech
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.text import printable

    with _progress(as_json) as report:
        done = infer_speech(run, source, to, commit=commit, weights=weights_of(weights), report=report)
    if as_json:
        failed = {str(path): why for path, why in done.failed.items()}
        typer.echo(json.dumps({"written": list(map(str, done.written)), "failed": failed}))
    else:
        typer.echo(f"{printable(str(to))}: {len(done.written)} of {len(done.written) + len(done.failed)} files")
    if done.failed:
        cause = f"{len(done.failed)} of {len(done.failed) + len(done.written)} files cannot be read"
        failure = Failure(Exit.BAD_DATA, cause, "the others are done; mend these, and give them a folder of their own")
        failure.details = "\n".join(printable(f"{path}: {why}") for path, why in done.failed.items())
        raise failure


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda read, total: None
        return
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)
