"""Curves in the terminal's characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from drivetrain.ledger.run_summary import By, Curve, StepColumns
from drivetrain.watch.console import amount

WIDTH, HEIGHT = 64, 10
"""Of a curve, in characters."""
AXES: dict[By, str] = {
    "step": "step",
    "samples": "samples",
    "tokens": "tokens",
    "seconds": "seconds of steps and their data",
}
"""What is told along a curve."""
_SPARK = 12  # characters of a metric's small curve


def points(curve: Curve, axis: Sequence[float]) -> list[tuple[float, float]]:
    """The curve's (place, value); the axis has the place of every step."""
    return [(axis[row], value) for row, value in zip(curve.rows, curve.values, strict=True)]


def placed(scored: Sequence[tuple[int, float]], steps: StepColumns, axis: Sequence[float]) -> list[tuple[float, float]]:
    """(place, value) of what is told by (step, value); what comes before the first step is at 0."""
    found = []
    for step, value in scored:
        row = steps.row(step)
        found.append((axis[row] if row >= 0 else 0, value))
    return found


def columns(finite: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float, float, float]]:
    """At most this many (place, lowest, median, highest), of points in the order of their places."""
    first, whole = finite[0][0], finite[-1][0] - finite[0][0]
    grouped: dict[int, list[tuple[float, float]]] = {}
    for place, value in finite:
        column = int((place - first) * (count - 1) // whole) if whole > 0 else 0
        grouped.setdefault(column, []).append((place, value))
    found = []
    for group in grouped.values():
        values = sorted(value for _, value in group)
        found.append((group[len(group) // 2][0], values[0], values[len(values) // 2], values[-1]))
    return found


def fitting(console: Console) -> int:
    """The width of a curve that the terminal has room for, beside its labels."""
    return max(8, min(WIDTH, console.width - 12))


def chart(
    points: Sequence[tuple[float, float]],
    width: int = WIDTH,
    height: int = HEIGHT,
    by: By = "step",
    frame: Frame | None = None,
) -> Text:
    """A curve in braille dots, two columns and four rows a character, with its ends labelled.

    `frame` is what part of the plane is drawn: by default the part that the curve takes, where each column has the
    median of its points. Values that are not finite have no dot; a line under the chart says how many they are.
    """
    finite = [(place, value) for place, value in points if math.isfinite(value)]
    if not finite:
        return Text("no finite value")
    frame = frame or framed([points], width)
    cells = [[0x2800] * width for _ in range(height)]
    before = None
    for column, value in frame.medians(finite, width).items():
        row = frame.row(value, height)
        top = bottom = row
        # Down or up to the neighbour's row, so that the eye sees one line.
        if before is not None:
            top, bottom = min(row, before + 1), max(row, before - 1)
        for dot in range(top, bottom + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        before = row
    labels = [f"{frame.high:.4g}", *[""] * (height - 2), f"{frame.low:.4g}"]
    margin = max(map(len, labels))
    lines = []
    for label, row in zip(labels, cells, strict=True):
        lines.append(f"{label:>{margin}} │{''.join(map(chr, row))}")
    lines.append(f"{'':>{margin}} └{'─' * width}")
    first, last = f"{by} {place_of(frame.first, by)}", f"{by} {place_of(frame.last, by)}"
    lines.append(f"{'':>{margin}}  {first}" + last.rjust(width - len(first)))
    if len(finite) < len(points):
        lines.append(f"{'':>{margin}}  not finite, so not shown: {len(points) - len(finite)} of {len(points)}")
    return Text("\n".join(lines))


@dataclass(frozen=True)
class Frame:
    """The part of the plane that a chart shows: from the first to the last place, from the low to the high value."""

    first: float
    last: float
    low: float
    high: float

    def medians(self, finite: Sequence[tuple[float, float]], width: int) -> dict[int, float]:
        """The median of the values under each column of dots, two a character."""
        columns: dict[int, list[float]] = {}
        whole = self.last - self.first
        for place, value in finite:
            column = int((place - self.first) * (2 * width - 1) // whole) if whole > 0 else 0
            columns.setdefault(column, []).append(value)
        return {column: sorted(values)[len(values) // 2] for column, values in columns.items()}

    def row(self, value: float, height: int) -> int:
        """The row of dots of a value, four a character, from the top."""
        spread = self.high - self.low
        if spread <= 0:
            return 2 * height
        return round((self.high - value) / spread * (4 * height - 1))


def framed(curves: Sequence[Sequence[tuple[float, float]]], width: int) -> Frame:
    """The frame that has the medians of all of these curves; one of them has a finite value."""
    shown = []
    for curve in curves:
        if finite := [(place, value) for place, value in curve if math.isfinite(value)]:
            shown.append(finite)
    first = min(finite[0][0] for finite in shown)
    last = max(finite[-1][0] for finite in shown)
    # Columns are the same for all curves, so the medians, and with them the values, follow from the places.
    wide = Frame(first, last, 0.0, 0.0)
    values: list[float] = []
    for finite in shown:
        values += wide.medians(finite, width).values()
    return replace(wide, low=min(values), high=max(values))


def place_of(place: float, by: By) -> str:
    """A place on an axis, for people."""
    if by == "seconds":
        return f"{place:.4g}"
    return str(int(place)) if by == "step" else amount(place)


_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def spark(values: Sequence[float]) -> str:
    """The newest values as small bars, the lowest one the lowest bar."""
    newest = values[-_SPARK:]
    finite = [value for value in newest if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    bars = ""
    for value in newest:
        bars += "▁▂▃▄▅▆▇█"[round((value - low) * scale)] if math.isfinite(value) else "?"
    return bars
