"""Which commits stay: pure functions of what is there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.checkpoint.manifest import entries, step_of

PINS = "pins"


@dataclass(frozen=True)
class Retention:
    """How many commits stay: the newest `last`, the first at or after every multiple of `every`, the `best`.

    `every` tells how many multiples of it lie before a step and its position (samples). `sign` is 1 where the smallest
    score is the best one, -1 where the largest is.
    """

    last: int
    every: Callable[[int, int], int] | None = None
    best: int = 0
    sign: int = 1


def retained(
    positions: Mapping[int, int], pinned: Sequence[int], scores: Mapping[int, float], policy: Retention
) -> set[int]:
    """The steps whose commits stay.

    `positions` gives the position (samples) of every verified commit by its step, `scores` the metric of those that
    have one. A score that is no number is never the best.
    """
    newest = sorted(positions, reverse=True)
    stay = set(newest[: policy.last]) | set(pinned)
    if policy.every:
        first: dict[int, int] = {}
        for step in reversed(newest):
            first.setdefault(policy.every(step, positions[step]), step)
        stay |= {step for multiple, step in first.items() if multiple > 0}
    scored = [step for step in newest if step in scores and not math.isnan(scores[step])]
    stay |= set(sorted(scored, key=lambda step: policy.sign * scores[step])[: policy.best])
    return stay & set(positions)


def pinned_steps(run: Path) -> list[int]:
    """The steps whose commits were pinned by hand: each has an empty file in `pins/`."""
    steps = map(step_of, entries(run / PINS))
    return sorted(step for step in steps if step is not None)


def pin(run: Path, name: str) -> None:
    """Have rotation leave the commit of this name alone, also one that is still to come."""
    mark = run / PINS / name
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
