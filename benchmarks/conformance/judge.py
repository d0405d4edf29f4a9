"""What a run came to, judged from its witness file and its final weights alone. Pure functions; no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """A whole run, as in `adapters/work.py`: `samples` is the size of an epoch of `steps` steps; `epochs` of them."""

    steps: int = 30
    samples: int = 480
    epochs: int = 2


@dataclass
class Attempt:
    """One start: the samples of each step, by the system's own count of steps, and who took part.

    `pending` holds what a rank has seen and not yet bound to a step: a rank that is killed between the reduction and
    its own note has taken part all the same.
    """

    pids: dict[int, int] = field(default_factory=dict)
    steps: dict[int, list[int]] = field(default_factory=dict)
    pending: dict[int, list[int]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)

    def settle(self) -> None:
        """Bind what is pending to the step that others finished."""
        for rank, ids in self.pending.items():
            step = self.reached.get(rank, min(self.steps, default=1) - 1) + 1
            if step in self.steps:
                self.steps[step].extend(ids)
        self.pending = {}

    @property
    def first(self) -> int | None:
        return min(self.steps, default=None)

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def attempts(witness: str) -> list[Attempt]:
    """The starts in a witness file, in order; one is new where its rank is there already, or steps are."""
    found: list[Attempt] = []
    for line in witness.splitlines():
        pid, rank, what, *values = line.split()
        mine = int(rank)
        if what == "start":
            if not found or mine in found[-1].pids or found[-1].steps:
                found.append(Attempt())
            found[-1].pids[mine] = int(pid)
        elif what == "saw":
            found[-1].pending.setdefault(mine, []).extend(map(int, values))
        else:
            step = int(values[0])
            found[-1].steps.setdefault(step, []).extend(found[-1].pending.pop(mine, []))
            found[-1].reached[mine] = step
    for attempt in found:
        attempt.settle()
    return found


def history(found: list[Attempt]) -> dict[int, Counter[int]]:
    """How often each sample was used in each step of the run that counts: a later attempt replaces what it repeats."""
    steps: dict[int, Counter[int]] = {}
    for attempt in found:
        if attempt.first is not None:
            steps = {step: ids for step, ids in steps.items() if step < attempt.first}
            steps |= {step: Counter(ids) for step, ids in attempt.steps.items()}
    return steps


@dataclass(frozen=True)
class Coverage:
    """Samples of all epochs that were never used, and uses beyond the first."""

    lost: int
    doubled: int


def coverage(steps: dict[int, Counter[int]], shape: Shape = Shape()) -> Coverage:
    """Each sample once in each epoch: what is missing, what is too much. Steps are counted from 1."""
    lost = doubled = 0
    for epoch in range(shape.epochs):
        first = epoch * shape.steps + 1
        used = sum((steps.get(step, Counter()) for step in range(first, first + shape.steps)), Counter())
        lost += shape.samples - len(used)
        doubled += sum(count - 1 for count in used.values())
    return Coverage(lost, doubled)


@dataclass(frozen=True)
class Ended:
    """A run at its end: exit code (None: it did not end in time), final weights if any, what the witness says."""

    code: int | None
    sha256: str | None
    finite: bool
    witness: str


def bits(ended: Ended, expected: Ended) -> str:
    """How a run that was disturbed compares with one that was not."""
    if ended.code is None:
        return "**hangs**"
    if ended.code != 0 or ended.sha256 is None:
        return f"does not go on: exit {ended.code}"
    if not ended.finite:
        return "**weights are NaN**"
    if ended.sha256 == expected.sha256:
        return "same bits"
    mine, theirs = history(attempts(ended.witness)), history(attempts(expected.witness))
    gap = coverage(mine)
    if gap.lost or gap.doubled:
        return f"**{gap.lost} samples lost, {gap.doubled} doubled**"
    return "other bits, same samples" if mine == theirs else "other bits, each sample once, another order"


def repeated(found: list[Attempt]) -> list[int | None]:
    """Steps made again by each attempt after the first; None where it made none."""
    result: list[int | None] = []
    reached = 0
    for index, attempt in enumerate(found):
        if index:
            result.append(None if attempt.first is None else max(0, reached + 1 - attempt.first))
        reached = attempt.last or reached
    return result


def tally(cells: list[str]) -> str:
    """The same fault tried several times: `3 of 3: same bits`."""
    counts = Counter(cells)
    return "; ".join(f"{count} of {len(cells)}: {cell}" for cell, count in counts.most_common())
