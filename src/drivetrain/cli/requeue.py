"""`drivetrain requeue`."""

from __future__ import annotations

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token, tell


def requeue(job: Token, as_json: AsJson = False) -> int:
    """Give a job another attempt, from its last commit. One that has succeeded is left alone."""
    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.jobs import requeue as again
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit

    store = JobStore()
    tell(again(store, found(store, job)), as_json)
    return Exit.DONE
