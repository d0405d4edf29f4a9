"""Where a job stands: one state machine for every engine, as pure functions of what was recorded and what is seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class State(str, Enum):
    """Where a job stands.

    submitted: recorded here, and the engine may not know it yet. stopping: asked to end, and not yet gone. requeued:
    waits for another attempt. lost: the engine no longer knows it, and nothing says how it ended.
    """

    SUBMITTED = "submitted"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in _FINAL


_FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One look at a job. `native` is the engine's own word, `attempt` counts from 0, `reason` is what it says beside.

    `code` is the exit code of docs/exit-codes.md where it is known; `began` is when this attempt did, in Unix seconds.
    """

    state: State
    native: str = ""
    attempt: int = 0
    reason: str = ""
    code: int | None = None
    began: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


UNKNOWN = JobStatus(state=State.LOST, native="unknown to the engine")
"""What a target sees of a job that its engine has forgotten, or never had."""


def next_state(before: State, seen: JobStatus, *, cancelled: bool) -> State:
    """The state after a look.

    A cancel is stronger than whatever the engine makes of it: what was cancelled and is not yet gone is stopping, and
    what is gone is cancelled, unless it had succeeded. An engine that forgets a job does not undo how it ended.
    """
    if seen.state is State.LOST and before.final:
        return before
    if not cancelled or seen.state is State.SUCCEEDED:
        return seen.state
    if seen.state.final:
        return State.CANCELLED
    return State.STOPPING
