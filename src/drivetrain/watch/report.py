"""A run on one screen: curves, metrics, attempts, and where the time went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain.ledger import plans, telemetry
from drivetrain.ledger.code_history import code_stretches, told
from drivetrain.ledger.derive import finals, scores
from drivetrain.ledger.records import Record
from drivetrain.ledger.run_summary import AttemptSummary, RunSummary
from drivetrain.ledger.throughput import Throughput
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.text import printable, shortened
from drivetrain.watch.chart import chart, fitting, points, spark
from drivetrain.watch.console import amount
from drivetrain.watch.table import row, say, span, table
from drivetrain.watch.table import show as show_tables

_SHARE = 20  # characters of a whole in the table of time
_RANKS = 3  # that were slowest most often
_LAST = 100  # steps that the newest throughput is taken over


_HEARSAY = (None, Exit.PEER_UNAVAILABLE, Exit.INTERNAL)  # ends of which another process may know better
_OF_A_ROLLBACK = ("attempt", "step", "to", "why", "samples")
_CAUSE = 120  # characters of a cause


def summary(run: Path, story: RunSummary) -> dict[str, Any]:
    """The report as plain data. Numbers may be NaN or infinite."""
    steps, records, spent = story.steps, story.records, story.seconds
    step, position = (steps.step[-1], steps.stop[-1]) if steps else (0, 0)
    newest, lowest, highest = {}, {}, {}
    for (name, metric), line in scores(records).items():
        newest[f"{name}.{metric}"] = line[-1][1]
        lowest[f"{name}.{metric}"] = _extreme(line, 1)
        highest[f"{name}.{metric}"] = _extreme(line, -1)
    final = {}
    for (part, name, metric), (_, value) in finals(records).items():
        final[f"{part}.{name}.{metric}"] = value
    rollbacks = []
    for made in story.rollbacks:
        fields = made.to_json()
        rollbacks.append({name: fields[name] for name in _OF_A_ROLLBACK})
    return {
        "steps": step,
        "samples": position,
        "losses": steps.newest(),
        "metrics": newest,
        "lowest": lowest,
        "highest": highest,
        "left_out": story.left_out,
        "rollbacks": rollbacks,
        "attempts": list(map(vars, with_first_cause(run, story.attempts))),
        "seconds": spent,
        "wall_clock": sum(spent.values()),
        "goodput": story.goodput,
        "final": final,
        "phases": telemetry.phases(records),
        "memory": telemetry.peaks(records),
        "held": telemetry.held(records),
        "slowest": telemetry.slowest(records),
        "code": _code(story),
        "plan": _plan(story),
        "throughput": {name: rates.to_json() for name, rates in _throughputs(story).items()},
    }


def _extreme(points: Sequence[tuple[int, float]], sign: int) -> dict[str, float]:
    """The step and value of the lowest score (of the highest where `sign` is -1), the first of equal ones; one that is
    no number is neither where there are others."""
    step, value = min(points, key=lambda point: (math.isnan(point[1]), sign * point[1]))
    return {"step": step, "value": value}


def with_first_cause(run: Path, found: list[AttemptSummary]) -> list[AttemptSummary]:
    """The attempts, the last one with the first cause, which `exit.json` tells.

    The ledger has only what its writer knew: nothing where that was killed, and the loss of a peer where a peer was.
    """
    path = run / "exit.json"
    # One from before the last attempt began tells how an earlier one ended.
    try:
        if found and found[-1].code in _HEARSAY and path.stat().st_mtime >= found[-1].started:
            outcome = Outcome.from_json(json.loads(path.read_text()))
            return [*found[:-1], replace(found[-1], code=int(outcome.code), cause=str(outcome.cause))]
    except (OSError, ValueError, KeyError, TypeError):
        # Nobody has told: the attempt is shown without an end.
        pass
    return found


def show(console: Console, run: Path, story: RunSummary) -> None:
    """Print the report."""
    steps, records = story.steps, story.records
    say(console, Text(printable(run.resolve().name), style="bold"))
    if steps:
        say(console, Text(f"step {steps.step[-1]} of {story.budget}  {_pace(story)}"))
        for why, count in story.left_out.items():
            steps_left_out = "1 step" if count == 1 else f"{count} steps"
            say(console, Text(f"{steps_left_out} left out: {why}", style="yellow"))
        for line in _code(story):
            say(console, Text(f"code {printable(line)}"))
        for made in story.rollbacks:
            words = f"step {made.step} undone, back to step {made.to}: {printable(made.why)}"
            say(console, Text(f"{words}; samples left out: {len(made.samples)}", style="yellow"))
    if sizes := telemetry.held(records):
        say(console, Text(state_size(sizes)))
    for name in steps.newest():
        say(console, Text(f"\ntraining {printable(name)}, the median of the steps under each column", style="dim"))
        say(console, chart(points(steps.losses[name], steps.step), fitting(console)))
    ends = _attempts(with_first_cause(run, story.attempts))
    show_tables(
        console,
        [_metrics(records), _finals(records), ends, _rates(story), _time(story), _phases(records), _memory(records)],
    )
    _show_plan(console, _plan(story))


def _code(story: RunSummary) -> list[str]:
    """Which of the user's code made which steps."""
    return told(code_stretches(story.records))


