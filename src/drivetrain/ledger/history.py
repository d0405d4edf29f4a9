"""What an attempt must know of those before it, from one pass over the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """The attempts so far and when the first began (Unix time), the last step of the history that counts, and its
    evaluations' metrics by step."""

    attempts: int = 0
    began: float | None = None
    last_step: int = 0
    evaluations: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    finals: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Names of the sets that were scored since the run was done, by step and by what they are (validation, test)."""

    def add(self, record: dict[str, Any]) -> None:
        """One record further."""
        kind = record["kind"]
        if kind == "attempt":
            self.attempts += 1
            self.began = record["started"] if self.began is None else self.began
            self.last_step = record["from_step"]
            self.evaluations = {step: found for step, found in self.evaluations.items() if step <= self.last_step}
            self.finals = {step: found for step, found in self.finals.items() if step <= self.last_step}
        elif kind == "step":
            self.last_step = record["step"]
        elif kind == "evaluation":
            self.evaluations[record["step"]] = record["metrics"]
        elif kind == "final":
            self.finals.setdefault(record["step"], {}).setdefault(record["part"], []).extend(record["metrics"])

    def evaluated(self, step: int) -> bool:
        """Whether the evaluation of this step is there."""
        return step in self.evaluations

    def scores(self, metric: str) -> dict[int, float]:
        """SET/METRIC by step."""
        name, _, which = metric.partition("/")
        found = ((step, metrics.get(name, {}).get(which)) for step, metrics in list(self.evaluations.items()))
        return {step: float(value) for step, value in found if value is not None}

    def joins(self, records: Sequence[int], step: int) -> bool:
        """Whether the steps in the ledger, with these records' after them, reach `step` without a gap."""
        reached = self.last_step
        for number in sorted(records):
            reached = number if number == reached + 1 else reached
        return reached >= step
