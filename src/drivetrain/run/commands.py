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
        effects = [record.effect for record in self.past if record.verb == "set"]
        return [effect.stage for effect in effects if effect and effect.stage]

    def to_json(self) -> dict[str, Any]:
        """For the other ranks."""
        return {each.name: [record.to_json() for record in getattr(self, each.name)] for each in fields(self)}

    @classmethod
    def from_json(cls, lists: Mapping[str, Sequence[Mapping[str, Any]]]) -> ReplayedCommands:
        """What `to_json` gave."""
        return cls(**{name: [read_command(record) for record in records] for name, records in lists.items()})


def commands_to_replay(
    history: ResumeIndex, step: int, settings: str, *, committed: int, replay: Mapping[str, CommandRecord] | None = None
) -> ReplayedCommands:
    """What an attempt that begins after `step` takes over from the ledger, and from commands of the run it replays.

    `settings` is the digest of all that may be set, `committed` the step of the newest commit. Raises Failure(76) where
    the other run was told something that this one has passed without it.
    """
    records = dict(history.commands)
    fresh = {id: record for id, record in (replay or {}).items() if id not in records}
    late = [record for record in fresh.values() if record.step <= step and record.verb in REPLAYED]
    if late and step:
        cause = f"the other run was told `{late[0].verb} {late[0].argument}` after step {late[0].step}"
        hint = "replay it anew, in another directory (--run)"
        raise Failure(Exit.INCOMPATIBLE, f"{cause}; this replay is at step {step} without it", hint)
    ordered = sorted((records | fresh).values(), key=lambda record: (record.step, record.time))
    deciding = [record for record in ordered if record.verb in REPLAYED]
    dropped = [record for record in deciding if record.settings != settings or record.id in history.ended]

    def due(record: CommandRecord) -> bool:
        if record.verb in COMMITS:  # it was cut off before its commit
            return record.step > committed and record.id in history.commands
        if record.verb not in REPLAYED or record in dropped:
            return False
        cut_off = record.step == step and record.verb == "evaluate" and not history.evaluated(step)
        return record.step > step or cut_off

    return ReplayedCommands(
        past=[record for record in deciding if record.step <= step],
        replayed=[record for record in ordered if due(record)],
        dropped=dropped,
    )
