"""What a run was told while it trained, as the next attempt takes it over, or as another run replays it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drivetrain.ledger.derive import Record
from drivetrain.ledger.history import History
from drivetrain.ledger.ledger import read
from drivetrain.loop.control import REPLAYED
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


def told(history: History, step: int, recipe: str, replay: str | None) -> Told:
    """What an attempt that begins after `step` takes over from the ledger, and from that of the run that it replays.

    `recipe` is the digest of its recipe. Raises Failure(78) where the other run has another recipe, 66 where it has no
    ledger.
    """
    records = dict(history.commands)
    if replay:
        records |= {id: record for id, record in _of(Path(replay), recipe).items() if id not in records}
    ordered = sorted(records.values(), key=lambda record: (record["step"], record["time"]))
    deciding = [record for record in ordered if record["verb"] in REPLAYED]
    dropped = [record for record in deciding if record["recipe"] != recipe]
    return Told(
        past=[record for record in deciding if record["step"] <= step],
        again=[record for record in deciding if record["step"] > step and record not in dropped],
        dropped=dropped,
    )


def _of(run: Path, recipe: str) -> dict[str, Record]:
    history = History()
    for record in read(run / "ledger.jsonl"):
        history.add(record)
    if history.newest is None or history.newest["recipe"] != recipe:
        raise Failure(Exit.BAD_RECIPE, f"{run} was trained with another recipe", "replay it without overrides")
    return history.commands
