"""How a job stands, from its record and, where it can be read here, its run directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drivetrain.launch.rundir import committed
from drivetrain.launch.store import Record
from drivetrain.launch.targets.target import Listed
from drivetrain.ledger.records import StepRecord, parse

_TAIL = 1 << 16  # bytes: a ledger's last steps


def job_status(record: Record) -> dict[str, Any]:
    """Plain data for people and programs."""
    seen = record.seen or {}
    budget = record.work["job"]["recipe"]["budget"].get("steps")
    step, last = _step(record.run / "ledger.jsonl"), committed(record.run)
    progress = "" if step is None else str(step)
    if step is not None and budget:
        progress = f"{step}/{budget}"
    return {
        "job": record.token,
        "target": record.target,
        "kind": record.kind,
        "state": record.state.value,
        "native": record.native,
        "native_state": seen.get("native", ""),
        "reason": seen.get("reason", ""),
        "code": seen.get("code"),
        "attempt": seen.get("attempt", 0),
        "step": step,
        "committed": last,
        "progress": progress,
        "recipe": record.recipe,
        "run": str(record.run),
        "submitted": record.submitted,
        "cancelled": record.cancelled,
        "heard": record.heard,
    }


def listing(target: str, one: Listed) -> dict[str, Any]:
    """The same of a job of which only its engine tells."""
    return {
        "job": one.token,
        "target": target,
        "state": one.seen.state.value,
        "native": one.native,
        "native_state": one.seen.native,
        "reason": one.seen.reason,
        "progress": "",
        "run": "",
    }


def status_text(now: dict[str, Any]) -> str:
    """The same in words."""
    engine = now["native_state"]
    if engine and now["reason"]:
        engine = f"{engine}: {now['reason']}"
    if engine:
        engine = f" ({engine})"
    lines = [f"{now['job']}: {now['state']}{engine}"]
    if now["native"]:
        lines.append(f"  {now['target']} job {now['native']}, attempt {now['attempt']}")
    else:
        lines.append("  never sent")
    if now["step"] is not None:
        lines.append(f"  step {now['progress']}, committed {now['committed']}")
    if now["cancelled"] and not now["heard"]:
        lines.append("  cancelled, which its engine has not heard yet")
    if now["code"]:
        lines.append(f"  exit code {now['code']}")
    return "\n".join([*lines, f"  run {now['run']}"])


def _step(ledger: Path) -> int | None:
    """The last step in a ledger's end; None where there is none to be read."""
    # A ledger of a long run has gigabytes: its end is enough, and its chain is not checked here.
    try:
        with ledger.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            tail = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(tail):
        if line.startswith(b'{"kind":"step"'):
            try:
                record = parse(json.loads(line))
            except ValueError:  # a record under way
                continue
            if isinstance(record, StepRecord):
                return record.step
    return None
