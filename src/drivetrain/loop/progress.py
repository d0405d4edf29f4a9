"""How far a run has come, and when what is due: plain data and pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from drivetrain.spec.amount import Amount, Scale


class Progress(NamedTuple):
    """Steps made, samples consumed, and how often each network has moved."""

    step: int = 0
    position: int = 0
    moves: Mapping[str, int] = MappingProxyType({})

    def after(self, stop: int) -> Progress:
        """One step on, at the position where it ended."""
        return Progress(self.step + 1, stop, self.moves)

    def moved(self, networks: Iterable[str]) -> Progress:
        """These networks have moved once more."""
        moves = dict(self.moves)
        for network in networks:
            moves[network] = moves.get(network, 0) + 1
        return Progress(self.step, self.position, moves)

    def to_json(self) -> dict[str, Any]:
        """For a commit."""
        return {"step": self.step, "position": self.position, "moves": dict(self.moves)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """What `to_json` gave."""
        return cls(values["step"], values["position"], values["moves"])


@dataclass(frozen=True)
class Timetable:
    """When a run ends, in samples and steps, and when it evaluates and commits on the way.

    `commit_evaluated`: every evaluation finds a commit of its step, so that the best one can be kept. `scores_every`
    are the intervals at which schedules read scores.
    """

    total: int
    steps: int
    scale: Scale
    evaluate_every: Amount | None
    commit_every: Amount | None
    commit_evaluated: bool = False
    scores_every: tuple[Amount, ...] = ()

    def evaluation_due(self, now: Progress) -> bool:
        """Whether there is an evaluation after this step. The end of the budget has one."""
        if self._ends(now) or self.due(self.evaluate_every, now):
            return True
        # Rarely any, and every step asks: the sum of such trifles is what a step costs over a bare one.
        return bool(self.scores_every) and any(self.due(every, now) for every in self.scores_every)

    def show_due(self, every: Amount | None, now: Progress) -> bool:
        """Whether something is shown after this step, where that has times of its own. The end of the budget is one."""
        return self._ends(now) or self.due(every, now)

    def commit_due(self, now: Progress) -> bool:
        """Whether there is a commit after this step: also at the end of the budget, and before another batch size."""
        if self.commit_evaluated and self.evaluation_due(now):
            return True
        return self._ends(now) or self.due(self.commit_every, now) or self.scale.batches.changes_after(now.step)

    def _ends(self, now: Progress) -> bool:
        return now.step == self.steps

    def due(self, every: Amount | None, now: Progress) -> bool:
        """Whether a multiple of this amount lies in the step that has just ended."""
        return every is not None and every.is_due(now.step, now.position, self.scale)
