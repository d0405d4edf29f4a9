"""Runs a job to its end from one place: starts its nodes, passes signals on, and decides what follows each attempt."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from drivetrain.launch import attempts, output
from drivetrain.launch.attempts import JobAttempt
from drivetrain.launch.restarts import GiveUp, Retry
from drivetrain.launch.rundir import committed, last_word, prepare
from drivetrain.launch.submission import FILE, NodeWork
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import own_name, write_json, write_private

CANCEL = "cancel"
"""The mark in a job's folder that its user wants no further attempt."""
OWNER = "owner"
"""The file in a job's folder that names the one engine's job that may run it."""
PORTS = range(20000, 32000)
"""Where rank 0 listens: below the ports that kernels give to whoever asks for any."""
_TICK = 0.1  # seconds
_AWAY = 2.0  # seconds before an engine that did not answer is asked again
_MOST = 2  # signals that are passed on: a third ends nodes at once, which nobody means who cancels a job again
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Started(Protocol):
    """The nodes of one attempt."""

    def poll(self) -> int | None:
        """0 or a status that tells of a failure once all have ended; None before that."""
        ...


class Scheduler(Protocol):
    """What an engine can do for its job, from inside it."""

    native: str
    """The engine's name of the job."""
    elsewhere: bool
    """Whether it can start the job on other machines."""

    def start(self, command: list[str], environment: Mapping[str, str]) -> Started:
        """Start this command on every node."""
        ...

    def stop(self) -> None:
        """Have SIGTERM reach the command on every node."""
        ...

    def requeue(self) -> None:
        """Have the engine start the whole job again, elsewhere or later; it then ends this process.

        Raises Failure where it does not: 69 after trying for a while, 75 where it does not do such things or the job
        was cancelled.
        """
        ...

    def address(self) -> str:
        """Where the first node can be reached."""
        ...


def run_job(file: Path, engine: Scheduler) -> int:
    """Run the job to its end, or until its engine has requeued it, and return the exit code.

    What it says goes to this process's output. Raises Failure(85) where another process runs this job.
    """
    work = NodeWork.read(file)
    claim(file.parent, engine.native)
    with StopRequests(_SIGNALS, at_third=None) as stops:
        return _JobRunner(work, file.parent, engine, stops).run()


def claim(folder: Path, native: str) -> None:
    """Be the one that runs this job; Failure(85) where another is. A request that was sent twice ends here."""
    # A link is made with its content or not at all, on network file systems too: of two that claim at the same moment
    # one gets the name, and whoever reads it never finds it empty.
    mine = folder / f".{OWNER}-{own_name()}"
    write_private(mine, native.encode())
    try:
        os.link(mine, folder / OWNER)
    except FileExistsError:
        owner = (folder / OWNER).read_text()
        if owner != native:
            cause = f"{folder.name} is run by {owner} already, and this is {native}"
            raise Failure(Exit.OWNED_ELSEWHERE, cause, "a request was sent twice; nothing is wrong") from None
    finally:
        mine.unlink()


