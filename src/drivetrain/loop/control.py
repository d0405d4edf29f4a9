"""Commands to a run that trains: heard by the leader, obeyed by all ranks at one boundary, and again in a replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from drivetrain.launch.inbox import Inbox, Posted
from drivetrain.loop.journal import Journal
from drivetrain.loop.tuning import Tuning
from drivetrain.runtime.group import Group
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from drivetrain.loop.parts import Parts

REPLAYED = ("set", "evaluate")
"""What decides later bits or scores: it is done again where steps are made again, and in a replay."""


COMMITS = ("save", "pin")
"""What asks for a commit: done again by the run itself where it was cut off before that."""
AT_ONCE = 32
"""Commands that are taken at one boundary: a `set` takes some milliseconds, and a step does not wait for thousands."""


class Control:
    """The leader's inbox, and the commands that are to be done again, by the step after which each was done."""

    def __init__(
        self,
        inbox: Inbox | None,
        group: Group,
        journal: Journal,
        tuning: Tuning,
        settings: str,
        known: Iterable[str] = (),
        again: Iterable[Mapping[str, Any]] = (),
        begin: int = 0,
    ) -> None:
        """`inbox` is the leader's, `settings` the digest of all that may be set. `known` are ids of commands in
        the ledger, `again` records of those to do again (what was told before it, at once), `begin` is the step that
        the attempt goes on from."""
        self.tuning = tuning
        self._inbox = inbox
        self._group = group
        self._journal = journal
        self._settings = settings
        self._known = set(known)
        self._begin = begin
        self._batch: Iterator[Posted] | None = None
        self._again: dict[int, list[Mapping[str, Any]]] = {}
        for record in again:
            self._again.setdefault(max(record["step"], begin), []).append(record)

    def waiting(self) -> bool:
        """Whether this rank has heard a command that it has not taken."""
        return self._inbox is not None and self._inbox.waiting()

    def due(self, step: int) -> bool:
        """Whether a command is to be done again after this step."""
        return step in self._again

    def again(self, step: int) -> list[Mapping[str, Any]]:
        """The commands that are done again after this step, with a record of each."""
        records = self._again.pop(step, [])
        for record in records if step > self._begin else ():  # what was told at the start stands in the ledger
            told = {name: record[name] for name in ("id", "verb", "argument", "effect")}
            self._keep(step, **told, replayed=True)
        return records

    def take(self, step: int, parts: Parts) -> Mapping[str, Any] | None:
        """The next command that the leader has heard, the same on all ranks; None where there is no more, or where the
        rest is for the next boundary.

        It is durable in the ledger before it is returned. What cannot be done is told there too, and passed over.
        """
        return self._group.broadcast_json(self._next(step, parts) if self._inbox else None)

    def _next(self, step: int, parts: Parts) -> dict[str, Any] | None:
        assert self._inbox is not None
        self._batch = self._batch or self._inbox.take(AT_ONCE)
        for posted in self._batch:
            fresh = posted.id not in self._known  # a run that was killed may have told of it and left its file
            told = self._decided(posted, step, parts) if fresh else {}
            if fresh:
                self._keep(step, **told)
                self._journal.sync()
                self._known.add(posted.id)
            self._inbox.done(posted.id)
            if fresh and "refused" not in told:
                return told
        self._batch = None
        return None

    def close(self, step: int) -> None:
        """The run is at its end: what still waits is refused, so that the next start does not stumble over it."""
        if self._inbox is None:
            return
        for posted in self._inbox.take():
            if posted.id not in self._known:
                self._keep(step, **_said(posted), refused="the run was at its end")
            self._inbox.done(posted.id)

    def _decided(self, posted: Posted, step: int, parts: Parts) -> dict[str, Any]:
        """The command and what it comes to, or why it is refused."""
        told = _said(posted)
        if posted.command is None:
            return told | {"refused": posted.wrong}
        try:
            return told | {"effect": self._effect(posted.command, step, parts)}
        except Failure as failure:
            return told | {"refused": failure.details.replace("\n", "; ") or failure.outcome.cause}

    def _effect(self, command: Command, step: int, parts: Parts) -> dict[str, Any]:
        if command.verb == "profile":
            parts.observer.require_free(step + 1)
        if command.verb == "evaluate" and not parts.validation:
            raise Failure(Exit.BAD_COMMAND, "there are no validation sets", "name some under data.validation")
        return self.tuning.effect(command.argument, parts, step) if command.verb == "set" else {}

    def _keep(self, step: int, **told: Any) -> None:
        self._journal.record("command", step=step, settings=self._settings, **told)


def _said(posted: Posted) -> dict[str, Any]:
    """What was posted, as records name it; a file that holds no command has an empty verb."""
    said = posted.command.to_json() if posted.command else {"verb": "", "argument": ""}
    return {"id": posted.id, **said}
