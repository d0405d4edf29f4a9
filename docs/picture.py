"""Draws the rooms of the package and who imports whom, as docs/architecture.svg: `make picture`.

An arrow that follows from others is left out: run imports loop, and also what loop imports. A room stands just below
the lowest room that uses it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp

PACKAGE = "drivetrain"
ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"

BOX, HEIGHT = 224, 60
COLUMN, ROW, MARGIN = 250, 104, 16
SWEEPS = 8
STYLE = """
  text { font: 12px system-ui, sans-serif; text-anchor: middle; fill: #444 }
  .name { font-weight: 600; font-size: 15px; fill: #111 }
  rect { fill: #f4f6fa; stroke: #5b6b8c; stroke-width: 1.3 }
  .light { stroke-dasharray: 5 3 }
  path { fill: none; stroke: #5b6b8c; stroke-width: 1.3; marker-end: url(#arrow) }
  marker path { fill: #5b6b8c; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #c3c9d4 } .name { fill: #fff }
    rect { fill: #232a36; stroke: #93a4c8 } path { stroke: #93a4c8 } marker path { fill: #93a4c8 }
  }
"""

Rooms = Mapping[str, frozenset[str]]
"""The rooms that each room imports from."""


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture())


def picture() -> str:
    """The picture as SVG: the same for the same imports."""
    graph = grimp.build_graph(PACKAGE, include_external_packages=True, cache_dir=None)
    uses = rooms(graph)
    return draw(uses, {room: purpose(room) for room in uses}, {room for room in uses if imports_torch(graph, room)})


def rooms(graph: grimp.ImportGraph) -> Rooms:
    """Who imports whom, type checking and imports within functions included."""
    found = {child.split(".")[1] for child in graph.find_children(PACKAGE)} - {"__main__"}
    uses = {}
    for room in sorted(found):
        imported = {other.split(".")[1] for module in modules(graph, room) for other in own_imports(graph, module)}
        uses[room] = frozenset(imported & found - {room})
    return uses


def modules(graph: grimp.ImportGraph, room: str) -> set[str]:
    """All modules of a room."""
    return {f"{PACKAGE}.{room}"} | graph.find_descendants(f"{PACKAGE}.{room}")


def own_imports(graph: grimp.ImportGraph, module: str) -> list[str]:
    """What a module imports of the package itself."""
    return [name for name in graph.find_modules_directly_imported_by(module) if name.startswith(f"{PACKAGE}.")]


def imports_torch(graph: grimp.ImportGraph, room: str) -> bool:
    """Whether a module of this room imports torch itself."""
    return any("torch" in graph.find_modules_directly_imported_by(module) for module in modules(graph, room))


def purpose(room: str) -> str:
    """What a room is for: its docstring up to the first point, colon or semicolon."""
    folder = ROOT / "src" / PACKAGE
    path = folder / room / "__init__.py"
    source = path if path.exists() else folder / f"{room}.py"
    sentence = ast.get_docstring(ast.parse(source.read_text())) or ""
    for mark in ".:;":
        sentence = sentence.partition(mark)[0]
    return sentence


def reachable(uses: Rooms, room: str) -> set[str]:
    """All rooms that a room imports from, directly or not."""
    found = set(uses[room])
    for other in uses[room]:
        found |= reachable(uses, other)
    return found


def needed(uses: Rooms) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    arrows = []
    for room, imported in uses.items():
        behind = {far for other in imported for far in reachable(uses, other)}
        arrows += [(room, other) for other in sorted(imported - behind)]
    return arrows


def levels(uses: Rooms) -> dict[str, int]:
    """Each room's row from above: below all that use it, and as near to them as arrows allow."""
    height = {room: depth(uses, room) for room in uses}
    users = {room: [user for user in uses if room in uses[user]] for room in uses}
    row: dict[str, int] = {}
    for room in sorted(uses, key=lambda room: -height[room]):
        lowest = max((row[user] for user in users[room]), default=-1)
        row[room] = lowest + 1 if users[room] else max(height.values()) - height[room]
    return row


def depth(uses: Rooms, room: str) -> int:
    """How many rooms stand below a room, one on the other."""
    return 1 + max((depth(uses, other) for other in uses[room]), default=-1)


def routed(arrows: Iterable[tuple[str, str]], row: Mapping[str, int]) -> list[list[str]]:
    """Each arrow as a chain of places, one a row: rooms at its ends, and bends `a>b@row` between them."""
    return [[a, *(f"{a}>{b}@{between}" for between in range(row[a] + 1, row[b])), b] for a, b in arrows]


def arranged(chains: Sequence[Sequence[str]], row: Mapping[str, int]) -> dict[str, float]:
    """Where each place stands in its row, in columns: near to what it is connected with (the barycentre method)."""
    place_row = dict(row) | {place: int(place.partition("@")[2]) for chain in chains for place in chain[1:-1]}
    rows: list[list[str]] = [[] for _ in range(1 + max(row.values()))]
    for place in sorted(place_row):
        rows[place_row[place]].append(place)
    near: dict[str, list[str]] = {place: [] for place in place_row}
    for chain in chains:
        for upper, lower in pairwise(chain):
            near[upper].append(lower)
            near[lower].append(upper)
    at: dict[str, float] = {}
    for places in rows:
        spread(places, at)
    for _ in range(SWEEPS):
        for places in (*rows, *reversed(rows)):
            places.sort(key=lambda place: (barycentre(near[place], at, at[place]), place))
            spread(places, at)
    return at


def barycentre(neighbours: Sequence[str], at: Mapping[str, float], own: float) -> float:
    """The mean place of the neighbours; its own where there are none."""
    return sum(at[other] for other in neighbours) / len(neighbours) if neighbours else own


def spread(places: Sequence[str], at: dict[str, float]) -> None:
    """Put these side by side, in their order, around the middle."""
    for number, place in enumerate(places):
        at[place] = number - (len(places) - 1) / 2


def draw(uses: Rooms, purposes: Mapping[str, str], heavy: set[str]) -> str:
    """The SVG: dashed rooms do not import torch."""
    row = levels(uses)
    chains = routed(needed(uses), row)
    at = arranged(chains, row)
    left = min(at.values())
    width = 2 * MARGIN + BOX + COLUMN * (max(at.values()) - left)
    height = 2 * MARGIN + HEIGHT + ROW * max(row.values()) + 28

    def middle(place: str) -> tuple[float, float]:
        number = row[place] if place in row else int(place.partition("@")[2])
        return MARGIN + BOX / 2 + COLUMN * (at[place] - left), MARGIN + HEIGHT / 2 + ROW * number

    lines = [arrow([middle(place) for place in chain]) for chain in chains]
    boxes = [box(room, purposes[room], *middle(room), light=room not in heavy) for room in sorted(uses)]
    note = "An arrow: imports from. Arrows that follow from others are left out. Dashed: does not import torch itself."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *lines,
            *boxes,
            f'<text x="{width / 2:g}" y="{height - MARGIN:g}">{note}</text>',
            "</svg>",
            "",
        ]
    )


def arrow(points: Sequence[tuple[float, float]]) -> str:
    """A curve from the lower edge of the first place, past the bends, to the upper edge of the last."""
    (x, y), *rest = points
    path = [f"M{x:g} {y + HEIGHT / 2:g}"]
    y += HEIGHT / 2
    for number, (to_x, center) in enumerate(rest, start=1):
        last = number == len(rest)
        to_y = center - HEIGHT / 2
        half = (y + to_y) / 2
        path.append(f"C{x:g} {half:g} {to_x:g} {half:g} {to_x:g} {to_y:g}")
        if not last:
            path.append(f"V{center + HEIGHT / 2:g}")
        x, y = to_x, center + HEIGHT / 2
    return f'<path d="{" ".join(path)}"/>'


def box(room: str, words: str, x: float, y: float, *, light: bool) -> str:
    """A room with its name and what it is for."""
    kind = ' class="light"' if light else ""
    texts = [f'<text class="name" x="{x:g}" y="{y - 10:g}">{escape(room)}</text>']
    for number, line in enumerate(textwrap.wrap(words, 33)[:2]):
        texts.append(f'<text x="{x:g}" y="{y + 8 + 15 * number:g}">{escape(line)}</text>')
    corner = f'x="{x - BOX / 2:g}" y="{y - HEIGHT / 2:g}" width="{BOX}" height="{HEIGHT}" rx="6"'
    return f"<rect{kind} {corner}/>" + "".join(texts)


if __name__ == "__main__":
    main()
