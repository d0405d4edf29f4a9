"""How many commits of a run lie on its disk at a time. Pure functions; no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from drivetrain.checkpoint.retention import Retention, retained
from drivetrain.spec.amount import Amount, Scale


def due_steps(every: Amount | None, total: int, scale: Scale) -> list[int]:
    """The steps of a run of `total` samples in which a multiple of an amount lies, and the last one."""
    last = scale.batches.steps(total)
    steps: set[int] = {last}
    if every is None:
        return [last]
    if every.steps is not None:
        steps.update(range(every.steps, last + 1, every.steps))
    else:
        for number in range(1, every.multiples(last, total, scale) + 1):
            steps.add(_step_of(number, every, last, scale))
    return sorted(steps)


def _step_of(number: int, every: Amount, last: int, scale: Scale) -> int:
    """The first step by which so many multiples lie behind a run."""
    return 1 + bisect_left(range(1, last), number, key=lambda step: every.multiples(step, _after(step, scale), scale))


def _after(step: int, scale: Scale) -> int:
    return scale.batches.samples(step)


def most_kept(steps: Iterable[int], scale: Scale, policy: Retention) -> int:
    """How many commits there are at most, with the one that is being written.

    Which ones score best is not known: as many as are kept for their scores come on top of those that stay anyway.
    """
    kept: dict[int, int] = {}
    most = 0
    for step in steps:
        kept[step] = _after(step, scale)
        most = max(most, len(kept))
        stay = retained(kept, (), {}, policy)
        kept = {each: position for each, position in kept.items() if each in stay}
    return most + policy.best
