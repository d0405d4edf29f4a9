"""What is made of processes that show no sign of life: a hang, or a run directory that does not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drivetrain.launch.job import Job
from drivetrain.launch.probe import DirectoryProbe
from drivetrain.launch.watchdog import Hang, Watchdog
from drivetrain.ledger.queue import stalled
from drivetrain.runtime.heartbeat import HeartbeatSlot
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.files import within

PROBE = 1.0
"""Seconds in which a run directory answers that does not stall."""
DUMP = 0.5
"""Seconds that all workers have to write their stacks once one hangs."""


@dataclass(frozen=True)
class Verdict:
    """Ranks that are to be ended, each with how it ends; `stalled`: the run directory is borne with no longer."""

    outcomes: Mapping[int, Outcome]
    stalled: bool


class HangJudge:
    """Says who hangs. While the run directory does not answer nobody does, since whoever opens or writes there may just
    wait for the disk, and others for them: it is waited for as long as the recipe says."""

    def __init__(self, job: Job, *, alone: bool, say: Callable[[str], None]) -> None:
        """`alone`: no other machine has processes of this run. `say` is told what the user should know meanwhile."""
        self._watchdog = Watchdog(job.hang_after, job.slow_after, job.compiles) if job.hang_after else None
        self._probe = DirectoryProbe(Path(job.folder))
        self._folder, self._stall = Path(job.folder), job.stall
        self._alone, self._say = alone, say
        self._silent = 0.0  # seconds for which the directory had not answered at the last look

    def judge(self, signs: Mapping[int, HeartbeatSlot], now: float) -> Verdict | None:
        """Look at the signs of life of all processes that are left, by rank; None where nobody is to be ended."""
        hang = self._watchdog.look(dict(signs), now) if self._watchdog else None
        if hang is None or self._watchdog is None:
            return None
        before, self._silent = self._silent, self._probe.silent(PROBE)
        if self._silent > self._stall:
            outcome = stalled(self._folder, self._silent, f"before: {hang}").outcome
            return Verdict(dict.fromkeys(signs, outcome), stalled=True)
        if self._silent:
            if not before:
                self._say(f"{hang}: {self._folder} does not answer, and is waited for")
            return None
        if before:  # it answers again
            self._watchdog.forget()
            return None
        self._say(f"{hang}; writing the stacks of all ranks")
        outcomes = {}
        for rank, sign in hang.signs.items():
            where = {"rank": rank, "step": sign.step, "phase": sign.phase}
            outcomes[rank] = _hung(hang, where, self._folder, alone=self._alone)
        return Verdict(outcomes, stalled=False)


def write_stacks(pids: Mapping[int, int], folder: Path) -> None:
    """Have processes, by rank, write their stacks below a run directory, and wait a moment for them.

    They do so at SIGQUIT, by a handler in C that needs no interpreter. One that is stopped hears it only when it goes
    on: whoever wants to end it does so before it gets further.
    """
    stacks = {rank: folder / "logs" / f"stacks-{rank}.txt" for rank in pids}
    before = {rank: _size(path) for rank, path in stacks.items()}
    for number in (signal.SIGQUIT, signal.SIGCONT):
        for pid in pids.values():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)
    end = time.monotonic() + DUMP
    while time.monotonic() < end and any(_size(stacks[rank]) == before[rank] for rank in pids):
        time.sleep(0.001)


def _size(path: Path) -> int:
    """Bytes of a file; 0 where it is not there, or its disk stalls."""
    try:
        return within(DUMP, path.stat).st_size
    except OSError:
        return 0


def _hung(hang: Hang, where: dict[str, object], folder: Path, *, alone: bool) -> Outcome:
    """84; but 69 where all of this machine's processes wait and it is not alone: nothing comes from another one."""
    stacks = f"the stacks of all ranks here are in {folder}/logs/stacks-*.txt"
    if hang.waits and not alone:
        cause = f"nothing has come from the other machines for {hang.seconds:.1f} s: {hang.who}"
        hint = f"look for the machine that failed first, and at the network between them; {stacks}"
        return Outcome(code=Exit.PEER_UNAVAILABLE, cause=cause, hint=hint, where=where)
    return Outcome(code=Exit.HANG, cause=str(hang), hint=stacks, where=where)
