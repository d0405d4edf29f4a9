"""`drivetrain verify` of runs, as children: asked for once, answered while they go on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from drivetrain.board.answers import Verification
from drivetrain.board.children import Children
from drivetrain.board.runs import Run
from drivetrain.spec.exits import Failure

_LONGEST = 4 * 3600.0  # seconds: every sample and every byte of a commit is looked at


@dataclass
class Verifications:
    """The newest one of each run. It is of the records that were there when it began."""

    children: Children
    _tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    _held: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What holds so far: the newest line of each."""

    def start(self, run: Run) -> None:
        """Begin, unless one is under way."""
        task = self._tasks.get(run.id)
        if task is None or task.done():
            held = self._held[run.id] = {"holds": [], "certificate": None}
            asked = self.children.lines("verify", str(run.folder), "--follow", seconds=_LONGEST, told=held.update)
            self._tasks[run.id] = asyncio.ensure_future(asked)

    def state(self, run: Run) -> Verification:
        """What it has come to: `state` is none, runs, holds or broken, with the parts that hold so far, the certificate
        up to them, and what does not hold."""
        task = self._tasks.get(run.id)
        told: Verification = {"state": "none", "holds": [], "certificate": None, "error": None, "code": None}
        if task is None:
            return told
        held = self._held[run.id]
        told = {**told, "holds": held["holds"], "certificate": held["certificate"]}
        if not task.done():
            return {**told, "state": "runs"}
        try:
            task.result()
            return {**told, "state": "holds"}
        except Failure as failure:
            outcome = failure.outcome
            return {**told, "state": "broken", "error": outcome.cause, "code": int(outcome.code)}
        except asyncio.CancelledError:
            return told
