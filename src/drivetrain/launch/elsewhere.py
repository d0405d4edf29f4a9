"""Jobs that were submitted from another machine: their engine keeps what they were told, and from then on so does the
store here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drivetrain.launch.states import State
from drivetrain.launch.store import JobStore, Record
from drivetrain.launch.submission import Submission
from drivetrain.launch.targets.config import build, settings_of
from drivetrain.launch.targets.target import Listed
from drivetrain.spec.exits import Exit, Failure


def found(store: JobStore, name: str) -> Record:
    """The record of a job: one of the store's by its name, or by TARGET:JOB one that the target's engine has, by its
    name there or the beginning or end of its token.

    Raises Failure: 66 where there is none or nothing is kept of it, 64 where there are several, 65 where what is kept
    is another job's.
    """
    target, colon, job = name.partition(":")
    if not colon:
        return store.find(name)
    settings = settings_of(target, {})
    engine = build(settings)
    one = _named(engine.listed(), target, job)
    if (known := store.known(one.token)) is not None:
        return known
    work = engine.work(one.native)
    # The work says where this machine reads and writes: it is believed only under the name that it was sent with.
    if work.token != one.token:
        cause = f"{target} job {one.native} is called {one.token}, and was told to be {work.token}"
        raise Failure(Exit.BAD_DATA, cause, "it was not submitted by this program, or changed since")
    settings = replace(
        settings,
        nodes=work.nodes,
        processes=work.job.processes,
        retries=work.retries,
        fruitless=work.fruitless,
        environment=work.environment,
        secrets=work.secrets,
    )
    submission = Submission(target=target, settings=settings, work=work)
    record = Record.of(submission, work.job.recipe["name"], work.job.began)
    return store.keep(replace(record, native=one.native, state=State.PENDING))


def _named(listed: Sequence[Listed], target: str, job: str) -> Listed:
    """The one job that is meant; of a token's several ones the last."""
    fitting = []
    for one in listed:
        if job and (job == one.native or one.token.startswith(job) or one.token.endswith(job)):
            fitting.append(one)
    tokens = sorted({one.token for one in fitting})
    if not tokens:
        raise Failure(Exit.INPUT_MISSING, f"{target} has no job {job!r}", f"`drivetrain jobs --to {target} --all`")
    if len(tokens) > 1:
        raise Failure(Exit.BAD_COMMAND, f"{job!r} is {', '.join(tokens)}", "give more of its name")
    return fitting[-1]
