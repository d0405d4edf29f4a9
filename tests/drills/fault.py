"""One fault, the heartbeat that commits it, and the worker that has such a heartbeat. Nothing of this ships."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drivetrain.runtime.heartbeat import Heartbeat

FILE = "fault.json"
ALL = -1


@dataclass(frozen=True)
class Fault:
    """What happens to which rank (ALL for each), when it enters a phase of a step; `after` is how many entries later.

    It happens once, unless it is `always`.
    """

    act: str
    rank: int
    phase: str
    step: int
    after: int = 0
    always: bool = False

    def arm(self, run: Path) -> None:
        """Have it strike in the next start of this run."""
        run.mkdir(parents=True, exist_ok=True)
        (run / FILE).write_text(json.dumps(asdict(self)))


class FaultyHeartbeat(Heartbeat):
    """Commits the fault that is armed."""

    fault: Fault | None = None
    mine: int = 0
    left: int = 0
    folder: Path = Path()

    def enter(self, phase: str) -> None:
        super().enter(phase)
        self._strike(phase, self.step)

    def passing(self, phase: str, step: int) -> None:
        self._strike(phase, step)

    def _strike(self, phase: str, step: int) -> None:
        fault = self.fault
        if fault is None or phase != fault.phase or step != fault.step or fault.rank not in (ALL, self.mine):
            return
        if self.left > 0:
            self.left -= 1
            return
        if not fault.always:
            try:
                os.close(os.open(self.folder / f"struck-{self.mine}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        (self.folder / "struck-at").write_text(repr(time.time()))
        ACTS[fault.act]()


def hold_the_interpreter() -> None:
    """The signal that asks for stacks ends a sleep of C early: without the loop the process could train on."""
    while True:
        ctypes.PyDLL(None).sleep(600)


def fill() -> None:
    """Write until the disk of the run directory is full."""
    with open(FaultyHeartbeat.folder / "filler", "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 4096)
            except OSError:
                return


def no_space() -> None:
    """The next write of this process into a commit finds the disk full; for the others there is space."""
    whole = {name: getattr(os, name) for name in ("write", "writev", "pwrite", "pwritev")}

    def refused(name: str, descriptor: int, *rest: Any) -> int:
        if "/checkpoints/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return whole[name](descriptor, *rest)
        for each, own in whole.items():
            setattr(os, each, own)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in whole:
        setattr(os, name, partial(refused, name))


def fail() -> None:
    raise ValueError("on purpose")


ACTS: dict[str, Any] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": lambda: os.kill(os.getpid(), signal.SIGABRT),
    "slow": lambda: time.sleep(1.5),
    "fill": fill,
    "no space": no_space,
    "exit": lambda: os._exit(0),
    "raise": fail,
    "sleep": lambda: time.sleep(600),
    "gil": hold_the_interpreter,
    "terms": lambda: [(os.kill(os.getppid(), 0), os.kill(os.getpid(), signal.SIGTERM)) for _ in range(2)],
}


def main(job: dict[str, Any], place: dict[str, Any], descriptors: list[int]) -> int:
    """A training process with the fault of its run's folder."""
    from drivetrain.worker import main as work

    folder = Path(job["folder"])
    FaultyHeartbeat.folder, FaultyHeartbeat.mine = folder, place["rank"]
    if (folder / FILE).is_file():
        FaultyHeartbeat.fault = Fault(**json.loads((folder / FILE).read_text()))
        FaultyHeartbeat.left = FaultyHeartbeat.fault.after
    return work(job, place, descriptors, FaultyHeartbeat)
