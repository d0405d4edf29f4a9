"""Whether a job gets another attempt: pure functions of how its attempts have ended, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from drivetrain.launch.restarts import GiveUp, Retry
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import write_json

FILE = "attempts.json"
PAUSE = 1.0
"""Seconds before an attempt that follows a fruitless one; twice as many before each further one."""
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, kw_only=True)
class JobAttempt:
    """One attempt of a job: `before` and `reached` are the committed steps at its start and its end, None for none."""

    outcome: Outcome
    before: int | None
    reached: int | None
    began: float
    ended: float

    @property
    def fruitful(self) -> bool:
        """Whether something new was committed."""
        return (self.reached or 0) > (self.before or 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"outcome": self.outcome.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobAttempt:
        """The attempt that `to_json` described."""
        return cls(**{**data, "outcome": Outcome.from_json(data["outcome"])})


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """All attempts of a job so far.

    `state` is running, requeued or ended; `since` the first one that counts since its user last asked for another;
    `open` when the one under way began, in Unix seconds, and what was committed then.
    """

    state: str = "running"
    attempts: tuple[JobAttempt, ...] = ()
    since: int = 0
    open: tuple[float, int | None] | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How the job has ended; None while it has not."""
        if self.attempts and self.state == "ended":
            return self.attempts[-1].outcome
        return None


def asked(outcome: Outcome) -> bool:
    """Whether the run was told to stop by its user: then it stays stopped."""
    return outcome.code is Exit.STOPPED and outcome.where.get("stop") == "asked"


def lost(outcome: Outcome) -> bool:
    """Whether nobody could say what went wrong but that somebody was gone: as where a machine is lost."""
    return outcome.code is Exit.PEER_UNAVAILABLE or outcome.where.get("class") == "unsaid"


def worth_again(outcome: Outcome) -> bool:
    """Whether another attempt may end better: the codes with * in docs/exit-codes.md, and processes that were killed;
    but not what the user asked for, nor what wants more memory."""
    if asked(outcome) or outcome.where.get("class") == "oom":
        return False
    return outcome.code.retryable or "signal" in outcome.where or outcome.where.get("class") == "unsaid"


def following(history: Sequence[JobAttempt], retries: int, fruitless: int) -> Retry | GiveUp:
    """What follows the last of these attempts: another one, or the outcome that stays.

    There are at most `retries` further attempts in all, and at most `fruitless` in a row without a new commit.
    """
    last = history[-1].outcome
    if not worth_again(last):
        return GiveUp(last)
    in_vain = len(list(takewhile(lambda attempt: not attempt.fruitful, reversed(history))))
    if in_vain >= fruitless:
        return _given_up(history, f"{in_vain} attempts in a row without a new commit")
    if len(history) > retries:
        return _given_up(history, f"{retries} retries are used up")
    if in_vain == 0:
        return Retry(0.0)
    return Retry(min(LONGEST_PAUSE, PAUSE * 2 ** (in_vain - 1)))


def exit_code(outcome: Outcome) -> int:
    """What a process tells an engine that only sees exit codes: 69 for what was killed and is worth another attempt, 0
    for a run that its user stopped."""
    if asked(outcome):
        return Exit.DONE
    # What a signal has ended is 70, which an engine that only sees codes would never start again.
    if worth_again(outcome) and not outcome.code.retryable:
        return Exit.PEER_UNAVAILABLE
    return outcome.code


def read(folder: Path) -> Attempts:
    """The attempts that a job's folder has; none where nothing can be read."""
    try:
        told = json.loads((folder / FILE).read_text())
        listed = tuple(map(JobAttempt.from_json, told["attempts"]))
        began = None
        if told["open"]:
            began = (told["open"][0], told["open"][1])
        return Attempts(state=told["state"], attempts=listed, since=told["since"], open=began)
    except (OSError, ValueError, KeyError, TypeError):
        return Attempts()


def write(folder: Path, attempts: Attempts) -> None:
    """Keep the attempts in the job's folder."""
    listed = [attempt.to_json() for attempt in attempts.attempts]
    told = {"state": attempts.state, "attempts": listed, "since": attempts.since, "open": attempts.open}
    write_json(folder / FILE, told)


def _given_up(history: Sequence[JobAttempt], why: str) -> GiveUp:
    last = history[-1].outcome
    cause = f"{why}; the last end: {int(last.code)} {last.cause}"
    hint = "mend what ends it, then `drivetrain requeue`"
    if last.code is Exit.STOPPED:
        hint = last.hint
    # Without what `worth_again` goes by, or the job's exit code would ask its engine for another attempt.
    where = {key: value for key, value in last.where.items() if key not in ("signal", "class")}
    return GiveUp(replace(last, code=Exit.INTERNAL, cause=cause, hint=hint, where=where))
