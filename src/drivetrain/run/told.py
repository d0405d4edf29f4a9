"""What a run was told while it trained, as the next attempt takes it over, or as another run replays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.ledger.derive import Record
from drivetrain.ledger.history import History
from drivetrain.loop.control import COMMITS, REPLAYED
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Told:
    """Records of commands. `past` hold where the attempt begins, `again` are done once more, after the same steps.

    `dropped` were given to another recipe: who changes it by hand means its values.
    """

    past: list[Record]
    again: list[Record]
    dropped: list[Record]

    @property
    def texts(self) -> list[str]:
        """What was set so far, KEY=VALUE."""
        return [record["argument"] for record in self.past if record["verb"] == "set" and record not in self.dropped]

    @property
    def effects(self) -> list[dict[str, Any]]:
        """The effects of what was set so far. Stages of the samples' order stay, whatever the recipe has become."""
        return [record["effect"] for record in self.past if record["verb"] == "set"]

    def to_json(self) -> dict[str, Any]:
        """For the other ranks."""
        return asdict(self)


def told(
    history: History, step: int, settings: str, *, committed: int, replay: Mapping[str, Record] | None = None
) -> Told:
    """What an attempt that begins after `step` takes over from the ledger, and from commands of the run it replays.

    `settings` is the digest of all that may be set, `committed` the step of the newest commit. Raises Failure(76) where
    the other run was told something that this one has passed without it.
    """
    records = dict(history.commands)
    fresh = {id: record for id, record in (replay or {}).items() if id not in records}
    late = [record for record in fresh.values() if record["step"] <= step and record["verb"] in REPLAYED]
    if late and step:
        cause = f"the other run was told `{late[0]['verb']} {late[0]['argument']}` after step {late[0]['step']}"
        hint = "replay it anew, in another directory (--run)"
        raise Failure(Exit.INCOMPATIBLE, f"{cause}; this replay is at step {step} without it", hint)
    ordered = sorted((records | fresh).values(), key=lambda record: (record["step"], record["time"]))
    deciding = [record for record in ordered if record["verb"] in REPLAYED]
    dropped = [record for record in deciding if record["settings"] != settings or record["id"] in history.ended]

    def due(record: Record) -> bool:
        if record["verb"] in COMMITS:  # it was cut off before its commit
            return record["step"] > committed and record["id"] in history.commands
        if record["verb"] not in REPLAYED or record in dropped:
            return False
        cut_off = record["step"] == step and record["verb"] == "evaluate" and not history.evaluated(step)
        return record["step"] > step or cut_off

    return Told(
        past=[record for record in deciding if record["step"] <= step],
        again=[record for record in ordered if due(record)],
        dropped=dropped,
    )