def state_size(held: Mapping[str, int]) -> str:
    """How much optimizers keep, beside AdamW, which keeps two numbers for each one that trains; by bytes of kinds."""
    kept, whole = held.get("optimizers", 0), 2 * held["gradients"]
    words = f"optimizers keep {kept / 2**20:,.1f} MiB"
    if kept < 0.995 * whole:
        words += f", {1 - kept / whole:.1%} less than AdamW's {whole / 2**20:,.1f}"
    return words


def _pace(story: RunSummary) -> str:
    steps = story.steps
    units, unit = sum(steps.samples), "samples"
    told = [f"{steps.stop[-1]} samples"]
    if tokens := sum(steps.tokens):
        units, unit = tokens, "tokens"
        told.append(f"{amount(tokens)} tokens")
    seconds = sum(steps.seconds) + sum(steps.wait)
    if seconds > 0:
        told.append(f"{amount(units / seconds)} {unit}/s")
    return "  ".join(told)


def _metrics(history: Sequence[Record]) -> Table:
    rows = table("validation set", "metric", "first", "lowest", "highest", "last", "at step", "")
    for (name, metric), scored in scores(history).items():
        values = [value for _, value in scored]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        numbers = [f"{value:.5g}" for value in (values[0], min(finite), max(finite), values[-1])]
        bars = spark(values) if len(values) > 1 else ""
        row(rows, name, metric, *numbers, str(scored[-1][0]), bars)
    return rows


def _finals(history: Sequence[Record]) -> Table:
    rows = table("scored at the end", "of", "metric", "value", "at step")
    for (part, name, metric), (step, value) in finals(history).items():
        of = "test" if part == "test" else "full validation"
        row(rows, name, of, metric, f"{value:.5g}", str(step))
    return rows


def _attempts(found: Sequence[AttemptSummary]) -> Table:
    rows = table("attempt", "processes", "steps", "took", "ended")
    for attempt in found:
        ended = "cut off"
        if attempt.code is not None:
            cause = "done" if attempt.code == Exit.DONE else attempt.cause
            ended = shortened(f"{attempt.code} {cause}", _CAUSE)
        elif attempt is found[-1]:
            ended = "not yet, or cut off"
        made = "none"
        if attempt.to_step > attempt.from_step:
            made = f"{attempt.from_step + 1} to {attempt.to_step}"
        row(rows, str(attempt.number), str(attempt.world), made, span(attempt.ended - attempt.started), ended)
    return rows


def _throughputs(story: RunSummary) -> dict[str, Throughput]:
    """The rates of the whole run by the time of its steps and their data, of its last steps, and by wall-clock time."""
    whole = story.throughput()
    if not whole.seconds:
        return {}
    wall = whole.within(sum(story.seconds.values()))
    return {"steps": whole, "last_steps": story.throughput(_LAST), "wall_clock": wall}


