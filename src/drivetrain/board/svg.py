"""Curves as one SVG picture, without a script: for where no page of the board is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from drivetrain.board.zoom import OPENS, VOID, Curve
from drivetrain.spec.text import printable

COLOURS = ("#0072b2", "#d55e00", "#007a5e", "#b8508a", "#8a6d00", "#2a7ab0", "#5b4b8a", "#444444")
DASHES = ("", "8 4", "2 3", "8 3 2 3", "14 4", "8 3 2 3 2 3", "1 5")
"""With the colours, as the page has them: they have no common divisor, so that 56 lines can be told apart."""
POINTS = 300
"""Points of a line that its width can show."""
_WIDE, _HIGH, _COLUMNS = 460, 180, 2
_LEFT, _RIGHT, _ABOVE, _BELOW = 62, 12, 24, 20
_LINE = 16
_VALUES = 4  # runs whose newest values stand above a chart
# A ground of its own: a saved notebook is shown light and dark.
_GROUND, _TEXT, _FRAME = "#ffffff", "#333333", "#d0d0d0"


@dataclass(frozen=True)
class Line:
    """A curve of a run, the run's place, which decides what the line looks like, and the newest value that counts."""

    place: int
    curve: Curve
    last: float


def picture(charts: Mapping[str, Sequence[Line]], heads: Sequence[str], by: str) -> str:
    """A chart of each name, two in a row, under a line of text for each run; `by` names the axis."""
    top = _LINE * len(heads) + 8
    rows = -(-len(charts) // _COLUMNS)
    width, height = _WIDE * min(_COLUMNS, max(1, len(charts))), top + _HIGH * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="sans-serif" font-size="11" fill="{_TEXT}">',
        f"<title>{_text('; '.join(heads))}</title>",
        f'<rect width="{width}" height="{height}" fill="{_GROUND}"/>',
    ]
    for place, head in enumerate(heads):
        y = _LINE * place + _LINE - 5
        parts.append(f'<path d="M4 {y}h26" fill="none" {_stroke(place)} stroke-width="2"/>')
        parts.append(f'<text x="36" y="{y + 4}">{_text(head)}</text>')
    for number, (name, lines) in enumerate(charts.items()):
        x, y = _WIDE * (number % _COLUMNS), top + _HIGH * (number // _COLUMNS)
        parts.append(f'<g transform="translate({x} {y})">{"".join(_chart(name, lines, by))}</g>')
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Frame:
    """The ranges of a chart's axes."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Where these lie from the left."""
        share = (values.astype("f8") - self.x[0]) / (self.x[1] - self.x[0] or 1.0)
        return _LEFT + share * (_WIDE - _LEFT - _RIGHT)

    def down(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Where these lie from the top."""
        share = (self.y[1] - values.astype("f8")) / (self.y[1] - self.y[0])
        return _ABOVE + share * (_HIGH - _ABOVE - _BELOW)


def _chart(name: str, lines: Sequence[Line], by: str) -> Iterator[str]:
    drawn = [line for line in lines if len(line.curve.x)]
    values = ", ".join(f"{line.last:.5g}" for line in drawn[:_VALUES])
    values += ", …" if len(drawn) > _VALUES else ""
    yield f'<text x="{_LEFT}" y="16"><tspan font-weight="bold">{_text(name)}</tspan> {values}</text>'
    if not drawn:
        yield f'<text x="{_LEFT}" y="{_HIGH // 2}">no values yet</text>'
        return
    frame = _frame(drawn)
    right, bottom = _WIDE - _RIGHT, _HIGH - _BELOW
    yield f'<path d="M{_LEFT} {_ABOVE}V{bottom}H{right}" fill="none" stroke="{_FRAME}"/>'
    for value, y in ((frame.y[1], _ABOVE + 9), (frame.y[0], bottom)):
        yield f'<text x="{_LEFT - 5}" y="{y}" text-anchor="end">{value:.4g}</text>'
    yield f'<text x="{_LEFT}" y="{_HIGH - 6}">{frame.x[0]:.6g}</text>'
    yield f'<text x="{right}" y="{_HIGH - 6}" text-anchor="end">{_text(by)} {frame.x[1]:.6g}</text>'
    for line in drawn:
        for part, void in _stretches(line.curve):
            yield from _drawn(frame, part, line.place, void)


def _frame(lines: Sequence[Line]) -> _Frame:
    """As far as the extremes go: a band never leaves its chart."""
    curves = [line.curve for line in lines]
    low = min(float(np.min(curve.low)) for curve in curves)
    high = max(float(np.max(curve.high)) for curve in curves)
    # A flat line fills no chart: what rounding makes of it would look like a curve.
    least = max(abs(low), abs(high), 1e-30) * 1e-3
    if high - low < least:
        middle = (high + low) / 2
        low, high = middle - least / 2, middle + least / 2
    x = np.concatenate([curve.x for curve in curves])
    return _Frame((float(x.min()), float(x.max())), (low, high))


def _stretches(curve: Curve) -> Iterator[tuple[Curve, bool]]:
    """Parts that are drawn in one stroke, and whether they were made again or rolled back; the rest, which is one line
    across all restarts, comes last."""
    void = curve.flags & VOID != 0
    begins = np.union1d([0], np.flatnonzero(curve.flags & OPENS))
    begins = np.union1d(begins, np.flatnonzero(np.diff(void)) + 1)
    for begin, end in pairwise([*map(int, begins), len(curve.x)]):
        if void[begin]:
            yield _part(curve, np.arange(begin, end)), True
    if not void.all():
        yield _part(curve, np.flatnonzero(~void)), False


def _part(curve: Curve, rows: NDArray[np.int64]) -> Curve:
    return Curve(curve.x[rows], curve.low[rows], curve.high[rows], curve.mean[rows], curve.flags[rows], curve.exact)


def _drawn(frame: _Frame, part: Curve, place: int, void: bool) -> Iterator[str]:
    """The mean over a band of extremes, which has an outline: a spike of one step is thinner than a pixel."""
    colour, faint = COLOURS[place % len(COLOURS)], ' opacity=".35"' if void else ""
    x = frame.across(part.x)
    if not part.exact:
        edge = _points(np.concatenate([x, x[::-1]]), frame.down(np.concatenate([part.high, part.low[::-1]])))
        yield (
            f'<polygon points="{edge}" fill="{colour}" fill-opacity=".2" stroke="{colour}" stroke-opacity=".6" '
            f'stroke-width=".7"{faint}/>'
        )
    points = _points(x, frame.down(part.mean))
    if len(x) == 1:
        # A line of one point is not seen.
        yield f'<polyline points="{points} {points}" stroke="{colour}" stroke-width="5" stroke-linecap="round"{faint}/>'
        return
    yield f'<polyline points="{points}" fill="none" {_stroke(place)} stroke-width="1.4" stroke-linecap="round"{faint}/>'


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    return " ".join(f"{across:.1f},{down:.1f}" for across, down in zip(x.tolist(), y.tolist(), strict=True))


def _stroke(place: int) -> str:
    dash = DASHES[place % len(DASHES)]
    return f'stroke="{COLOURS[place % len(COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _text(text: str) -> str:
    """Whatever a user or a run has written, as text of an XML document."""
    return escape(printable(text))
