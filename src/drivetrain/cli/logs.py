"""`drivetrain logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.status import Token


def logs(
    job: Token,
    rank: Annotated[int | None, typer.Option(min=0, help="What this rank printed; else the first node.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: AsJson = False,
) -> int:
    """What a job has printed, over all its attempts."""
    import json

    from drivetrain.launch.elsewhere import found
    from drivetrain.launch.jobs import opened, refresh
    from drivetrain.launch.patience import tell
    from drivetrain.launch.store import JobStore
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.text import printable

    store = JobStore()
    record = found(store, job)
    try:
        record = refresh(store, record)
    except Failure as failure:
        # A request without a name at the engine may have arrived: only the engine knows, so its silence is the answer.
        if failure.outcome.code is not Exit.PEER_UNAVAILABLE or record.native is None:
            raise
        # What was printed may be in files here.
        tell(failure.outcome.cause)
    if record.native is None:
        raise Failure(Exit.INPUT_MISSING, f"{record.token} was never sent", f"`drivetrain requeue {record.token}`")
    submission, target = opened(record)
    ranks = submission.work.nodes * submission.work.job.processes
    if rank is not None and rank >= ranks:
        raise Failure(Exit.BAD_COMMAND, f"--rank {rank} of {ranks} ranks", "they count from 0")
    for line in target.logs(submission, record.native, rank, follow and not record.state.final):
        typer.echo(json.dumps({"line": line}) if as_json else printable(line, keep="\t"))
    return Exit.DONE
