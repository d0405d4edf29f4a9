"""Commands to a run that trains: heard by the leader, told to all ranks at one boundary, and kept in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.launch.inbox import Posted, WatchedInbox
from drivetrain.ledger.records import CommandRecord, Effect, parse
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.runtime.group import Group
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Failure

REPLAYED = ("set", "evaluate")
"""What decides later bits or scores: it is done again where steps are made again, and in a replay."""
COMMITS = ("save", "pin")
"""What asks for a commit: done again by the run itself where it was cut off before that."""
ANSWER = 2.0
"""Seconds that the end of a run waits for the folder of commands."""
AT_ONCE = 32
"""Commands that are taken at one boundary: a `set` takes some milliseconds, and a step does not wait for thousands."""


@dataclass(frozen=True)
class CommandHistory:
    """What the ledger says of commands at an attempt's start.

    `known` are ids of all of them, `replayed` records of those to do again (what was told before `begin`, at once),
    `begin` is the step that the attempt goes on from. `pending` is the pause or stop that it was told when it was cut
    off, `settings` the digest of all that may be set.
    """

    known: Sequence[str]
    replayed: Sequence[CommandRecord]
    begin: int
    pending: str
    settings: str


class Control:
    """The leader's inbox, and the commands that are to be done again, by the step after which each was done."""

    def __init__(self, inbox: WatchedInbox | None, group: Group, ledger: LedgerWriter, history: CommandHistory) -> None:
        """`inbox` is the leader's."""
        self.history = history
        self._inbox = inbox
        self._group = group
        self._ledger = ledger
        self._known = set(history.known)
        self._batch: Iterator[Posted] | None = None
        self._recorded: list[str] = []  # ids of commands that the ledger has, not yet durable
        self._replayed: dict[int, list[CommandRecord]] = {}
        for record in history.replayed:
            # What was told before the commit that the run goes on from is done again at once.
            self._replayed.setdefault(max(record.step, history.begin), []).append(record)

    def waiting(self) -> bool:
        """Whether this rank has heard a command that it has not taken; while the disk stalls none is, since each must
        be durable before it acts."""
        return self._inbox is not None and self._inbox.waiting() and not self._ledger.behind

    def replay(self, step: int) -> Sequence[CommandRecord]:
        """The commands that are done again after this step, with a record of each."""
        if step not in self._replayed:
            return ()
        records = self._replayed.pop(step)
        if step > self.history.begin:  # what was told at the start stands in the ledger already
            for record in records:
                again = replace(record, step=step, settings=self.history.settings, replayed=True, chain=None)
                self._ledger.record(again)
        return records

    def take(self, step: int, effect_of: Callable[[Command, int], Effect]) -> CommandRecord | None:
        """The next command that the leader has heard, the same on all ranks; None where there is no more, or where the
        rest is for the next boundary.

        It is durable in the ledger before it is returned. What `effect_of` refuses by a Failure is told there too, and
        passed over.
        """
        own = None
        if self._inbox:
            own = self._next(self._inbox, step, effect_of)
        self._finish()
        heard = self._group.broadcast_json(own.to_json() if own else None)
        if not heard:
            return None
        return read_command(heard)

    def close(self, step: int) -> None:
        """The run is at its end: what still waits is refused, so that the next start does not stumble over it."""
        if self._inbox is None:
            return
        self._inbox.look(ANSWER)
        for posted in self._inbox.take():
            if posted.id not in self._known:
                self._ledger.record(self._refused(posted, step, "the run was at its end"))
            self._recorded.append(posted.id)
        if self._recorded:
            self._ledger.sync()
        self._forget(self._inbox)

    def _finish(self) -> None:
        """Have what was recorded durable, all ranks together, in turns: none of them is taken for a hang."""
        ticket = self._ledger.request() if self._recorded else 0
        while not self._group.broadcast_json(self._ledger.durable(ticket)):
            pass
        if self._inbox:
            self._forget(self._inbox)

    def _forget(self, inbox: WatchedInbox) -> None:
        """After the ledger is durable: a kill in between finds a command in both places, and never in none."""
        for id in self._recorded:
            inbox.done(id)
        self._recorded.clear()

    def _next(
        self, inbox: WatchedInbox, step: int, effect_of: Callable[[Command, int], Effect]
    ) -> CommandRecord | None:
        # One iterator for all calls at a boundary: each goes on where the one before stopped, up to AT_ONCE in all.
        self._batch = self._batch or inbox.take(AT_ONCE)
        for posted in self._batch:
            if posted.id in self._known:  # a run that was killed may have told of it and left its file
                inbox.done(posted.id)
                continue
            record = self._decided(posted, step, effect_of)
            self._ledger.record(record)
            self._known.add(posted.id)
            self._recorded.append(posted.id)
            if record.refused is None:
                return record
        self._batch = None
        return None

    def _decided(self, posted: Posted, step: int, effect_of: Callable[[Command, int], Effect]) -> CommandRecord:
        """The command and its effect, or why it is refused."""
        if posted.command is None:
            return self._refused(posted, step, posted.wrong)
        try:
            effect = effect_of(posted.command, step)
        except Failure as failure:
            return self._refused(posted, step, failure.details.replace("\n", "; ") or failure.outcome.cause)
        return replace(self._said(posted, step), effect=effect)

    def _refused(self, posted: Posted, step: int, why: str) -> CommandRecord:
        return replace(self._said(posted, step), refused=why)

    def _said(self, posted: Posted, step: int) -> CommandRecord:
        """What was posted; a file that holds no command has an empty verb."""
        verb = argument = ""
        if posted.command:
            verb, argument = posted.command.verb, posted.command.argument
        return CommandRecord(step=step, settings=self.history.settings, id=posted.id, verb=verb, argument=argument)


def read_command(fields: Mapping[str, Any]) -> CommandRecord:
    """A command's record from JSON data, as another rank or the leader's ledger has it."""
    record = parse(fields)
    assert isinstance(record, CommandRecord)
    return record
