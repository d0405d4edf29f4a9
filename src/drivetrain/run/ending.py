"""How an attempt ends: the loop run, and what it came to, in the ledger and as an outcome."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from drivetrain.engine.exact import refusal
from drivetrain.loop.loop import Loop, LoopEnd
from drivetrain.loop.survivors import save_survivor_state
from drivetrain.run.context import AttemptContext
from drivetrain.runtime.group import Group
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Failure, Outcome


def run_loop(loop: Loop, context: AttemptContext) -> Outcome:
    """Run the loop, and keep in the ledger how it ended. Whatever it raises is raised again."""
    try:
        with loop.observer.watching(loop.state):
            end = loop.run()
        loop.commands.close(loop.step)
    except Exception as error:
        first = error
        if isinstance(error, RuntimeError):
            first = failure_of(error, loop.group) or error
        outcome = first.outcome if isinstance(first, Failure) else internal(first, context.place)
        with suppress(Failure):  # a full disk must not hide why the run ended
            _record_exit(loop, outcome.code, outcome.cause)
        # Before the ledger is waited for: the supervisor ends a survivor soon that does not leave its state.
        if outcome.code == Exit.PEER_UNAVAILABLE and context.job.volatile:
            _save_survivor_state(loop, Path(context.job.volatile))
        with suppress(Failure):
            loop.ledger.sync()
        raise first from error
    outcome = _outcome(loop, end, context.stops)
    _record_exit(loop, outcome.code, outcome.cause)
    loop.ledger.sync()
    return outcome


def _outcome(loop: Loop, end: LoopEnd, stops: StopRequests) -> Outcome:
    """How a loop that raised nothing has ended."""
    step, steps = loop.step, loop.commands.tuning.timetable.steps
    if end.exit is Exit.DONE:
        cause = f"all {steps} steps are made and committed"
        if end.why:
            cause = f"done at step {step} of {steps}: {end.why}"
        return Outcome(code=end.exit, cause=cause, hint="", where={"step": step})
    why = end.why or stops.requested or "a stop request of another rank"
    where: dict[str, Any] = {"step": step}
    # The user's own command, not a signal: a launcher then leaves the run stopped.
    if end.why:
        where["stop"] = "asked"
    hint = "the same command goes on from here"
    return Outcome(code=end.exit, cause=f"{why} at step {step} of {steps}", hint=hint, where=where)


def _record_exit(loop: Loop, code: int, cause: str) -> None:
    loop.ledger.exit(int(code), cause, loop.state.progress)


def failure_of(error: RuntimeError, group: Group) -> Failure | None:
    """The failure that torch's error stands for, where that is known."""
    return group.translate(error) or refusal(error)


def internal(error: BaseException, place: Place) -> Outcome:
    """The outcome of an error that is nobody's contract: its words, and rank, file and line of the innermost frame."""
    where: dict[str, Any] = {"rank": place.rank}
    if frames := traceback.extract_tb(error.__traceback__):
        where |= {"file": frames[-1].filename, "line": frames[-1].lineno}
    cause = f"{type(error).__name__}: {error}"
    return Outcome(code=Exit.INTERNAL, cause=cause, hint="the traceback is above", where=where)


def _save_survivor_state(loop: Loop, folder: Path) -> None:
    """Best effort: what does not succeed costs the steps since the last commit, and nothing else."""
    try:
        save_survivor_state(loop, folder)
    except Exception:
        traceback.print_exc()
