"""A run on one screen: curves, metrics, attempts, and where the time went."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.ledger import telemetry
from drivetrain.ledger.derive import (
    Attempt,
    attempts,
    buckets,
    curve,
    finals,
    goodput,
    left_out,
    lineage,
    scores,
    steps,
)
from drivetrain.ledger.throughput import Throughput, throughput
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.watch.console import amount, duration, printable

_WIDTH, _HEIGHT = 64, 10  # of a curve, in characters
_SPARK = 12  # characters of a metric's small curve
_SHARE = 20  # characters of a whole in the table of time
_RANKS = 3  # that were slowest most often
_LAST = 100  # steps that the newest throughput is taken over


_HEARSAY = (None, Exit.PEER_UNAVAILABLE, Exit.INTERNAL)  # ends of which another process may know better
_CAUSE = 120  # characters of a cause


def summary(run: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The report as plain data. Numbers may be NaN or infinite."""
    history = lineage(records)
    made = steps(history)
    spent = buckets(records)
    return {
        "steps": made[-1]["step"] if made else 0,
        "samples": made[-1]["stop"] if made else 0,
        "losses": {name: float(value) for name, value in made[-1]["losses"].items()} if made else {},
        "metrics": {f"{name}.{metric}": points[-1][1] for (name, metric), points in scores(history).items()},
        "left_out": left_out(history),
        "attempts": [vars(attempt) for attempt in told(run, attempts(records))],
        "seconds": spent,
        "wall_clock": sum(spent.values()),
        "goodput": goodput(records),
        "final": {f"{part}.{name}.{metric}": value for (part, name, metric), (_, value) in finals(history).items()},
        "phases": telemetry.phases(history),
        "memory": telemetry.peaks(history),
        "slowest": telemetry.slowest(history),
        "throughput": {name: rates.to_json() for name, rates in _throughputs(records).items()},
    }


def told(run: Path, found: list[Attempt]) -> list[Attempt]:
    """The attempts, the last one with the first cause, which `exit.json` tells.

    The ledger has only what its writer knew: nothing where that was killed, and the loss of a peer where a peer was.
    """
    path = run / "exit.json"
    try:
        if found and found[-1].code in _HEARSAY and path.stat().st_mtime >= found[-1].started:
            outcome = Outcome.from_json(json.loads(path.read_text()))
            return [*found[:-1], replace(found[-1], code=int(outcome.code), cause=str(outcome.cause))]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nobody has told: the attempt is shown without an end
    return found


def show(console: Console, run: Path, records: Sequence[dict[str, Any]]) -> None:
    """Print the report."""
    history = lineage(records)
    made = steps(history)
    found = told(run, attempts(records))
    _print(console, Text(printable(run.resolve().name), style="bold"))
    if made:
        total = next(record["budget"]["steps"] for record in reversed(history) if record["kind"] == "attempt")
        _print(console, Text(f"step {made[-1]['step']} of {total}  {_pace(made)}"))
        for why, count in left_out(history).items():
            _print(console, Text(f"{count} {'step' if count == 1 else 'steps'} left out: {why}", style="yellow"))
    for name in made[-1]["losses"] if made else ():
        _print(console, Text(f"\ntraining {printable(name)}, the median of the steps under each column", style="dim"))
        _print(console, chart(curve(history, name), width=max(8, min(_WIDTH, console.width - 12))))
    tables = (_metrics(history), _finals(history), _attempts(found), _rates(records), _time(records))
    for table in (*tables, _phases(history), _memory(history)):
        if table.row_count:
            _print(console, Text())
            console.print(table)


def chart(points: Sequence[tuple[int, float]], width: int = _WIDTH, height: int = _HEIGHT) -> Text:
    """A curve in braille dots, two columns and four rows a character, with its ends labelled.

    Values that are not finite have no dot; a line under the chart says how many they are.
    """
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
    before = None
    for column, value in medians.items():
        row = round((high - value) / (high - low) * (4 * height - 1)) if high > low else 2 * height
        between = range(min(row, before + 1), max(row, before - 1) + 1) if before is not None else (row,)
        for dot in between:  # down or up to the neighbour's row, so that the eye sees one line
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        before = row
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    margin = max(len(label) for label in labels)
    lines = [f"{label:>{margin}} │{''.join(map(chr, row))}" for label, row in zip(labels, cells, strict=True)]
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  step {first}" + f"step {last}".rjust(width - 5 - len(str(first))))
    if len(finite) < len(points):
        lines.append(f"{'':>{margin}}  not finite, so not shown: {len(points) - len(finite)} of {len(points)}")
    return Text("\n".join(lines))


_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def spark(values: Sequence[float]) -> str:
    """The newest values as small bars, the lowest one the lowest bar."""
    newest = values[-_SPARK:]
    finite = [value for value in newest if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[round((value - low) * scale)] if math.isfinite(value) else "?" for value in newest)


def _print(console: Console, text: Text) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, overflow="fold")  # a long path in a cause is folded, not cut
    return table


