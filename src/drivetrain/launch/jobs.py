"""What is done with jobs: submitted once, looked at, ended, started again. The record is always written first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from drivetrain.launch.patience import OutagePatience
from drivetrain.launch.states import JobStatus, State
from drivetrain.launch.store import JobStore, Record, unfinished
from drivetrain.launch.submission import Submission
from drivetrain.launch.targets.config import build
from drivetrain.launch.targets.shared import mark_cancelled, unmark, unmark_cancelled
from drivetrain.launch.targets.target import Target
from drivetrain.spec.exits import Exit, Failure

Clock = Callable[[], float]


def submit(store: JobStore, submission: Submission, recipe: str, clock: Clock = time.time) -> tuple[Record, bool]:
    """Send a job, and whether it is a new one: while one of this target on this run directory has not ended, it is that
    one, and a request that may not have arrived is sent again under the same token."""
    with store.exclusive():
        for path in store.damaged():
            cause = f"{path} is damaged, and may be this job"
            raise Failure(Exit.BAD_DATA, cause, "see that its job has ended, then move it away")
        record = unfinished(store.all(), submission.run, submission.target)
        if record is not None:
            record = refresh(store, record, clock)
        new = record is None or record.state.final
        if record is None or new:
            # Kept before it is sent: a crash in between leaves a record that the same command sends.
            record = store.keep(Record.of(submission, recipe, clock()))
    return _sent(store, record, clock), new


def refresh(store: JobStore, record: Record, clock: Clock = time.time) -> Record:
    """The record after a look at the engine; one that is known to have ended for good is not asked about again.

    A look takes its time: where the job was cancelled, started again or looked at meanwhile, that is what stays. A
    cancel that the engine has not heard is told first.
    """
    if record.cancelled is not None and not record.heard and not record.ended:
        return cancel(store, record, clock)
    seen = _looked(record, clock)
    if seen is record:
        return record
    # The look itself holds no lock: an engine may take half a minute to answer, and a cancel must not wait for that.
    with store.exclusive(record.token):
        now = store.reload(record)
        same = (now.native, now.cancelled, now.checked) == (record.native, record.cancelled, record.checked)
        return store.keep(seen) if same else now


def _looked(record: Record, clock: Clock) -> Record:
    """The same, kept nowhere; the record itself where there is nothing to look at."""
    if record.ended:
        return record
    job, target = opened(record)
    native = record.native or target.find(job)
    if native is None:
        return record
    seen = target.look(job, native)
    # A job that was sent twice, or requeued from elsewhere, has another name that may still be at work.
    if seen.state.final:
        other = target.find(job)
        if other is not None and other != native:
            native, seen = other, target.look(job, other)
    return replace(record, native=native).after(seen, clock())


def cancel(store: JobStore, record: Record, clock: Clock = time.time) -> Record:
    """End a job for good. That this was asked for is kept before the engine is told. Where that does not answer (69),
    the next look tells it; where it refuses, nothing was asked for."""
    with store.exclusive(record.token):
        before = store.reload(record)
        if before.ended:
            return before
        # The wish is on the disk before the engine hears of it: a crash here leaves a cancel that `refresh` tells.
        wish = store.keep(replace(before, cancelled=before.cancelled or clock(), heard=False))
        try:
            return _ended(store, before, wish, clock)
        except Failure as failure:
            outcome = failure.outcome
            if outcome.code is not Exit.PEER_UNAVAILABLE:
                # The engine refuses, so the job goes on as if nothing had been asked.
                store.keep(before)
                unmark_cancelled(wish.submission())
                raise
            hint = f"the cancel is kept: `drivetrain status {wish.token}` tells the engine once it answers"
            raise Failure(outcome.code, outcome.cause, hint) from failure


def _ended(store: JobStore, before: Record, wish: Record, clock: Clock) -> Record:
    """The record of a job whose engine has taken its cancel; of one that had ended by itself, it tells of that."""
    job, target = opened(wish)
    mark_cancelled(job)  # before anything else: a request that is under way finds it, and so does the engine's requeue
    try:
        now = _looked(before, clock)
    except Failure:
        if wish.native is None:
            raise
        now = before  # it may hear what it does not answer
    if now.state.final:
        return store.keep(now)
    now = replace(now, cancelled=wish.cancelled, heard=True)
    if now.native is None:
        return store.keep(replace(now, state=State.CANCELLED))
    target.cancel(job, now.native)
    # Kept once before the second look, whose failure must not have the engine told again.
    return store.keep(_looked(store.keep(now), clock))


def requeue(store: JobStore, record: Record, clock: Clock = time.time) -> Record:
    """Give a job another attempt. One that has succeeded is left alone, one that was never sent is sent."""
    with store.exclusive(record.token):
        before = store.keep(_looked(store.reload(record), clock))
        if before.state is State.SUCCEEDED:
            return before
        # A state that is not final, so that the job is looked at again if no answer comes.
        wanted = State.SUBMITTED if before.native is None else State.REQUEUED
        record = store.keep(replace(before, cancelled=None, heard=False, state=wanted))
        job, target = opened(record)
        if (native := record.native) is not None:
            try:
                native = target.requeue(job, native)
            except Failure as failure:
                if failure.outcome.code is not Exit.PEER_UNAVAILABLE:  # no further attempt: its cancel still holds
                    store.keep(before)
                raise
            again = JobStatus(state=State.REQUEUED, native="asked to requeue")
            return store.keep(replace(record, native=native).after(again, clock()))
        if before.cancelled is not None:
            unmark(job)
    return _sent(store, record, clock)


def watched(store: JobStore, record: Record, sleep: Callable[[float], None] = time.sleep) -> Iterator[Record]:
    """The record after each of several looks, until the job has ended. An engine that does not answer is asked again,
    with `Patience`."""
    patience = OutagePatience()
    while True:
        try:
            record = refresh(store, store.reload(record))
        except Failure as failure:
            sleep(patience.bear(failure))
            continue
        patience.answered()
        yield record
        if record.state.final:
            return
        sleep(1.0 if record.kind == "local" else 5.0)  # others ask their engine too


def opened(record: Record) -> tuple[Submission, Target]:
    """A job and its target."""
    job = record.submission()
    return job, build(job.settings)


def _sent(store: JobStore, record: Record, clock: Clock = time.time) -> Record:
    """The record of a job that the engine has."""
    with store.exclusive(record.token):
        record = store.reload(record)
        if record.native is not None:
            return record
        job, target = opened(record)
        # Asked for first: a request whose answer was lost has arrived under this token.
        try:
            native = target.find(job) or target.submit(job)
        except Failure as failure:
            if failure.outcome.code is not Exit.PEER_UNAVAILABLE:
                # The engine refuses, so it never has the job. After 69 it may, and the record stays as it is.
                refused = JobStatus(state=State.FAILED, native="refused", reason=failure.outcome.cause)
                store.keep(record.after(refused, clock()))
            raise
        return store.keep(replace(record, native=native, state=State.PENDING))
