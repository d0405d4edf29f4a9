"""What targets have in common whose jobs see the file system of whoever submits them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from drivetrain.launch import attempts, code, output
from drivetrain.launch.job_runner import CANCEL, OWNER
from drivetrain.launch.node import FROM_FILE
from drivetrain.launch.rundir import SCRATCH, prepare
from drivetrain.launch.states import JobStatus, State
from drivetrain.launch.submission import FILE, Submission
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private


def lay(job: Submission) -> Path:
    """Make the job's folder with all that its nodes read, and return the file of its work. Asked twice, it is the same.

    Raises Failure(73) where the run directory cannot be made.
    """
    prepare(job.run)
    try:
        for place in (job.folder.parent, job.folder, job.folder / output.FOLDER):  # parents have not the mode
            place.mkdir(mode=0o700, exist_ok=True)
        if job.work.root is not None:
            wanted = job.settings.code
            code.leave(Path(job.work.root), wanted.commit if wanted.kind == "commit" else None, job.folder)
        # Last: who reads this file finds all that it speaks of.
        write_private(job.folder / FILE, job.work.text().encode())
    except OSError as error:
        cause = f"{job.folder} cannot be written: {error}"
        raise Failure(Exit.CANNOT_CREATE, cause, "choose another place by --run") from error
    return job.folder / FILE


def require_files(job: Submission) -> None:
    """Raises Failure(78) where a secret is no file: there is nobody else who could look it up."""
    for name, reference in job.work.secrets.items():
        if not reference.startswith(FROM_FILE):
            cause = f"target {job.target}: secrets.{name} is {FROM_FILE}PATH here"
            raise Failure(Exit.BAD_RECIPE, cause, "give a file that only you can read")


def require_shared(job: Submission) -> None:
    """Raises Failure(78) where the run directory is on this machine's disk only, as with a URL it is."""
    if job.run.is_relative_to(SCRATCH):
        cause = f"target {job.target}: the run directory {job.run} is on one machine's disk"
        hint = "set runs to a folder that all machines see; checkpoint.mirror in the recipe copies commits to a URL"
        raise Failure(Exit.BAD_RECIPE, cause, hint)


def mark_cancelled(job: Submission) -> None:
    """Say to the job, before anybody else does, that it gets no further attempt."""
    with suppress(OSError):  # its folder is gone, and it has nothing to go on from; or it is on other machines
        (job.folder / CANCEL).touch(mode=0o600)


def unmark_cancelled(job: Submission) -> None:
    """Take that back."""
    with suppress(OSError):
        (job.folder / CANCEL).unlink()


def unmark(job: Submission) -> None:
    """Before a job is started again: nobody has it, and it is no longer cancelled."""
    unmark_cancelled(job)
    with suppress(OSError):
        (job.folder / OWNER).unlink()


def owner(job: Submission) -> str | None:
    """The engine's name of the job that has begun; None before that."""
    try:
        return (job.folder / OWNER).read_text()
    except OSError:
        return None


def complete_status(job: Submission, seen: JobStatus) -> JobStatus:
    """A look at the engine, completed by what the job's own folder says of attempts and outcome."""
    # The engine is asked first and the folder read then: a job that ends in between is told as it has ended.
    known = attempts.read(job.folder)
    seen = replace(seen, attempt=max(seen.attempt, len(known.attempts) - (known.state == "ended")))
    outcome = known.outcome
    if outcome is None or not seen.state.final:
        return seen
    state = State.FAILED
    if outcome.code is Exit.DONE or attempts.asked(outcome):
        state = State.SUCCEEDED
    elif seen.state is State.CANCELLED:
        state = State.CANCELLED
    return replace(seen, state=state, code=int(outcome.code), reason=outcome.cause)


def printed(job: Submission, rank: int | None, ended: Callable[[], bool] | None) -> Iterator[str]:
    """What the job's processes have printed."""
    return output.lines(job.folder / output.FOLDER, rank, ended)
