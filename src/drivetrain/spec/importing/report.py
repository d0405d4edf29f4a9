"""What becomes of each key, as it is told to people and to programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from drivetrain.spec.importing.compose import Composed
from drivetrain.spec.importing.findings import FILL_IN, Findings, Told
from drivetrain.spec.text import printable
from drivetrain.spec.tree import dotted


def as_data(findings: Findings, composed: Composed, kind: str, to: str) -> dict[str, Any]:
    """For programs: by key, what was taken, lost, spared; and the places to fill in."""
    gaps = [{"path": dotted(gap.path), "what": gap.what} for gap in composed.gaps]
    found = {"kind": kind, "to": to, "fill_in": gaps}
    found["taken"] = [{**asdict(each), "path": dotted(each.path)} for each in findings.taken]
    found["lost"] = [asdict(told) for told in findings.lost]
    found["spared"] = [asdict(told) for told in findings.spared]
    return found


def as_text(findings: Findings, composed: Composed, to: str) -> str:
    """For people: what needs nothing, what has no counterpart, and last what is to be filled in."""
    taken = {each.key for each in findings.taken if each.given}
    lines = [f"{findings.source.name}: {len(taken)} keys are in {to}"]
    lines += _told("needing nothing here", findings.source.name, findings.spared)
    lines += _told("without a counterpart", findings.source.name, findings.lost)
    if composed.gaps:
        lines.append(f"{to}: fill in what says {FILL_IN}:")
        lines += [f"  {dotted(gap.path)}: {gap.what}" for gap in composed.gaps]
    lines.append(f"then run `drivetrain recipe check {to}`")
    return printable("\n".join(lines), keep="\n")


def _told(what: str, file: str, told: Sequence[Told]) -> list[str]:
    if not told:
        return []
    lines = [f"{what} ({len(told)}):"]
    for each in sorted(told, key=lambda each: each.line):
        place = f"{file}:{each.line}" if each.line else "command line"
        lines.append(printable(f"  {place}: {each.key}: {each.why}"))
    return lines
