"""Has the plan of a run made while it trains, by a process of lowest priority, and tells the ledger what that found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

from drivetrain.ledger.fields import reader
from drivetrain.ledger.records import Planned, PlanRecord
from drivetrain.loop.ledger_writer import LedgerWriter

AFTER = 3
"""Steps of an attempt after which it is begun: the first has been paid for, and two have told how long one takes."""
PATIENCE = 900.0
"""Seconds that it may take. On a machine that has no core to spare it gets a sixtieth of one."""
_CAUSE = 500  # characters
_ENDED = 5.0  # seconds in which a process that was killed is gone
_BEGIN = """
import sys
sys.path[:] = filter(None, sys.path)  # not the current folder: a random.py there is not Python's
from drivetrain.run.plan_process import main
main(int(sys.argv[1]))
"""


@dataclass(frozen=True)
class PlanRequest:
    """What is planned. `of` is its digest, `mesh` the processes along each axis that has several, `content` JSON data
    for the process that does it; `refused` says why none can."""

    of: str
    world: int
    mesh: Mapping[str, int]
    content: Mapping[str, Any]
    refused: str | None = None


class PlanBeside:
    """Begins the process after a few steps, if the run still takes so long that this is worth it, and tells the ledger
    how it has ended. Nothing waits for it, and no failure of it is the run's."""

    def __init__(self, request: PlanRequest, least: float, last: int, ledger: LedgerWriter) -> None:
        """`least` is how many seconds the run must still take by then, `last` its last step."""
        self._request, self._least, self._last, self._ledger = request, least, last, ledger
        self._made = 0
        self._began = 0.0
        self._process: _Process | None = None

    def after(self, step: int) -> None:
        """A step is made."""
        if self._process is not None:
            self._look(self._process)
        elif self._made < AFTER:
            self._made += 1
            if self._made == 1:
                self._began = time.monotonic()
            elif self._made == AFTER and self._worth(step):
                self._begin()

    def close(self) -> None:
        """The run ends: a process that is still at it goes, too, and nothing is told of it."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _worth(self, step: int) -> bool:
        """Whether the rest of the run is long enough, by the steps so far."""
        seconds = (time.monotonic() - self._began) / (AFTER - 1)
        return (self._last - step) * seconds >= self._least

    def _begin(self) -> None:
        if self._request.refused:
            self._tell(0.0, failed=self._request.refused)
            return
        try:
            self._process = _Process(self._request.content)
        except OSError as error:
            self._tell(0.0, failed=f"no process could be started: {error}")

    def _look(self, process: _Process) -> None:
        seconds = time.monotonic() - process.started
        if not process.ended:
            if seconds < PATIENCE:
                return
            failed = f"it was not done after {PATIENCE:.0f} s"
            process.end()
            self._tell(seconds, failed=failed)
        else:
            try:
                self._tell(seconds, planned=process.result())
            except (ChildProcessError, OSError, TypeError, ValueError, KeyError) as error:
                self._tell(seconds, failed=str(error)[:_CAUSE])
            process.end()
        self._process = None

    def _tell(self, seconds: float, planned: Planned | None = None, failed: str | None = None) -> None:
        request = self._request
        seconds = round(seconds, 3)
        record = PlanRecord(
            of=request.of, world=request.world, mesh=request.mesh, seconds=seconds, planned=planned, failed=failed
        )
        self._ledger.record(record)


class _Process:
    """The process that plans. What it is asked and what it says lie in files without a name, so that no side ever waits
    for the other; once this process is gone, the end of a pipe tells that one."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.started = time.monotonic()
        with ExitStack() as stack:
            asked, self._said, self._log = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            asked.write(json.dumps(content).encode())
            asked.seek(0)
            # In this session: a new one would be a group of its own to the scheduler, of the same weight as training's,
            # whatever its priority.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(asked.fileno())],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._log,
                pass_fds=[asked.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            self._files = stack.pop_all()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> Planned:
        """What it has found. Raises ChildProcessError with its last words where it has failed."""
        status = self._process.returncode
        if status < 0:
            raise ChildProcessError(f"the process that plans was ended by {signal.Signals(-status).name}")
        if status:
            words = _content(self._log).strip().rpartition("\n")[2]
            raise ChildProcessError(words or f"the process that plans has ended with {status}")
        return reader(Planned)(json.loads(_content(self._said)))

    def end(self) -> None:
        """Have it gone, with all that it has started."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDED)
        if self._process.stdin:
            self._process.stdin.close()
        self._files.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
