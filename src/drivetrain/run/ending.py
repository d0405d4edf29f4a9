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
from drivetrain.runtime import mistakes
from drivetrain.runtime.group import Group
from drivetrain.runtime.place import Place
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.code.blame import own_caller
from drivetrain.spec.exits import Exit, Failure, Outcome


def run_loop(loop: Loop, context: AttemptContext) -> Outcome:
    """Run the loop, and keep in the ledger how it ended. Whatever it raises is raised again."""
    try:
        with loop.observer.watching(loop.state):
            end = loop.run()
        loop.commands.close(loop.step)
    except BaseException as error:
        first = failure_of(error, context, loop.group)
        outcome = first.outcome
        with suppress(Failure):  # a full disk must not hide why the run ended
            _record_exit(loop, outcome.code, outcome.cause)
        # Before the ledger is waited for: the supervisor ends a survivor soon that does not leave its state.
        if outcome.code == Exit.PEER_UNAVAILABLE and context.job.volatile:
            _save_survivor_state(loop, Path(context.job.volatile))
        with suppress(Failure):
            loop.ledger.sync()
        if first is error:
            raise
        raise first from error
    outcome = _outcome(loop, end, context.stops)
    _record_exit(loop, outcome.code, outcome.cause)
    loop.ledger.sync()
    return outcome


def _outcome(loop: Loop, end: LoopEnd, stops: StopRequests) -> Outcome:
    """How a loop that raised nothing has ended."""
    timetable = loop.commands.tuning.timetable
    step, steps = loop.step, timetable.scale.batches.steps(timetable.total)
    if end.exit is Exit.DONE:
        cause = f"all {steps} steps are made and committed"
        if end.why:
            cause = f"done at step {step} of {steps}: {end.why}"
        return Outcome(code=end.exit, cause=cause, hint="", where={"step": step})
    if end.exit is Exit.DIVERGED:
        hint = "mend the metric, or take stop.patience out, and start again: it goes on from here"
        return Outcome(code=end.exit, cause=f"{end.why}, up to step {step} of {steps}", hint=hint, where={"step": step})
    why = end.why or stops.requested or "a stop request of another rank"
    where: dict[str, Any] = {"step": step}
    # The user's own command, not a signal: a launcher then leaves the run stopped.
    if end.why:
        where["stop"] = "asked"
    hint = "the same command goes on from here"
    return Outcome(code=end.exit, cause=f"{why} at step {step} of {steps}", hint=hint, where=where)


def _record_exit(loop: Loop, code: int, cause: str) -> None:
    loop.ledger.exit(int(code), cause, loop.state.progress)


def failure_of(error: BaseException, context: AttemptContext, group: Group | None = None) -> Failure:
    """The failure that an exception stands for: a lost peer or what torch refuses, too little memory, an error in the
    user's own code, or an internal one."""
    if isinstance(error, Failure):
        return error
    if group and isinstance(error, RuntimeError) and (known := group.translate(error) or refusal(error)):
        return known
    where: dict[str, Any] = {"rank": context.place.rank, "phase": context.heartbeat.phase}
    if context.heartbeat.step:
        where["step"] = context.heartbeat.step
    return mistakes.failure_of(error, context.job.modules, **where) or internal(error, context.place)


def internal(error: BaseException, place: Place) -> Failure:
    """An error that is nobody's contract: its words, and rank, file and line of the innermost frame."""
    where: dict[str, Any] = {"rank": place.rank}
    if frames := traceback.extract_tb(error.__traceback__):
        where |= {"file": frames[-1].filename, "line": frames[-1].lineno}
    caller = own_caller(error)
    called = f", called at {caller}" if caller else ""
    failure = Failure(Exit.INTERNAL, f"{type(error).__name__}: {error}{called}", "the traceback is above", **where)
    failure.details = failure.trace = "".join(traceback.format_exception(error)).rstrip("\n")
    return failure


def _save_survivor_state(loop: Loop, folder: Path) -> None:
    """Best effort: what does not succeed costs the steps since the last commit, and nothing else."""
    try:
        save_survivor_state(loop, folder)
    except Exception:
        traceback.print_exc()
