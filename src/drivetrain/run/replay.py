"""The commands of the run that this one makes again, kept in this one's own directory: it needs the other only once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord, CodeFileRecord, CommandRecord
from drivetrain.ledger.resume_index import ResumeIndex
from drivetrain.loop.control import read_command
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json

NAME = "replay.json"


@dataclass(frozen=True)
class Replay:
    """What another run was told: its directory, the newest hash of its ledger when it was read, and the records of its
    commands by id, each with the digest of the settings that it was given to.

    Known to the start that reads the other run's ledger: `changed`, the steps after which that went on with another
    recipe or other code, and its newest code's `files` where it has a record of them; `late_places` says where those
    lay that came late.
    """

    run: str
    ledger: str
    commands: dict[str, CommandRecord]
    changed: tuple[int, ...] = ()
    files: Mapping[str, CodeFileRecord] | None = None
    late_places: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What whoever compares the two runs should know."""
        if not self.changed:
            return []
        steps = ", ".join(map(str, self.changed))
        newest = "this replay trains the newest one from the start, so its bits are others"
        return [f"{self.run} changed its recipe or code after step {steps}: {newest}"]

    def to_json(self) -> dict[str, Any]:
        """For the file."""
        commands = {id: record.to_json() for id, record in self.commands.items()}
        return {"run": self.run, "ledger": self.ledger, "commands": commands}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Replay:
        """What `to_json` gave."""
        commands = {id: read_command(record) for id, record in kept["commands"].items()}
        return cls(kept["run"], kept["ledger"], commands)


def replayed(folder: Path, asked: str | None, before: str | None, recipe: str, *, anew: bool = True) -> Replay | None:
    """What a run directory's attempt makes again: the run that it was `asked` to, else the one of the attempt before.

    The commands of the first start are kept, so that the other run may be removed; one that is asked for is read
    `anew`, but not where processes are only started again. Raises Failure(78) where this
    `recipe` (its digest) cannot make the other run again, 66 where that has no ledger.
    """
    found = None
    if not (asked and anew):
        found = kept_in(folder)
    source = asked or before
    if found is None and source:
        found = _taken(Path(source), recipe)
        write_json(folder / NAME, found.to_json())
    return found


def kept_in(folder: Path) -> Replay | None:
    """What a run directory keeps of the run that it makes again. Raises Failure(65) where that is damaged."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        return Replay.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Failure(
            Exit.BAD_DATA, f"{path} is damaged: {error}", "replay the run anew, in another directory"
        ) from None


def _taken(run: Path, recipe: str) -> Replay:
    """What a run was told so far, from its ledger."""
    history, tail = ResumeIndex(), ""
    counted: list[AttemptRecord] = []
    for record in read(run / "ledger.jsonl"):
        history.add(record)
        if isinstance(record, AttemptRecord):  # those before that began here or later have left nothing
            counted = [attempt for attempt in counted if attempt.from_step < record.from_step] + [record]
        tail = record.chain or ""
    if history.newest is None or history.newest.recipe != recipe:
        raise Failure(Exit.BAD_RECIPE, f"{run} was trained with another recipe", "replay it without overrides")
    changed = []
    for before, after in pairwise(counted):
        if (before.recipe, before.claim.code) != (after.recipe, after.claim.code):
            changed.append(after.from_step)
    return Replay(str(run), tail, history.commands, tuple(changed), history.newest_files, history.late_places)
