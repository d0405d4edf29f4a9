"""Tables and lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.spec.text import printable
from drivetrain.watch.console import duration


def say(console: Console, text: Text) -> None:
    """Print a line, or lines, as they are."""
    console.print(text, highlight=False, soft_wrap=True)


def table(*heads: str) -> Table:
    """A table without lines, whose columns have these heads."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        made.add_column(Text(printable(head)), overflow="fold")  # a long path in a cause is folded, not cut
    return made


def row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of texts as they are: a name or a cause may hold what rich takes for markup."""
    table.add_row(*[Text(printable(cell)) for cell in cells], style=style)


def show(console: Console, tables: Sequence[Table]) -> None:
    """Print those that have a row, with a line between."""
    for made in tables:
        if made.row_count:
            say(console, Text())
            console.print(made)


def span(seconds: float) -> str:
    """Seconds, for people."""
    return f"{seconds:.1f} s" if seconds < 600 else duration(seconds)
