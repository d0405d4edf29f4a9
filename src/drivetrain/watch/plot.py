"""Curves as a picture: PNG or SVG, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drivetrain.ledger.derive import scores
from drivetrain.ledger.run_summary import By, RunSummary
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private
from drivetrain.spec.text import printable
from drivetrain.watch.chart import AXES, columns, placed, points

FORMATS = (".png", ".svg")
"""The endings of a picture's name."""
_PANEL = (8.0, 3.2)  # inches
_COLUMNS = 1000  # of one line: more points are drawn as the median of those in a column, over their spread
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "drivetrain",
    "text.parse_math": False,
    "font.size": 9.0,
    "legend.fontsize": 8.0,
}

_FEW = 30  # points that are marked one by one
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines by name over steps, samples, tokens or seconds of training."""

    title: str
    by: By
    lines: dict[str, Points]


def require_plot(path: Path) -> None:
    """Raises Failure(64) for a name that ends in no format, 66 where matplotlib is missing."""
    if path.suffix not in FORMATS:
        raise Failure(Exit.BAD_COMMAND, f"--plot {path}: draws {' or '.join(FORMATS)}", "end its name in one of them")
    if find_spec("matplotlib") is None:
        raise Failure(Exit.INPUT_MISSING, "a picture needs matplotlib", "pip install 'drivetrain[plot]'")


def panels(stories: Mapping[str, RunSummary], by: By = "step") -> list[Panel]:
    """Training losses, metrics of the validation sets and learning rates of runs by name.

    One run's losses share a panel, as do a metric of all sets, and the rates of all networks; of several runs each
    loss, metric of a set and rate has its own, with a line for every run.
    """
    gathered: dict[str, dict[str, Points]] = {}
    for run, story in stories.items():
        for group, name, line in _lines(story, by):
            title, label = group, name
            if len(stories) > 1:
                title, label = f"{group}, {name}", run
            gathered.setdefault(title, {})[label] = line
    return [Panel(title, by, lines) for title, lines in gathered.items()]


def draw(path: Path, title: str, drawn: Sequence[Panel]) -> None:
    """Write the picture, one panel below the other; the same curves are the same bytes with the same matplotlib.

    Raises Failure(74) where the file cannot be written, and what `require_plot` raises.
    """
    require_plot(path)
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _STYLE]):  # not the user's own, which another machine does not have
        figure = Figure(figsize=(_PANEL[0], _PANEL[1] * max(1, len(drawn))), layout="constrained")
        figure.suptitle(printable(title))
        for axes, panel in zip(figure.subplots(max(1, len(drawn)), squeeze=False)[:, 0], drawn, strict=False):
            _draw(axes, panel)
        picture = io.BytesIO()
        # Matplotlib would write the date or its version: the same curves are to be the same bytes.
        undated = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(picture, format=path.suffix[1:], dpi=120, metadata=undated)
    try:
        write_private(path, picture.getvalue())
    except OSError as error:
        raise Failure(Exit.STORAGE, f"the picture cannot be written: {error}", "choose another place") from error


def _lines(story: RunSummary, by: By) -> Iterator[tuple[str, str, Points]]:
    """The group, the name in it and the points of every curve of a run."""
    axis = story.steps.axis(by)
    for name, curve in story.steps.losses.items():
        yield "training loss", name, points(curve, axis)
    for (name, metric), scored in scores(story.records).items():
        yield metric, name, placed(scored, story.steps, axis)
    for name, curve in story.steps.rates.items():
        yield "learning rate", name, points(curve, axis)


def _draw(axes: Any, panel: Panel) -> None:
    """One panel. Values that are not finite leave a gap, and the legend says how many they are."""
    handles, labels = [], []
    for name, line in panel.lines.items():
        finite = [(place, value) for place, value in line if math.isfinite(value)]
        drawn = [(place, value, value, value) for place, value in finite]
        if len(finite) > 2 * _COLUMNS:
            drawn = columns(finite, _COLUMNS)
        places, lows, middles, highs = zip(*drawn, strict=True) if drawn else ((), (), (), ())
        marker = "o" if len(drawn) <= _FEW else ""
        (handle,) = axes.plot(places, middles, marker=marker, markersize=3, linewidth=1)
        if len(drawn) < len(finite):
            axes.fill_between(places, lows, highs, color=handle.get_color(), alpha=0.2, linewidth=0)
        missing = ""
        if len(finite) < len(line):
            missing = f" ({len(line) - len(finite)} not finite)"
        handles.append(handle)
        labels.append(f"\u200b{printable(name)}{missing}")  # matplotlib hides labels that begin with "_"
    axes.set_title(printable(panel.title))
    axes.set_xlabel(AXES[panel.by])
    axes.grid(alpha=0.3)
    axes.legend(handles, labels, loc="upper right")
