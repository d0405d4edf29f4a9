"""`drivetrain cancel`."""

from __future__ import annotations

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token, tell


def cancel(job: Token, as_json: AsJson = False) -> int:
    """End a job for good; what it has trained is committed first, if the engine gives it the time."""
    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.jobs import cancel as end
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit

    store = JobStore()
    tell(end(store, found(store, job)), as_json)
    return Exit.DONE
