"""Runs side by side: what their recipes do not share, which came further by which metric, and what that took."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.ledger.derive import scores
from drivetrain.ledger.run_summary import By, RunSummary, summary_of
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.text import printable, shortened
from drivetrain.spec.tree import Path_, dotted, pairs
from drivetrain.watch.chart import AXES, chart, fitting, framed, place_of, placed, points
from drivetrain.watch.console import amount
from drivetrain.watch.report import summary
from drivetrain.watch.table import row, say, span, table
from drivetrain.watch.table import show as show_tables
from drivetrain.watch.tracker_mark import without_secrets

_MARKS = 8  # places at which runs are compared
_HEIGHT = 6  # of a curve, in characters: those of all runs stand below each other
_WIDE = 40  # characters of a recipe's value
_WITHIN = 1e-9  # of a place: sums of the same seconds in another order are the same place

Mode = Literal["min", "max"]
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One of the runs: its folder, what its ledger tells, and its resolved recipe as plain data."""

    folder: Path
    story: RunSummary
    recipe: Mapping[str, Any]

    def losses(self, by: By) -> dict[str, Points]:
        """The curves of the training losses."""
        axis = self.story.steps.axis(by)
        return {name: points(curve, axis) for name, curve in self.story.steps.losses.items()}

    def metrics(self, by: By) -> dict[str, Points]:
        """The curves of SET/METRIC."""
        steps, axis = self.story.steps, self.story.steps.axis(by)
        curves = {}
        for (name, metric), scored in scores(self.story.records).items():
            curves[f"{name}/{metric}"] = placed(scored, steps, axis)
        return curves

    def modes(self) -> dict[str, Mode]:
        """Whether small or large is good, of the metrics of which the recipe says so."""
        found = {}
        for part in (self.recipe["checkpoint"]["keep_best"], self.recipe["stop"]["patience"]):
            if part:
                found[part["metric"]] = part["mode"]
        return found


def gather(folders: Sequence[str | Path], by: By) -> dict[str, Run]:
    """The runs by the shortest names that tell them apart: the folders' own, or their paths as they were given.

    Raises Failure(64) for fewer than two, the same one twice, or tokens where a run counts none; 66 where one is no
    run; 65 or 78 where its recipe cannot be read; 74 where its ledger is damaged.
    """
    paths = list(map(Path, folders))
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise Failure(Exit.BAD_COMMAND, "two different runs or more are compared", "name their directories")
    labels = [path.resolve().name for path in paths]
    if len(set(labels)) < len(labels):
        labels = list(map(str, paths))
    runs = dict(zip(labels, map(_open, paths), strict=True))
    # A run without a step may count tokens in its first one.
    silent = [label for label, run in runs.items() if run.story.steps and not any(run.story.steps.tokens)]
    if by == "tokens" and silent:
        raise Failure(Exit.BAD_COMMAND, f"{', '.join(silent)}: the task counts no tokens", "take --by samples")
    return runs


def comparison(runs: Mapping[str, Run], by: By) -> dict[str, Any]:
    """The comparison as plain data. Numbers may be NaN or infinite.

    `recipe` has the values that differ, by dotted key, of those runs that have the key; `metrics` each run's newest,
    lowest and highest score, and which run is the best where the recipes say what is good; `at_equal` what the runs
    had come to at the same places. `runs` are their reports.
    """
    losses, metrics, recipes, reports = {}, {}, {}, {}
    for label, run in runs.items():
        losses[label] = run.losses(by)
        metrics[label] = run.metrics(by)
        recipes[label] = run.recipe
        reports[label] = summary(run.folder, run.story)
    marks = _marks([run.story.steps.axis(by) for run in runs.values()], by)
    at_marks = {name: _spans(lines, marks) for name, lines in _shared(losses).items()}
    newest = {name: _newest(lines, marks) for name, lines in _shared(metrics).items()}
    return {
        "by": by,
        "recipe": _differences(recipes),
        "metrics": _verdicts(metrics, _modes(list(runs.values()))),
        "at_equal": {"places": marks, "losses": at_marks, "metrics": newest},
        "runs": reports,
    }


def show(console: Console, runs: Mapping[str, Run], found: Mapping[str, Any]) -> None:
    """Print the comparison."""
    by: By = found["by"]
    say(console, Text(" and ".join(map(printable, runs)), style="bold"))
    losses = {label: run.losses(by) for label, run in runs.items()}
    for name, lines in _by_name(losses).items():
        _curves(console, name, lines, by)
    equal = found["at_equal"]
    tables = [
        _recipes(found["recipe"], list(runs)),
        _metadata(found["runs"]),
        _scores(found["metrics"], list(runs)),
        _finals(found["runs"]),
    ]
    for name, lines in equal["losses"].items():
        tables.append(_equal(f"{by}: training {name}", equal["places"], lines, by))
    tables.append(_equally_far(equal["places"], equal["metrics"], list(runs), by))
    show_tables(console, tables)
    unknown = [name for name, metric in found["metrics"].items() if metric["mode"] is None]
    if unknown:
        told = "named alike by no checkpoint.keep_best or stop.patience, so no run is called better"
        say(console, Text(f"\n{', '.join(map(printable, unknown))}: {told}", style="dim"))


