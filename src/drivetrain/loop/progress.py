"""How far a run has come, and when what is due: plain data and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.spec.amount import Amount, Scale


@dataclass(frozen=True)
class Progress:
    """Steps made, samples consumed, and how often each network has moved."""

    step: int = 0
    position: int = 0
    moves: Mapping[str, int] = field(default_factory=dict)

    def after(self, stop: int, moved: list[str]) -> Progress:
        """One step on, at the position where it ended."""
        moves = dict(self.moves)
        for network in moved:
            moves[network] = moves.get(network, 0) + 1
        return Progress(self.step + 1, stop, moves)

    def to_json(self) -> dict[str, Any]:
        """For a commit."""
        return {"step": self.step, "position": self.position, "moves": dict(self.moves)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """What `to_json` gave."""
        return cls(values["step"], values["position"], values["moves"])


@dataclass(frozen=True)
class Timetable:
    """When a run ends, in samples and steps, and when it evaluates and commits on the way."""

    total: int
    steps: int
    scale: Scale
    evaluate_every: Amount | None
    commit_every: Amount | None

    def evaluation_due(self, before: Progress, now: Progress) -> bool:
        """Whether the step from `before` to `now` ends at an evaluation. The end of the budget is one."""
        return now.step == self.steps or self._due(self.evaluate_every, before, now)

    def owes_evaluation(self, now: Progress) -> bool:
        """Whether a run that resumes here should have an evaluation of this step."""
        return now.step > 0 and self.evaluation_due(self._before(now), now)

    def owes_commit(self, now: Progress) -> bool:
        """Whether a run that resumes here, from what survivors left, should have a commit of this step."""
        return now.step > 0 and self.commit_due(self._before(now), now)

    def commit_due(self, before: Progress, now: Progress) -> bool:
        """Whether the step from `before` to `now` ends at a commit. The end of the budget is one."""
        return now.step == self.steps or self._due(self.commit_every, before, now)

    def _before(self, now: Progress) -> Progress:
        return Progress(now.step - 1, max(0, now.position - self.scale.batch))

    def _due(self, every: Amount | None, before: Progress, now: Progress) -> bool:
        return every is not None and every.due(before.position, now.position, self.scale)