def _row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of texts as they are: a name or a cause may hold what rich takes for markup."""
    table.add_row(*[Text(printable(cell)) for cell in cells], style=style)


def _pace(made: Sequence[dict[str, Any]]) -> str:
    unit = "tokens" if "tokens" in made[-1]["counts"] else "samples"
    units = sum(record["counts"].get(unit, 0) for record in made)
    seconds = sum(record["seconds"] + record["wait"] for record in made)
    told = [f"{made[-1]['stop']} samples"]
    told += [f"{amount(units)} tokens"] if unit == "tokens" else []
    told += [f"{amount(units / seconds)} {unit}/s"] if seconds > 0 else []
    return "  ".join(told)


def _metrics(history: Sequence[dict[str, Any]]) -> Table:
    table = _table("validation set", "metric", "first", "lowest", "highest", "last", "at step", "")
    for (name, metric), points in scores(history).items():
        values = [value for _, value in points]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        numbers = [f"{value:.5g}" for value in (values[0], min(finite), max(finite), values[-1])]
        _row(table, name, metric, *numbers, str(points[-1][0]), spark(values) if len(values) > 1 else "")
    return table


def _finals(history: Sequence[dict[str, Any]]) -> Table:
    table = _table("scored at the end", "of", "metric", "value", "at step")
    for (part, name, metric), (step, value) in finals(history).items():
        _row(table, name, "test" if part == "test" else "full validation", metric, f"{value:.5g}", str(step))
    return table


def _attempts(found: Sequence[Attempt]) -> Table:
    table = _table("attempt", "processes", "steps", "took", "ended")
    for attempt in found:
        ended = "cut off"
        if attempt.code is not None:
            ended = f"{attempt.code} {'done' if attempt.code == Exit.DONE else attempt.cause}"
            ended = ended if len(ended) <= _CAUSE else f"{ended[: _CAUSE - 3]}..."
        elif attempt is found[-1]:
            ended = "not yet, or cut off"
        span = f"{attempt.from_step + 1} to {attempt.to_step}" if attempt.to_step > attempt.from_step else "none"
        _row(table, str(attempt.number), str(attempt.world), span, _span(attempt.ended - attempt.started), ended)
    return table


def _throughputs(records: Sequence[dict[str, Any]]) -> dict[str, Throughput]:
    """The rates of the whole run by the time of its steps and their data, of its last steps, and by wall-clock time."""
    history = lineage(records)
    whole = throughput(history)
    if not whole.seconds:
        return {}
    wall = whole.within(sum(buckets(records).values()))
    return {"steps": whole, "last_steps": throughput(history, _LAST), "wall_clock": wall}


def _rates(records: Sequence[dict[str, Any]]) -> Table:
    names = {"steps": "steps with their data", "last_steps": f"the last {_LAST} of them", "wall_clock": "wall-clock"}
    table = _table("throughput", "samples/s", "tokens/s", "model TFLOP/s", "MFU")
    found = _throughputs(records)
    for name, rates in found.items():
        if name == "last_steps" and rates == found["steps"]:
            continue
        flops, mfu = rates.flops_per_second, rates.mfu
        cells = [amount(rates.samples_per_second), amount(rates.tokens_per_second) if rates.tokens else "-"]
        tera = 0.0 if flops is None else flops / 1e12
        cells += ["-" if flops is None else f"{tera:,.0f}" if tera >= 100 else f"{tera:.3g}"]
        cells += ["-" if mfu is None else f"{mfu:.1%}"]
        _row(table, names[name], *cells)
    return table


def _time(records: Sequence[dict[str, Any]]) -> Table:
    spent = buckets(records)
    whole = sum(spent.values())
    table = _table("time", "", "share", "")
    for name, seconds in spent.items():
        if abs(seconds) >= 0.05 and whole > 0:
            name = "step (goodput)" if name == "step" else name
            _row(table, name, _span(seconds), f"{seconds / whole:.1%}", "█" * round(_SHARE * seconds / whole))
    if whole > 0:
        _row(table, "wall-clock", _span(whole), "100.0%", style="bold")
    return table


def _phases(history: Sequence[dict[str, Any]]) -> Table:
    spent, made = telemetry.phases(history), telemetry.covered(history)
    whole = sum(spent.values())
    table = _table("phase (first rank)", "", "a step", "share", "")
    for name, seconds in spent.items():
        if seconds >= 0.001 * whole:
            share = "█" * round(_SHARE * seconds / whole)
            _row(table, name, _span(seconds), f"{1e3 * seconds / made:.3g} ms", f"{seconds / whole:.1%}", share)
    return table


def _memory(history: Sequence[dict[str, Any]]) -> Table:
    table = _table("memory", "peak of any rank", "slowest ranks")
    ranks = telemetry.slowest(history)
    times = sum(ranks.values())
    often = sorted(ranks, key=lambda rank: -ranks[rank])[:_RANKS]
    slow = ", ".join(f"{rank} ({ranks[rank]} of {times} times)" for rank in often)
    for place, size in telemetry.peaks(history).items():
        _row(table, place, f"{size / 2**20:,.0f} MiB", slow if place == "host" else "")
    return table


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else duration(seconds)
