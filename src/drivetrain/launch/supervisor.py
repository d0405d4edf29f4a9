"""The process that a user starts: without torch, it starts workers, starts them again where that helps, takes signals,
and says why a run ended."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from drivetrain.launch.forkserver import ForkServer
from drivetrain.launch.job import Job
from drivetrain.launch.machine import volatile_folder
from drivetrain.launch.restarts import Ended, GiveUp, next_start
from drivetrain.launch.rundir import ANSWER, last_word, prepare, record_first, steps
from drivetrain.launch.worker_group import WorkerGroup
from drivetrain.ledger.queue import stalled
from drivetrain.runtime.heartbeat import HeartbeatMemory
from drivetrain.runtime.lease import require_free
from drivetrain.runtime.place import Node
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import within

WORKER = "drivetrain.worker:main"
PRELOAD = ("torch", "pydantic", "drivetrain.worker")
"""What every worker needs."""


def supervise(
    job: Job,
    *,
    node: Node | None = None,
    worker: str = WORKER,
    preload: tuple[str, ...] = PRELOAD,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a job's processes on this machine to their end, starting them again where that helps.

    As one `node` among several it starts its own share of the ranks, once: whoever started the nodes starts them again
    together. The outcome is also in `exit.json`. Raises Failure(73) where the run directory cannot be made, 85 where
    another run owns it. `say` is told what the user should know meanwhile.
    """
    node = node or Node()
    if node.count > 1:
        job = replace(job, most_restarts=0)
    run = Path(job.folder)
    logs = prepare(run)
    began = last_word(run)
    # Handlers before anything is started: a Ctrl-C during the imports is kept until workers can hear it.
    with StopRequests(at_third=None) as stops:
        if node.rank == 0:
            job = replace(job, silent=require_free(run, sleep=stops.sleep))
        volatile = volatile_folder()
        signs = HeartbeatMemory(job.processes)
        server = ForkServer((*preload, *job.preload))
        history: list[Ended] = []
        if node.count == 1:  # no survivor's memory reaches another machine
            job = replace(job, volatile=str(volatile))
        try:
            while True:
                _forget_outcomes(logs, job, node)
                signs.clear()
                start = WorkerGroup(job, node, server, signs, stops, say)
                outcome = start.run(worker)
                history.append(_take_stock(run, start, outcome, volatile))
                _free(volatile, history[-1].reached)
                following = GiveUp(history[-1].outcome) if stops.urgent else next_start(history, job.most_restarts)
                if isinstance(following, GiveUp):
                    return record_first(run, _with_suspects(run, following.outcome), node.rank, began)
                say(f"{outcome.cause}; starting again" + (f" in {following.pause:g} s" if following.pause else ""))
                # A stop ends the pause, not the run: the next start hears it, and commits what survivors have left.
                stops.pause(following.pause)
                after = {"code": int(outcome.code), "cause": outcome.cause, **start.told}
                job = replace(job, started=time.time(), after=after, restarts=len(history))
        finally:
            server.close()
            signs.close()
            shutil.rmtree(volatile, ignore_errors=True)


def _forget_outcomes(logs: Path, job: Job, node: Node) -> None:
    """What a worker of the start before has left must not be taken for a word of the next one."""
    for rank in range(job.processes):
        (logs / f"outcome-{node.rank * job.processes + rank}.json").unlink(missing_ok=True)


def _take_stock(run: Path, start: WorkerGroup, outcome: Outcome, volatile: Path) -> Ended:
    """How a start has ended, and what is left of it. A run directory that stalls is waited for, as the recipe says: no
    start would come further; where it has ended a start, not again."""
    if "stalled" in outcome.where:
        return Ended(outcome, False, None)
    begun = time.monotonic()
    try:
        reached = within(start.job.stall, lambda: _reached(run, volatile), lambda: start.stops.urgent)
    except TimeoutError:
        if not start.stops.urgent and outcome.code not in (Exit.DONE, Exit.STOPPED, Exit.STORAGE):
            outcome = stalled(run, time.monotonic() - begun, f"before: {outcome.cause}").outcome
        return Ended(outcome, False, None)
    return Ended(outcome, start.killed, reached)


def _reached(run: Path, volatile: Path) -> int | None:
    """The highest step that something is left of, on the disk or in memory."""
    return max([*steps(run / "checkpoints").values(), *steps(volatile).values()], default=None)


def _free(volatile: Path, reached: int | None) -> None:
    """Give back the memory of what survivors have left, where there is something newer."""
    for path, step in steps(volatile).items():
        if step != reached:
            shutil.rmtree(path, ignore_errors=True)


def _with_suspects(run: Path, outcome: Outcome) -> Outcome:
    """After a crash loop: with the samples of the step that crashed, which the last start has left."""
    if "restarts" not in outcome.where:
        return outcome
    try:
        suspects = json.loads(within(ANSWER, (run / "logs" / "suspects.json").read_text))
    except (OSError, ValueError):
        return outcome
    return replace(outcome, where=outcome.where | suspects)
