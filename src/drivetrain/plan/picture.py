"""A step's memory from its beginning to its end, drawn as SVG: areas of the kinds on one another. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from drivetrain.plan.memory import KINDS, Bytes, StepMemory, Timeline

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 70, 16, 64, 46
_MOST_POINTS = 400
_COLOURS = ("#4c6ef5", "#f08c00", "#7048e8", "#2f9e44", "#1098ad", "#adb5bd")
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-size: 14px; font-weight: 600; fill: #111 }
  .line { stroke: #8a93a6; stroke-width: 1 } .limit { stroke: #e03131; stroke-width: 1.5; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) { text { fill: #c3c9d4 } .title { fill: #fff } }
"""


@dataclass(frozen=True)
class Curve:
    """What is alive at places of a step that follow each other, and where its phases begin."""

    levels: Sequence[Bytes]
    phases: Sequence[tuple[int, str]]


def of_timeline(timeline: Timeline) -> Curve:
    """A step that was seen whole: of neighbouring events the one at which most is alive."""
    levels, phases, total = [], [], max(1, len(timeline.events))
    for phase, start, stop in timeline.stretches:
        phases.append((len(levels), phase))
        points = max(1, round(_MOST_POINTS * (stop - start) / total))
        levels += _thinned(list(map(tuple, timeline.levels(start, stop))), points)
    return Curve(levels, phases)


def of_windows(memory: StepMemory) -> Curve:
    """A step of which only the largest levels of some parts are known."""
    levels, phases = [], []
    for phase, _, peak in memory.windows:
        if not phases or phases[-1][1] != phase:
            phases.append((len(levels), phase))
        levels += [peak, peak]
    return Curve(levels, phases)


def draw(curve: Curve, title: str, limit: int | None = None) -> str:
    """The picture; a line where `limit` bytes are."""
    top = max(map(sum, curve.levels))
    scale = 1.08 * max(top, limit or 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
        *_areas(curve, scale),
        *_axis(scale),
        *_phases(curve),
        *_legend(),
    ]
    if limit:
        at = _height(limit, scale)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
    return "\n".join([*parts, "</svg>\n"])


def _thinned(levels: Sequence[Bytes], points: int) -> list[Bytes]:
    if len(levels) <= points:
        return list(levels)
    cuts = [round(number * len(levels) / points) for number in range(points + 1)]
    return [max(levels[start:stop], key=sum) for start, stop in pairwise(cuts)]


def _areas(curve: Curve, scale: float) -> Iterator[str]:
    lower = [0] * len(curve.levels)
    for place, colour in enumerate(_COLOURS):
        upper = [low + level[place] for low, level in zip(lower, curve.levels, strict=True)]
        if upper != lower:
            outline = [*_points(upper, scale), *reversed(list(_points(lower, scale)))]
            yield f'<polygon fill="{colour}" points="{" ".join(outline)}"/>'
        lower = upper


def _points(sizes: Sequence[int], scale: float) -> Iterator[str]:
    for number, size in enumerate(sizes):
        yield f"{_across(number, len(sizes))},{_height(size, scale)}"


def _across(number: int, of: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * number / max(1, of - 1), 1)


def _height(size: float, scale: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / scale, 1)


def _axis(scale: float) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>'
    for share in (0.25, 0.5, 0.75, 1.0):
        at = _height(share * scale, scale)
        yield f'<line class="line" x1="{LEFT - 4}" x2="{LEFT}" y1="{at}" y2="{at}"/>'
        yield f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{readable(share * scale)}</text>'


def _phases(curve: Curve) -> Iterator[str]:
    """Where phases begin; names of short ones would lie on each other."""
    last = -100.0
    for start, phase in curve.phases:
        at = _across(start, len(curve.levels))
        yield f'<line class="line" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM + 4}"/>'
        if at - last > 58:
            yield f'<text x="{at + 2}" y="{HEIGHT - BOTTOM + 18}">{escape(phase)}</text>'
            last = at


def _legend() -> Iterator[str]:
    for place, (kind, colour) in enumerate(zip(KINDS, _COLOURS, strict=True)):
        at = LEFT + 124 * place
        yield f'<rect x="{at}" y="32" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{at + 16}" y="42">{kind}</text>'


def readable(size: float) -> str:
    """Bytes for people, in units of 1000."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.4g} {unit}"
    return f"{size / 1e3:,.3g} kB"
