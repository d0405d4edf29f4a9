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


def told(history: History, step: int, recipe: str, settings: str, replay: str | None) -> Told:
    """What an attempt that begins after `step` takes over from the ledger, and from that of the run that it replays.

    `recipe` is the digest of its recipe, `settings` that of all that may be set. Raises Failure(78) where the other run
    has another recipe, 66 where it has no ledger, 76 where it was told something that this one has passed without it.
    """
    records = dict(history.commands)
    if replay:
        fresh = {id: record for id, record in _of(Path(replay), recipe).items() if id not in records}
        late = [record for record in fresh.values() if record["step"] <= step and record["verb"] in REPLAYED]
        if late and step:
            cause = f"{replay} was told `{late[0]['verb']} {late[0]['argument']}` after step {late[0]['step']}"
            hint = "replay it anew, in another directory (--run)"
            raise Failure(Exit.INCOMPATIBLE, f"{cause}; this replay is at step {step} without it", hint)
        records |= fresh
    ordered = sorted(records.values(), key=lambda record: (record["step"], record["time"]))
    deciding = [record for record in ordered if record["verb"] in REPLAYED]
    dropped = [record for record in deciding if record["settings"] != settings or record["id"] in history.ended]
    owed = [] if history.evaluated(step) else ["evaluate"]  # an evaluation that was cut off is made at the start
    return Told(
        past=[record for record in deciding if record["step"] <= step],
        again=[
            record
            for record in deciding
            if record not in dropped and (record["step"] > step or (record["step"] == step and record["verb"] in owed))
        ],
        dropped=dropped,
    )


def _of(run: Path, recipe: str) -> dict[str, Record]:
    history = History()
    for record in read(run / "ledger.jsonl"):
        history.add(record)
    if history.newest is None or history.newest["recipe"] != recipe:
        raise Failure(Exit.BAD_RECIPE, f"{run} was trained with another recipe", "replay it without overrides")
    return history.commands
