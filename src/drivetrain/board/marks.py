"""What stands beside curves: where a run began again, committed, scored, skipped or was told something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from drivetrain.board.answers import Mark
from drivetrain.board.index import SKIP, Index
from drivetrain.board.others import KIND, OFFSET, VOIDED
from drivetrain.board.steps import AXES
from drivetrain.ledger import records
from drivetrain.watch.scalars import scalars

MOST = 2000
"""Marks of a kind, the newest."""


def marks(index: Index, most: int = MOST) -> tuple[list[Mark], int]:
    """The marks of a run in the order of its ledger, each with its place on all axes, and how many were left out."""
    found, left_out = [], 0
    with index.lock:
        rows = index.others.rows
        for kind in _TEXTS:
            if kind in index.others.kinds:
                places = np.flatnonzero(rows[:, KIND] == index.others.kinds.index(kind))
                left_out += max(0, len(places) - most)
                found += [_mark(index, kind, int(place)) for place in places[-most:]]
    return sorted(found, key=lambda mark: mark["offset"]), left_out


def _mark(index: Index, kind: str, place: int) -> Mark:
    row = index.others.rows[place]
    offset = int(row[OFFSET])
    step, samples, tokens, seconds, time = map(float, row[: len(AXES)])
    return {
        "kind": kind,
        "step": step,
        "samples": samples,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "time": round(time, 3),
        "text": ", ".join(_TEXTS[kind](index.record(offset))),
        "void": bool(row[VOIDED] == 1),
        "offset": offset,
    }


def _attempt(record: records.AttemptRecord) -> Iterator[str]:
    yield f"attempt {record.attempt} from step {record.from_step}, {record.world} processes"
    if record.after:
        yield f"after: {record.after.get('cause')}"


def _evaluation(record: records.EvaluationRecord) -> Iterator[str]:
    for name, value in scalars(record):
        yield f"{name} {value:.5g}"


def _skip(record: records.StepRecord) -> Iterator[str]:
    for network, why in (record.skipped or {}).items():
        yield f"step {record.step} left out: {network} {why}"


def _command(record: records.CommandRecord) -> Iterator[str]:
    yield f"{record.verb} {record.argument}".strip()
    if record.refused is not None:
        yield f"refused: {record.refused}"


def _rollback(record: records.RollbackRecord) -> Iterator[str]:
    yield f"step {record.step} undone, back to {record.to}: {record.why}"


def _commit(record: records.CommitRecord) -> Iterator[str]:
    yield f"commit {record.name}"


def _miss(record: records.MissRecord) -> Iterator[str]:
    yield f"commit missed: {record.cause}"


def _text(record: records.SpikeRecord | records.NoteRecord) -> Iterator[str]:
    yield record.text


def _exit(record: records.ExitRecord) -> Iterator[str]:
    yield f"ended with {record.code}: {record.cause}"


_TEXTS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "attempt": _attempt,
    "commit": _commit,
    "evaluation": _evaluation,
    SKIP: _skip,
    "spike": _text,
    "rollback": _rollback,
    "command": _command,
    "miss": _miss,
    "note": _text,
    "exit": _exit,
}
"""The kinds that have marks, and what each says."""
