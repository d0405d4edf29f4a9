"""What a run was told while it trained, as the next attempt takes it over, or as another run replays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from drivetrain.ledger.records import CommandRecord, Stage
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.loop.control import COMMITS, REPLAYED, read_command
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class ReplayedCommands:
    """Records of commands. `past` hold where the attempt begins, `replayed` are done once more, after the same steps.

    `dropped` were given to another recipe: who changes it by hand means its values.
    """

    past: list[CommandRecord]
    replayed: list[CommandRecord]
    dropped: list[CommandRecord]

    @property
    def texts(self) -> list[str]:
        """What was set so far, KEY=VALUE."""
        return [record.argument for record in self.past if record.verb == "set" and record not in self.dropped]

    @property
    def stages(self) -> list[Stage]:
        """The stages of the samples' order that were set so far: they stay, whatever the recipe has become."""
        stages = []
        for record in self.past:
            if record.verb == "set" and record.effect and record.effect.stage:
                stages.append(record.effect.stage)
        return stages

    def to_json(self) -> dict[str, Any]:
        """For the other ranks."""
        told = {}
        for each in fields(self):
            told[each.name] = [record.to_json() for record in getattr(self, each.name)]
        return told

    @classmethod
    def from_json(cls, lists: Mapping[str, Sequence[Mapping[str, Any]]]) -> ReplayedCommands:
        """What `to_json` gave."""
        read = {name: list(map(read_command, records)) for name, records in lists.items()}
        return cls(**read)


def commands_to_replay(
    history: ResumeIndex, step: int, settings: str, *, committed: int, replay: Mapping[str, CommandRecord] | None = None
) -> ReplayedCommands:
    """What an attempt that begins after `step` takes over from the ledger, and from commands of the run it replays.

    `settings` is the digest of all that may be set, `committed` the step of the newest commit. Raises Failure(76) where
    the other run was told something that this one has passed without it.
    """
    records = _all_commands(history, step, replay or {})
    past, replayed, dropped = [], [], []
    for record in sorted(records, key=lambda record: (record.step, record.time)):
        if record.verb in COMMITS:
            # Neither bits nor scores depend on it. It is done again where it was cut off before its commit.
            if record.step > committed and record.id in history.commands:
                replayed.append(record)
        elif record.verb in REPLAYED:
            if record.step <= step:
                past.append(record)
            if record.settings != settings or record.id in history.ended:
                dropped.append(record)
            elif _is_due(record, history, step):
                replayed.append(record)
    return ReplayedCommands(past=past, replayed=replayed, dropped=dropped)


def _all_commands(history: ResumeIndex, step: int, replay: Mapping[str, CommandRecord]) -> list[CommandRecord]:
    """What this run was told, and what the run that it replays was told besides.

    Raises Failure(76) where this one is past a command that it has not done: its bits are others already.
    """
    found = dict(history.commands)
    for id, record in replay.items():
        if id in found:
            continue
        if step and record.step <= step and record.verb in REPLAYED:
            cause = f"the other run was told `{record.verb} {record.argument}` after step {record.step}"
            hint = "replay it anew, in another directory (--run)"
            raise Failure(Exit.INCOMPATIBLE, f"{cause}; this replay is at step {step} without it", hint)
        found[id] = record
    return list(found.values())


def _is_due(record: CommandRecord, history: ResumeIndex, step: int) -> bool:
    """Whether a command that decides bits or scores is still ahead of an attempt that begins after `step`."""
    if record.step > step:
        return True
    # Its record is durable before it is done: a crash in between leaves an evaluation that was told and not made.
    return record.step == step and record.verb == "evaluate" and not history.evaluated(step)
