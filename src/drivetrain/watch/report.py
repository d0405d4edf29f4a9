"""A run on one screen: curves, metrics, attempts, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.ledger.derive import Attempt, attempts, buckets, curve, goodput, lineage, scores, steps
from drivetrain.spec.exits import Exit
from drivetrain.watch.console import printable

_WIDTH, _HEIGHT = 64, 10  # of a curve, in characters


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The report as plain data."""
    history = lineage(records)
    made = steps(history)
    spent = buckets(records)
    return {
        "steps": made[-1]["step"] if made else 0,
        "samples": made[-1]["stop"] if made else 0,
        "losses": {name: float(value) for name, value in made[-1]["losses"].items()} if made else {},
        "metrics": {f"{name}.{metric}": points[-1][1] for (name, metric), points in scores(history).items()},
        "attempts": [vars(attempt) for attempt in attempts(records)],
        "seconds": spent,
        "wall_clock": sum(spent.values()),
        "goodput": goodput(records),
    }


def show(console: Console, run: Path, records: Sequence[dict[str, Any]]) -> None:
    """Print the report."""
    history = lineage(records)
    made = steps(history)
    console.print(Text(f"{run.name}", style="bold"), highlight=False)
    if made:
        total = next((r["budget"]["steps"] for r in reversed(history) if r["kind"] == "attempt"), 0)
        console.print(f"step {made[-1]['step']} of {total}, {made[-1]['stop']} samples", highlight=False)
    for name in made[-1]["losses"] if made else ():
        console.print()
        console.print(Text(f"training {printable(name)}, median of the steps under each column", style="dim"))
        console.print(chart(curve(history, name)), highlight=False)
    _metrics(console, history)
    _attempts(console, attempts(records))
    _time(console, records)


def chart(points: Sequence[tuple[int, float]], width: int = _WIDTH, height: int = _HEIGHT) -> Text:
    """A curve in braille dots, two columns and four rows a character, with its ends labelled."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if not finite:
        return Text("no finite value")
    columns: dict[int, list[float]] = {}
    first, last = finite[0][0], finite[-1][0]
    for step, value in finite:
        columns.setdefault((step - first) * (2 * width - 1) // max(1, last - first), []).append(value)
    medians = {column: sorted(values)[len(values) // 2] for column, values in columns.items()}
    low, high = min(medians.values()), max(medians.values())
    cells = [[0x2800] * width for _ in range(height)]
    for column, value in medians.items():
        row = round((high - value) / (high - low) * (4 * height - 1)) if high > low else 2 * height
        cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    margin = max(len(label) for label in labels)
    lines = [f"{label:>{margin}} │{''.join(map(chr, row))}" for label, row in zip(labels, cells, strict=True)]
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  step {first}{f'step {last}':>{width - 5 - len(str(first))}}")
    return Text("\n".join(lines))


_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _metrics(console: Console, history: Sequence[dict[str, Any]]) -> None:
    found = scores(history)
    if not found:
        return
    table = Table("validation set", "metric", "first", "best low", "last", "at step", box=None, padding=(0, 2, 0, 0))
    for (name, metric), points in found.items():
        values = [value for _, value in points]
        numbers = [f"{values[0]:.5g}", f"{min(values):.5g}", f"{values[-1]:.5g}", str(points[-1][0])]
        table.add_row(printable(name), printable(metric), *numbers)
    console.print()
    console.print(table)


def _attempts(console: Console, found: Sequence[Attempt]) -> None:
    table = Table("attempt", "processes", "steps", "seconds", "ended", box=None, padding=(0, 2, 0, 0))
    for attempt in found:
        ended = f"{attempt.code} {Exit(attempt.code).title}" if attempt.code is not None else attempt.cause
        span = f"{attempt.from_step + 1} to {attempt.to_step}" if attempt.to_step > attempt.from_step else "none"
        table.add_row(
            str(attempt.number), str(attempt.world), span, f"{attempt.ended - attempt.started:.1f}", printable(ended)
        )
    console.print()
    console.print(table)


def _time(console: Console, records: Sequence[dict[str, Any]]) -> None:
    spent = buckets(records)
    whole = sum(spent.values()) or 1.0
    table = Table("time", "seconds", "share", box=None, padding=(0, 2, 0, 0))
    for name, seconds in spent.items():
        if seconds >= 0.0005:
            table.add_row(name, f"{seconds:.1f}", f"{seconds / whole:.1%}")
    table.add_row("wall-clock", f"{whole:.1f}", "100.0%", style="bold")
    console.print()
    console.print(table)
