"""What `drivetrain plan --simulate` prints."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

_HEAD = ("processes", "failure", "goodput", "with", "best", "with", "Daly", "lost there to")


def lines(found: dict[str, Any]) -> Iterator[str]:
    """For people: what it follows from, the table, the settings to type, and what is left out."""
    for name, known in found["assumptions"].items():
        yield f"{name:<12}{_number(known['value']):>12}  {known['origin']}"
    yield ""
    yield "{:>9} {:>9} {:>8} {:>18} {:>8} {:>18} {:>8}  {}".format(*_HEAD)
    for size in found["sizes"]:
        yield _row(size)
    yield ""
    yield from _settings(found)
    for what in found["not_modelled"]:
        yield f"not modelled: {what}"


def _row(size: dict[str, Any]) -> str:
    hours, daly, best = size["hours_between_failures"], size["daly"]["interval"], size["best"]
    often = "never" if hours is None else _hours(hours)
    formula = "-" if daly is None else f"{daly:,.0f}"
    asked = size["asked"]
    lost = {name: share for name, share in best["shares"].items() if name != "step" and share >= 0.0005}
    told = ", ".join(f"{name} {share:.1%}" for name, share in sorted(lost.items(), key=lambda one: -one[1]))
    columns = (f"{size['processes']:,}", often, f"{asked['goodput']:.1%}", _setting(asked))
    columns += (f"{best['goodput']:.1%}", _setting(best), formula, told)
    return "{:>9} {:>9} {:>8} {:>18} {:>8} {:>18} {:>8}  {}".format(*columns).rstrip()


def _settings(found: dict[str, Any]) -> Iterator[str]:
    yield "failure: one every so long. with: steps from commit to commit (+ spare machines). Daly: the formula's steps"
    last = found["sizes"][-1]
    best = last["best"]
    told = f"checkpoint.every='{{steps: {best['interval']}}}' checkpoint.keep={best['keep']}"
    spare = f", {best['spares']} spare of {last['nodes']:,} machines" if best["spares"] else ""
    simulated = f"runs one after the other, with {best['simulated']['failures']:,} failures"
    yield f"best on {last['processes']:,} processes: {told}{spare}; simulated: {simulated}"
    yield f"the whole run there: {_hours(last['hours'])}, about {last['failures_in_run']:,.0f} failures"
    if last["failures_in_run"] > 1:
        yield "a job's attempts end with `retries` of its target: it must be larger than that"


def _setting(choice: dict[str, Any]) -> str:
    spares = f" + {choice['spares']}" if choice["spares"] else ""
    return f"every {choice['interval']:,}{spares}"


def _hours(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.0f} d"
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:,.1f} min"


def _number(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{statistics.fmean(value):.4g}"
    return f"{value:.4g}"