class _JobRunner:
    """One start of a job by its engine. `known` is what its folder says of the attempts."""

    def __init__(self, work: NodeWork, folder: Path, engine: Scheduler, stops: StopRequests) -> None:
        self._work = work
        self._folder = folder
        self._run = Path(work.job.folder)
        self._engine = engine
        self._stops = stops
        self._known = attempts.read(folder)

    def run(self) -> int:
        """Attempts, one after the other."""
        done = self._known.outcome
        if done is not None and done.code is Exit.DONE:
            _say(f"nothing is left to do: {done.cause}")
            return Exit.DONE
        if (self._folder / CANCEL).exists():  # since its request was under way, or while its engine started it again
            return self._forgo()
        prepare(self._run)
        if done is not None:  # its user wants another attempt: the caps begin anew
            self._known = replace(self._known, since=len(self._known.attempts))
        following = self._after_loss()
        while not isinstance(following, GiveUp):
            if following:
                self._stops.pause(following.pause)
            last = self._attempt()
            following = self._following(last)
            if not isinstance(following, GiveUp) and self._leaves(last):
                refused = self._requeue(last)
                if refused is None:
                    return last.code
                following = GiveUp(refused)
        return self._end(following.outcome)

    def _forgo(self) -> int:
        """End without an attempt."""
        now, reached = time.time(), committed(self._run)
        outcome = Outcome(code=Exit.STOPPED, cause="cancelled before it began", where={})
        self._add(JobAttempt(outcome=outcome, before=reached, reached=reached, began=now, ended=now))
        return self._end(outcome)

    def _leaves(self, last: Outcome) -> bool:
        """Whether the next attempt is not to be made on these machines: it was stopped, or lost one of them."""
        stopped = self._stops.requested is not None or last.code is Exit.STOPPED
        return stopped or (self._engine.elsewhere and attempts.lost(last))

    def _attempt(self) -> Outcome:
        """One attempt, from start to end."""
        before, word, began = committed(self._run), last_word(self._run), time.time()
        # On the disk before any node starts: if this process dies with its machine, its successor finds the attempt
        # open, and counts it.
        self._keep(state="running", open=(began, before))
        status = 0
        if not self._stops.requested:
            status = self._nodes()
        outcome = _outcome(self._run, word, status, self._stops.requested)
        reached = committed(self._run)
        self._add(JobAttempt(outcome=outcome, before=before, reached=reached, began=began, ended=time.time()))
        return outcome

    def _nodes(self) -> int:
        """Start the nodes and wait for their end, passing on what asks for a stop."""
        number = len(self._known.attempts)
        environment = {
            "DRIVETRAIN_NODES": str(self._work.nodes),
            "DRIVETRAIN_ADDRESS": self._engine.address(),
            "DRIVETRAIN_PORT": str(_port(self._work.token, number)),
            "DRIVETRAIN_ATTEMPT": str(number),
            "DRIVETRAIN_OUTPUT": str(self._folder / output.FOLDER),
        }
        command = [sys.executable, "-m", "drivetrain", "worker", str(self._folder / FILE)]
        started = self._engine.start(command, environment)
        told = 0
        while (status := started.poll()) is None:
            # `_stop` asks for another turn where the engine was away, so only what has reached it is counted.
            if self._stops.take() and told < _MOST:
                told += self._stop()
            time.sleep(_TICK)
        return status

    def _stop(self) -> bool:
        """Tell the nodes; False where the engine is away, and is to be asked again until they have ended."""
        try:
            self._engine.stop()
        except Failure as failure:
            _say(failure.outcome.line())
            self._stops.repeat()
            time.sleep(_AWAY)
            return False
        return True

    def _after_loss(self) -> Retry | GiveUp | None:
        """What follows an attempt whose conductor was ended with it: with its node, or by the engine."""
        if self._known.open is None:
            return None
        began, before = self._known.open
        cause = "the job's first node was lost, or the engine ended the job there"
        outcome = Outcome(code=Exit.INTERNAL, cause=cause, where={"class": "unsaid"})
        reached = committed(self._run)
        self._add(JobAttempt(outcome=outcome, before=before, reached=reached, began=began, ended=time.time()))
        return self._following(outcome)

    def _following(self, last: Outcome) -> Retry | GiveUp:
        if (self._folder / CANCEL).exists():
            return GiveUp(last)
        counted = self._known.attempts[self._known.since :]
        return attempts.following(counted, self._work.retries, self._work.fruitless)

    def _requeue(self, last: Outcome) -> Outcome | None:
        """None where the engine starts the job again by itself, else what the job ends with."""
        # Kept before the engine is asked: it may end this process at once, and a requeued job is told apart from one
        # that was lost by this word.
        self._keep(state="requeued")
        try:
            self._engine.requeue()
        except Failure as failure:
            _say(failure.outcome.line())
            if failure.outcome.code is Exit.STOPPED:
                return last
            return failure.outcome
        return None

    def _add(self, attempt: JobAttempt) -> None:
        _say(f"attempt {len(self._known.attempts)}: {attempt.outcome.line().removeprefix('drivetrain: ')}")
        self._known = replace(self._known, attempts=(*self._known.attempts, attempt))
        self._keep(state="running", open=None)

    def _keep(self, **changed: Any) -> None:
        self._known = replace(self._known, **changed)
        attempts.write(self._folder, self._known)

    def _end(self, outcome: Outcome) -> int:
        listed = self._known.attempts
        told = [f"{int(one.outcome.code)} {one.outcome.cause}" for one in listed]
        with suppress(OSError):
            write_json(self._run / "exit.json", outcome.to_json() | {"attempts": told})
        self._keep(state="ended", attempts=(*listed[:-1], replace(listed[-1], outcome=outcome)))
        _say(outcome.line())
        return attempts.exit_code(outcome)


def _outcome(run: Path, before: tuple[int, int] | None, status: int, stopped: str | None) -> Outcome:
    """What the nodes said, or what their end says where they said nothing: a signal may come before it is heard."""
    if last_word(run) != before:
        with suppress(OSError, ValueError, KeyError):
            return Outcome.read(run / "exit.json")
    if stopped:
        return Outcome(code=Exit.STOPPED, cause=f"{stopped} before anything was started", where={})
    cause = f"the nodes ended with {status} and did not say why"
    return Outcome(code=Exit.INTERNAL, cause=cause, hint="look at the job's logs", where={"class": "unsaid"})


def _port(token: str, attempt: int) -> int:
    """Another one for each attempt, so that none meets what an earlier one has left."""
    return PORTS[(int(token[-8:], 16) + 7919 * attempt) % len(PORTS)]


def _say(text: str) -> None:
    print(f"drivetrain: {text.removeprefix('drivetrain: ')}", file=sys.stderr, flush=True)
