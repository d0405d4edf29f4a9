"""How an attempt ends: the loop run, and what it came to, in the ledger and as an outcome."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from drivetrain.engine.exact import refusal
from drivetrain.loop.loop import Loop
from drivetrain.run.wiring import Start
from drivetrain.runtime.group import Group
from drivetrain.runtime.place import Place
from drivetrain.spec.exits import Exit, Failure, Outcome


def run_loop(loop: Loop, start: Start) -> Outcome:
    """Run the loop, and keep in the ledger how it ended. Whatever it raises is raised again."""
    journal = loop.parts.journal
    try:
        with loop.parts.observer.watching(loop):
            code = loop.run()
        loop.parts.control.close(loop.progress.step)
    except Exception as error:
        translated = failure_of(error, loop.parts.group) if isinstance(error, RuntimeError) else None
        first = translated or error
        outcome = first.outcome if isinstance(first, Failure) else internal(first, start.place)
        with suppress(Failure):  # a full disk must not hide why the run ended
            journal.exit(int(outcome.code), outcome.cause, loop.progress.to_json())
        if outcome.code == Exit.PEER_UNAVAILABLE and start.job.volatile:
            _hand_over(loop, Path(start.job.volatile))
        raise first from error
    step, steps = loop.progress.step, loop.parts.timetable.steps
    if code is Exit.DONE:
        cause, hint = f"all {steps} steps are made and committed", ""
        cause = f"done at step {step} of {steps}: {loop.why}" if loop.why else cause
    else:
        why = loop.why or start.stops.requested or "a stop request of another rank"
        cause = f"{why} at step {step} of {steps}"
        hint = "the same command goes on from here"
    journal.exit(int(code), cause, loop.progress.to_json())
    asked = {"stop": "asked"} if code is Exit.STOPPED and loop.why else {}  # a launcher then leaves it stopped
    return Outcome(code=code, cause=cause, hint=hint, where={"step": step} | asked)


def failure_of(error: RuntimeError, group: Group) -> Failure | None:
    """The failure that torch's error stands for, where that is known."""
    return group.translate(error) or refusal(error)


def internal(error: BaseException, place: Place) -> Outcome:
    """The outcome of an error that is nobody's contract: its words, and rank, file and line of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    where = {"rank": place.rank} | ({"file": frames[-1].filename, "line": frames[-1].lineno} if frames else {})
    cause = f"{type(error).__name__}: {error}"
    return Outcome(code=Exit.INTERNAL, cause=cause, hint="the traceback is above", where=where)


def _hand_over(loop: Loop, folder: Path) -> None:
    """Best effort: what does not succeed costs the steps since the last commit, and nothing else."""
    try:
        loop.hand_over(folder)
    except Exception:
        traceback.print_exc()
