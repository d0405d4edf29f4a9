"""What a target is: how a job is described to an engine, sent to it, watched, and ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from drivetrain.launch.states import JobStatus
from drivetrain.launch.submission import NodeWork, Submission


@dataclass(frozen=True)
class Request:
    """One part of what an engine is sent, as `submit --dry-run` shows it: `what` it is, and its text."""

    what: str
    body: str


@dataclass(frozen=True)
class Listed:
    """A job that an engine has, as it tells of it to whoever asks, wherever it was submitted."""

    token: str
    native: str
    seen: JobStatus


class Target(Protocol):
    """One place where jobs run. It is made from its settings, without asking anybody anything.

    Every method but `render` talks to the engine, with a time limit on each call, and raises Failure(69) where it does
    not answer. `native` is what `submit` returned: the engine's own name of the job.
    """

    def render(self, job: Submission) -> Sequence[Request]:
        """The native request, checked as far as that goes offline; Failure(78) for what the engine would refuse.

        No side effects. Arguments and environment travel as data; secrets only as references.
        """
        ...

    def submit(self, job: Submission) -> str:
        """Send the request and return the engine's name of the job, under the job's token.

        Asked twice with one token there is still one job: the engine refuses the second, or the worker does.
        """
        ...

    def find(self, job: Submission) -> str | None:
        """The engine's name of the job with this token; None where it has none: then it may be submitted again."""
        ...

    def look(self, job: Submission, native: str) -> JobStatus:
        """Where it stands; `UNKNOWN` where the engine has forgotten it."""
        ...

    def logs(self, job: Submission, native: str, rank: int | None, follow: bool) -> Iterator[str]:
        """Lines of what one rank, or for None the first node, has printed; with `follow` until the job has ended."""
        ...

    def cancel(self, job: Submission, native: str) -> None:
        """End it for good: nothing may start it again, which is marked in its folder already, where that can be seen
        from here. The trainer is asked to commit first."""
        ...

    def requeue(self, job: Submission, native: str) -> str:
        """Give it another attempt, whether it runs or has ended; returns its name, which may be a new one."""
        ...

    def listed(self) -> Sequence[Listed]:
        """Every job of this user's that `drivetrain submit` sent to this engine and that it still knows."""
        ...

    def work(self, native: str) -> NodeWork:
        """What a listed job was told, as its engine or its folder keeps it. Raises Failure(66) where nothing does, 65
        where that is damaged."""
        ...

    def reachable(self) -> str:
        """What answers there, with its version; Failure(69) that says why nothing does."""
        ...
