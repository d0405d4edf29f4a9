"""Runs under faults, and the oracle: an uninterrupted run of the same recipe."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import surroundings
from conftest import Trace, trace
from drills.fault import ALL, Fault
from drivetrain.launch import supervisor
from drivetrain.launch.forkserver import ForkServer
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import COMPILER, CUTTING, prepare_job
from drivetrain.ledger.derive import attempts
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.load import load

WORKER = "drills.fault:main"
PRELOAD = (
    *supervisor.PRELOAD,
    COMPILER,
    "drivetrain.tasks.language_model.task",
    "drivetrain.data.text",
    CUTTING,
    "drills.fault",
    "surroundings",
    *filter(find_spec, ["torchmetrics"]),
)


class Kept(ForkServer):
    """A server that outlives one supervisor: importing torch takes longer than a drill. Its workers are in the
    surroundings of whoever asks for them."""

    def start(self, worker: str, rank: int, arguments: Sequence[Any], descriptors: Sequence[int] = ()) -> None:
        super().start("surroundings:within", rank, [surroundings.told(), worker, *arguments], descriptors)

    def close(self) -> None:
        """It ends with this process, which closes its end of the socket."""


@cache
def _kept() -> Kept:
    path = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(path)):
        return Kept(PRELOAD)


@contextmanager
def one_server() -> Iterator[None]:
    """Within, all supervisors of this process share a server."""
    server = _kept()
    server.revive()
    with mock.patch.object(supervisor, "ForkServer", return_value=server):
        yield


@dataclass(frozen=True)
class Drilled:
    """What came of a run under a fault: its end, and from the fault to the end of the first new step (seconds)."""

    outcome: Outcome
    trace: Trace | None
    starts: int
    lost: int
    seconds: float
    recovery: float | None


def drill(
    recipe: dict, run: Path, fault: Fault | None, *overrides: str, again: bool = True, worker: str = WORKER
) -> Drilled:
    """Train under a fault, to the end; a run that was asked to stop, or ended by a retryable code, is started again."""
    if fault:
        fault.arm(run)
    began = time.monotonic()
    while True:
        job = prepare_job(load(recipe, overrides), run=run, overrides=overrides, options=StartOptions())
        outcome = supervisor.supervise(job, worker=worker, preload=PRELOAD)
        if not again or outcome.code is not Exit.STOPPED:
            break
    records = list(read(run / "ledger.jsonl")) if (run / "ledger.jsonl").is_file() else []
    made = attempts(records)
    done = outcome.code is Exit.DONE
    return Drilled(
        outcome=outcome,
        trace=trace(run) if done else None,
        starts=len(made),
        lost=sum(max(0, before.to_step - after.from_step) for before, after in pairwise(made)),
        seconds=time.monotonic() - began,
        recovery=_recovery(run, records),
    )


def reference(recipe: dict, run: Path, *overrides: str) -> Trace:
    """The trace of a run that nobody disturbs."""
    shutil.rmtree(run, ignore_errors=True)
    found = drill(recipe, run, None, *overrides)
    assert found.outcome.code is Exit.DONE, found.outcome
    assert found.trace is not None
    return found.trace


def leftovers(run: Path) -> list[str]:
    """Names in the run directory that a run which has ended must not leave."""
    return [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith((".tmp", ".trash"))]


def _recovery(run: Path, records: list[dict]) -> float | None:
    struck = run / "struck-at"
    if not struck.is_file():
        return None
    at = float(struck.read_text())
    after = [i for i, record in enumerate(records) if record["kind"] == "attempt" and record["started"] > at]
    if not after:
        return None
    again = records[after[0] :]
    # A stopped rank is woken to write its stacks. On a busy machine it may train to the end before it is ended too:
    # then no step is left to the attempt that comes after.
    first = next((record for record in again if record["kind"] == "step"), again[0])
    return first["time"] - at


PHASES = (
    "start",
    "data",
    "forward",
    "backward",
    "reduce",
    "optimizer",
    "pulse",
    "evaluation",
    "snapshot",
    "write",
    "publish",
    "rotate",
    "commit",
    "teardown",
)
_STEPS = {"start": 0, "evaluation": 6, "snapshot": 10, "write": 10, "publish": 10, "rotate": 10, "commit": 12}
_STEPS |= {"teardown": 12}
_PUBLISHING = ("publish", "rotate")
OF_A_COMMIT = ("snapshot", "write", "publish", "rotate", "commit")


def sweep(world: int, *, cut: bool = False) -> list[Fault]:
    """A kill at each phase of the tiny recipe: of rank 0, of the last rank, of all. `cut`: on a mesh that cuts tensors,
    where all write parts of a commit."""
    faults, of_the_leader = [], _PUBLISHING if cut else OF_A_COMMIT
    for phase in PHASES:
        for rank in sorted({0, world - 1, ALL} if world > 1 else {0}):
            meaningless = (world == 1 and phase == "reduce") or (phase in of_the_leader and rank > 0)
            if not meaningless:
                faults.append(Fault("kill", rank, phase, _STEPS.get(phase, 7)))
    return faults
