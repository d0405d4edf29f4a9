"""What targets have in common that are asked over a network: packed work, names, refusals."""

from __future__ import annotations

import base64
import binascii
import gzip
import secrets
from collections.abc import Mapping
from typing import Any

from drivetrain.launch.states import JobStatus, State
from drivetrain.launch.submission import NodeWork, Submission
from drivetrain.spec.exits import Exit, Failure


class Refused(Failure):
    """The engine answered, and does not do it; `word` is its own name for why, such as NotFound or 404."""

    def __init__(self, cause: str, word: str) -> None:
        super().__init__(Exit.BAD_RECIPE, cause, "that is the engine's answer")
        self.word = word


def away(cause: str) -> Failure:
    """For an engine that does not answer, or not now."""
    return Failure(Exit.PEER_UNAVAILABLE, cause, "ask again; nothing is lost")


def wrong(job: Submission, cause: str, hint: str) -> Failure:
    """For what the engine, or the job, would not bear."""
    return Failure(Exit.BAD_RECIPE, f"target {job.target}: {cause}", hint)


def require_ended(job: Submission, seen: JobStatus) -> None:
    """Raises Failure(64) where a job is to be started again that has not ended."""
    if not seen.state.final:
        stopping = seen.state is State.STOPPING
        hint = "wait until it has ended" if stopping else "cancel it first: it goes on from its commit"
        raise Failure(Exit.BAD_COMMAND, f"{job.token} is {seen.state.value}", hint)


def require_short(job: Submission, size: int, most: int, what: str) -> None:
    """Raises Failure(78) where a job is longer than what carries it."""
    if size > most:
        raise wrong(job, f"the job has {size} bytes, and {what} takes {most}", "put long values into a file there")


def with_extras(job: Submission, ours: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the target's own options; Failure(78) for one that follows from the job's description."""
    extras = job.settings.extras
    if taken := sorted(ours.keys() & extras.keys()):
        raise wrong(job, f"extras.{taken[0]} follows from the job's description", "leave it out")
    return {**ours, **extras}


def packed(work: NodeWork) -> str:
    """A work in letters that every engine accepts as a value."""
    # Without a time in it: asked twice, a request is the same.
    return base64.b64encode(gzip.compress(work.text().encode(), mtime=0)).decode()


def unpacked(text: str) -> str:
    """The work's JSON, as `packed` was given it; Failure(65) where it was damaged."""
    try:
        return gzip.decompress(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, OSError, EOFError, ValueError) as error:
        raise Failure(Exit.BAD_DATA, f"the job came damaged: {error}", "submit it again") from error


def parcelled(parcel: str | None, native: str) -> NodeWork:
    """The work of a parcel that an engine has kept; Failure(66) where it has none, 65 where it is damaged."""
    if not parcel:
        raise Failure(Exit.INPUT_MISSING, f"the engine keeps nothing of {native}", "go on where it was submitted")
    return NodeWork.parse(unpacked(parcel), native)


def renamed(token: str) -> str:
    """Another name for a job, where the engine keeps names for ever; `token_of` knows it again."""
    return f"{token}-r{secrets.token_hex(2)}"


def token_of(name: str) -> str:
    """The job's token, of its name at the engine: every token ends with eight digits, so no token looks renamed."""
    head, _, last = name.rpartition("-")
    if last.startswith("r") and len(last) == 5:
        return head
    return name
