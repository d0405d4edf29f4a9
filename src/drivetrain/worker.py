"""What a training process executes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drivetrain.launch.job import Job
from drivetrain.run import execute
from drivetrain.runtime.place import Place
from drivetrain.spec.files import write_json


def main(job: dict[str, Any], place: dict[str, Any], listen_fd: int | None) -> int:
    """Run one rank of a job; its outcome is left in `logs/outcome-<rank>.json`, and the exit code returned.

    `job` and `place` are JSON data; `listen_fd` is rank 0's socket for the rendezvous, bound to the loopback.
    """
    here = Place(**place)
    outcome = execute(Job(**job), here, listen_fd)
    write_json(Path(job["folder"]) / "logs" / f"outcome-{here.rank}.json", outcome.to_json())
    return int(outcome.code)