def _rates(story: RunSummary) -> Table:
    names = {"steps": "steps with their data", "last_steps": f"the last {_LAST} of them", "wall_clock": "wall-clock"}
    rows = table("throughput", "samples/s", "tokens/s", "model TFLOP/s", "MFU")
    found = _throughputs(story)
    for name, rates in found.items():
        if name == "last_steps" and rates == found["steps"]:
            continue
        tokens = amount(rates.tokens_per_second) if rates.tokens else "-"
        mfu = "-" if rates.mfu is None else f"{rates.mfu:.1%}"
        row(rows, names[name], amount(rates.samples_per_second), tokens, _tera(rates.flops_per_second), mfu)
    return rows


def _tera(flops: float | None) -> str:
    if flops is None:
        return "-"
    tera = flops / 1e12
    return f"{tera:,.0f}" if tera >= 100 else f"{tera:.3g}"


def _time(story: RunSummary) -> Table:
    spent = story.seconds
    whole = sum(spent.values())
    rows = table("time", "", "share", "")
    for name, seconds in spent.items():
        # Also below zero: a clock that was set back shows there, and the shares still add up.
        if abs(seconds) >= 0.05 and whole > 0:
            name = "step (goodput)" if name == "step" else name
            row(rows, name, span(seconds), f"{seconds / whole:.1%}", "█" * round(_SHARE * seconds / whole))
    if whole > 0:
        row(rows, "wall-clock", span(whole), "100.0%", style="bold")
    return rows


def _phases(history: Sequence[Record]) -> Table:
    spent, made = telemetry.phases(history), telemetry.covered(history)
    whole = sum(spent.values())
    rows = table("phase (first rank)", "", "a step", "share", "")
    for name, seconds in spent.items():
        if seconds >= 0.001 * whole:
            share = "█" * round(_SHARE * seconds / whole)
            row(rows, name, span(seconds), f"{1e3 * seconds / made:.3g} ms", f"{seconds / whole:.1%}", share)
    return rows


def _memory(history: Sequence[Record]) -> Table:
    rows = table("memory", "peak of any rank", "slowest ranks")
    ranks = telemetry.slowest(history)
    times = sum(ranks.values())
    often = sorted(ranks, key=lambda rank: -ranks[rank])[:_RANKS]
    slow = ", ".join(f"{rank} ({ranks[rank]} of {times} times)" for rank in often)
    for place, size in telemetry.peaks(history).items():
        row(rows, place, f"{size / 2**20:,.0f} MiB", slow if place == "host" else "")
    return rows


_PLANNED = {
    "memory": "live memory of a step",
    "commit": "rank 0's files of tensors in a commit",
    "disk": "commits on the disk",
}


def _plan(story: RunSummary) -> dict[str, Any]:
    """What was planned beside the run, and what it has come to; `seconds_a_step` is the mean of its last steps."""
    found, seconds = plans.beside(story.records), story.steps.seconds[-_LAST:]
    if found and seconds:
        found["seconds_a_step"] = sum(seconds) / len(seconds)
    return found


def _show_plan(console: Console, found: Mapping[str, Any]) -> None:
    if not found:
        return
    if found["failed"]:
        say(console, Text(f"\nnot planned: {printable(found['failed'])}", style="yellow"))
        return
    rows = table("planned beside the run", "planned", "measured", "which is")
    for name, words in _PLANNED.items():
        one = found["rows"][name]
        row(rows, words, _mebibytes(one["planned"]), _mebibytes(one["measured"]), one["measured_as"])
    show_tables(console, [rows])
    if seconds := found.get("seconds_a_step"):
        rate = _tera(found["flops"] / seconds)
        say(console, Text(f"{found['flops']:.4g} FLOPs a step planned, made in {seconds:.3g} s: {rate} TFLOP/s"))


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.2f} MiB"
