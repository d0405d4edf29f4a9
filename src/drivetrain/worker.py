"""What a training process executes."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.launch.job import Job
from drivetrain.launch.output import redirect
from drivetrain.run.attempt import execute
from drivetrain.runtime.heartbeat import LONGEST, Heartbeat
from drivetrain.runtime.place import Place
from drivetrain.spec.exits import Outcome
from drivetrain.spec.files import write_json

_SHORT = 4000  # characters


def main(
    job: dict[str, Any], place: dict[str, Any], descriptors: list[int], heartbeat: type[Heartbeat] = Heartbeat
) -> int:
    """Run one rank of a job; its outcome is told to the supervisor, left in `logs/outcome-<rank>.json`, and the exit
    code returned.

    `job` and `place` are JSON data. The descriptors are the memory for signs of life and, on rank 0 among several, a
    socket for the rendezvous that is bound to the loopback.
    """
    here, asked = Place(**place), Job(**job)
    if asked.output:
        redirect(Path(f"{asked.output}-rank-{here.rank}.log"))
    logs = Path(asked.folder) / "logs"
    stacks = _stacks(logs / f"stacks-{here.rank}.txt")
    alive = heartbeat.shared(descriptors[0], here.local_rank)
    alive.start()
    outcome = execute(asked, here, descriptors[1] if len(descriptors) > 1 else None, alive)
    alive.say(_word(outcome))  # before any file: the disk may have stalled
    with suppress(OSError):  # of a disk that fails, the outcome tells
        if os.fstat(stacks).st_size == 0:
            (logs / f"stacks-{here.rank}.txt").unlink(missing_ok=True)
    leave(logs / f"outcome-{here.rank}.json", outcome)
    return int(outcome.code)


def leave(path: Path, outcome: Outcome) -> None:
    """Leave a process's outcome in a file; where that cannot be, as the disk is full or gone, on stderr."""
    try:
        write_json(path, outcome.to_json())
    except OSError as error:
        print(f"{path.stem}: {outcome.line()} [{path.name} cannot be written: {error}]", file=sys.stderr, flush=True)


def _word(outcome: Outcome) -> bytes:
    """The outcome for the supervisor, cut where there is no room for all of it; the file has the rest."""
    whole = json.dumps(outcome.to_json()).encode()
    if len(whole) > LONGEST:
        short = replace(outcome, cause=outcome.cause[:_SHORT], hint=outcome.hint[:_SHORT], where={})
        whole = json.dumps(short.to_json()).encode()
    return whole


def _stacks(path: Path) -> int:
    """Have SIGQUIT, and any fault in native code, write the stacks of all threads to a file, whatever they are at."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGQUIT, file=descriptor, all_threads=True)
    faulthandler.enable(file=descriptor, all_threads=True)
    return descriptor