def _open(path: Path) -> Run:
    told = summary_of(path)
    return Run(path, told, without_secrets(load(path, whole=False).tree))


def _modes(runs: Sequence[Run]) -> dict[str, Mode]:
    """What is good, of the metrics of which all recipes that say it say the same."""
    told: dict[str, set[Mode]] = {}
    for run in runs:
        for metric, mode in run.modes().items():
            told.setdefault(metric, set()).add(mode)
    agreed = {}
    for metric, modes in told.items():
        if len(modes) == 1:
            (agreed[metric],) = modes
    return agreed


def _differences(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The values that are not the same in all, by dotted key and run."""
    told: dict[str, dict[str, Any]] = {}
    for label, tree in recipes.items():
        for key, value in _leaves(tree):
            told.setdefault(key, {})[label] = value
    return {key: by_run for key, by_run in told.items() if not _alike(by_run, len(recipes))}


def _alike(by_run: Mapping[str, Any], count: int) -> bool:
    if len(by_run) < count:
        return False
    first, *others = by_run.values()
    # 1, 1.0 and true are equal to Python, and not the same in a recipe.
    return all(value == first and type(value) is type(first) for value in others)


def _leaves(tree: Any, path: Path_ = ()) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, (Mapping, list)) or not tree:
        yield dotted(path), tree
        return
    for key, value in pairs(tree):
        yield from _leaves(value, (*path, key))


def _by_name(curves: Mapping[str, Mapping[str, Points]]) -> dict[str, dict[str, Points]]:
    """Curves by run and name as curves by name and run."""
    told: dict[str, dict[str, Points]] = {}
    for label, found in curves.items():
        for name, line in found.items():
            told.setdefault(name, {})[label] = line
    return told


def _shared(curves: Mapping[str, Mapping[str, Points]]) -> dict[str, dict[str, Points]]:
    """Those curves that at least two runs have, by name and run."""
    return {name: lines for name, lines in _by_name(curves).items() if len(lines) > 1}


def _marks(axes: Sequence[Sequence[float]], by: By) -> list[float]:
    """Places in equal distances up to the last one that all runs with a step have reached."""
    last = min((axis[-1] for axis in axes if axis), default=0)
    if last <= 0:
        return []
    if by == "seconds":
        return [last * n / _MARKS for n in range(1, _MARKS + 1)]
    # All else is counted in whole numbers. Short runs have fewer places than there are marks.
    return sorted({int(last) * n // _MARKS for n in range(1, _MARKS + 1)} - {0})


def _spans(lines: Mapping[str, Points], marks: Sequence[float]) -> dict[str, list[float | None]]:
    """The median of what each run has up to a mark and after the one before; None where it has nothing there."""
    told: dict[str, list[float | None]] = {}
    for label, line in lines.items():
        medians: list[float | None] = []
        for begin, end in pairwise([0, *_ends(line, marks)]):
            values = sorted(value for _, value in line[begin:end])
            medians.append(values[len(values) // 2] if values else None)
        told[label] = medians
    return told


def _newest(lines: Mapping[str, Points], marks: Sequence[float]) -> dict[str, list[float | None]]:
    """Each run's newest value at or before a mark; None where there is none yet."""
    told: dict[str, list[float | None]] = {}
    for label, line in lines.items():
        newest: list[float | None] = []
        for end in _ends(line, marks):
            newest.append(line[end - 1][1] if end else None)
        told[label] = newest
    return told


def _ends(line: Points, marks: Sequence[float]) -> list[int]:
    """How many points lie at or before each mark."""
    places = [place for place, _ in line]
    return [bisect_right(places, mark * (1 + _WITHIN)) for mark in marks]


def _verdicts(metrics: Mapping[str, Mapping[str, Points]], modes: Mapping[str, Mode]) -> dict[str, Any]:
    """Of each metric: what is good, each run's scores, and the run with the best one where two have a number."""
    found = {}
    for name, lines in _by_name(metrics).items():
        mode = modes.get(name)
        runs = {label: _extremes(line) for label, line in lines.items()}
        better = _better(runs, mode) if mode else None
        found[name] = {"mode": mode, "better": better, "runs": runs}
    return found


def _extremes(line: Points) -> dict[str, float]:
    finite = [value for _, value in line if math.isfinite(value)] or [math.nan]
    return {"newest": line[-1][1], "lowest": min(finite), "highest": max(finite)}


def _better(runs: Mapping[str, Mapping[str, float]], mode: Mode) -> str | None:
    """The run with the best score; None where it is no other's better."""
    ranked = []
    for label, told in runs.items():
        score = told["lowest"] if mode == "min" else -told["highest"]
        if not math.isnan(score):
            ranked.append((score, label))
    ranked.sort()
    if len(ranked) < 2 or ranked[1][0] <= ranked[0][0]:
        return None
    return ranked[0][1]


def _curves(console: Console, name: str, lines: Mapping[str, Points], by: By) -> None:
    """The curves of one loss below each other, on the same scales."""
    width = fitting(console)
    frame = None
    if any(math.isfinite(value) for _, value in chain.from_iterable(lines.values())):
        frame = framed(list(lines.values()), width)
    say(console, Text(f"\ntraining {printable(name)} by {AXES[by]}", style="dim"))
    for label, line in lines.items():
        say(console, Text(printable(label)))
        say(console, chart(line, width, _HEIGHT, by, frame))


def _recipes(differences: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> Table:
    rows = table("recipe", *labels)
    for key, by_run in differences.items():
        shown = {label: _value(value) for label, value in by_run.items()}
        row(rows, key, *[shown.get(label, "-") for label in labels])
    return rows


def _value(value: Any) -> str:
    text = str(value)
    # As a recipe is written, which is YAML.
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = text.lower()
    return shortened(text, _WIDE)


def _metadata(reports: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = table("run", *reports)
    told = [_told(report) for report in reports.values()]
    for name in dict.fromkeys(chain.from_iterable(told)):
        row(rows, name, *[metadata.get(name, "-") for metadata in told])
    return rows


def _told(report: Mapping[str, Any]) -> dict[str, str]:
    """A run's metadata in words."""
    attempts, rates = report["attempts"], report["throughput"].get("steps", {})
    told = {"steps": str(report["steps"]), "samples": str(report["samples"])}
    for name, value in report["losses"].items():
        told[f"last {name}"] = f"{value:.5g}"
    told["wall-clock"] = span(report["wall_clock"])
    told["goodput"] = f"{report['goodput']:.1%}"
    if report["code"]:
        told["code"] = "; ".join(report["code"])
    told["attempts"] = str(len(attempts))
    told["ended"] = "not yet, or cut off"
    if attempts and attempts[-1]["code"] is not None:
        told["ended"] = Exit(attempts[-1]["code"]).title
    if not rates:
        return told
    told["samples/s"] = amount(rates["samples_per_second"])
    if rates["tokens_per_second"]:
        told["tokens/s"] = amount(rates["tokens_per_second"])
    if rates["mfu"] is not None:
        told["MFU"] = f"{rates['mfu']:.1%}"
    return told


def _scores(metrics: Mapping[str, Any], labels: Sequence[str]) -> Table:
    rows = table("newest (best)", *labels, "better")
    for name, metric in metrics.items():
        cells = [_score(metric["runs"].get(label), metric["mode"]) for label in labels]
        row(rows, name, *cells, metric["better"] or "")
    return rows


def _score(told: Mapping[str, float] | None, mode: Mode | None) -> str:
    if told is None:
        return "-"
    newest = f"{told['newest']:.5g}"
    if mode is None:
        return newest
    best = told["lowest"] if mode == "min" else told["highest"]
    return f"{newest} ({best:.5g})"


def _finals(reports: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = table("scored at the end", *reports)
    finals = [report["final"] for report in reports.values()]
    for name in dict.fromkeys(chain.from_iterable(finals)):
        row(rows, name, *[_number(final.get(name)) for final in finals])
    return rows


def _equal(title: str, marks: Sequence[float], lines: Mapping[str, Sequence[float | None]], by: By) -> Table:
    rows = table(title, *lines)
    for n, mark in enumerate(marks):
        values = [line[n] for line in lines.values()]
        row(rows, place_of(mark, by), *map(_number, values))
    return rows


def _equally_far(
    marks: Sequence[float], metrics: Mapping[str, Mapping[str, Any]], labels: Sequence[str], by: By
) -> Table:
    """The newest score of each run at the last place that all have reached."""
    if not marks:
        return table("", *labels)
    rows = table(f"newest at {by} {place_of(marks[-1], by)}", *labels)
    for name, lines in metrics.items():
        last = {label: line[-1] for label, line in lines.items()}
        row(rows, name, *[_number(last.get(label)) for label in labels])
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
