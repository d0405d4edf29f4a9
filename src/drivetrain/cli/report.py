"""`drivetrain report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directory; several with --html.")],
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it too: a file.png or a file.svg.")] = None,
    evaluations: Annotated[
        bool, typer.Option("--evaluations", help="Only the evaluations: a JSON object in a line for each.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="One file with all pages of the board: to mail, to keep."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Curves, metrics, attempts, and where the time went."""
    import json

    from rich.console import Console

    from drivetrain.ledger import derive
    from drivetrain.ledger.fields import plain
    from drivetrain.ledger.run_summary import summary_of
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.watch.console import tolerant
    from drivetrain.watch.plot import draw, panels, require_plot
    from drivetrain.watch.report import show, summary

    if html:
        _write_page(html, runs)
        return
    if len(runs) > 1:
        cause = "one run is reported at a time; several go into one page"
        raise Failure(Exit.BAD_COMMAND, cause, "add --html FILE, or see `drivetrain compare`")
    (run,) = runs
    if plot:
        require_plot(plot)
    told = summary_of(run)
    if plot:
        draw(plot, run.resolve().name, panels({run.name: told}))
    if evaluations:
        for row in derive.evaluations(told.records):
            typer.echo(json.dumps(plain(row), allow_nan=False))
    elif as_json:
        typer.echo(json.dumps(plain(summary(run, told)), allow_nan=False))
    else:
        show(tolerant(Console()), run, told)


def _write_page(to: Path, runs: list[Path]) -> None:
    from drivetrain.board.onefile import one_file
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.files import write_private

    page = one_file(runs).encode()
    try:
        write_private(to, page)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{to} cannot be written: {error}", "choose another file") from error
    typer.echo(f"{to}: {len(page) / 1e3:,.0f} kB")
