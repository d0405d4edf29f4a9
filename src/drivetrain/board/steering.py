"""What a run is told from the board: said before what it does, and done once however often it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from drivetrain.board.answers import CommandTold, Prepared
from drivetrain.board.index import Index
from drivetrain.board.runs import Run
from drivetrain.launch.inbox import new_id, post, waits
from drivetrain.ledger.records import CommandRecord
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.override import chosen
from drivetrain.spec.settable import SETTABLE, is_settable

_AFFECTS = {
    "pause": "it stands still after the step under way, holds its devices and memory, and waits for resume",
    "resume": "a run that stands still trains on",
    "save": "it makes a commit after the step under way; rotation may remove it later as any other",
    "evaluate": "it scores its validation sets after the step under way; training waits meanwhile",
    "stop": "it commits, ends with code 75, and gives its devices back; the command that started it goes on from there",
    "pin": "it makes a commit after the step under way, which rotation never removes",
}
_FOREVER = frozenset({"stop", "set"})
"""What cannot be undone: a run that was stopped starts again only from outside, and what was set has moved weights."""
_MOST = 200  # commands that are listed


def prepared(run: Run, command: Command) -> Prepared:
    """What a command would do; nothing is done yet. Its `id` is for `give`.

    Raises Failure(66) where nobody trains.
    """
    if not run.alive:
        raise Failure(Exit.INPUT_MISSING, f"nobody trains in {run.folder.name}", "start it; then it can be told")
    return {
        "id": new_id(),
        "command": str(command),
        "affects": _affects(run, command),
        "ask": command.verb in _FOREVER,
    }


def give(run: Run, command: Command, id: str) -> CommandTold:
    """Leave a prepared command for the run, unless that was done: it waits there, or the ledger has it.

    Raises Failure: 64 for what is no id, 66 where nobody trains, 73 where the directory cannot be written.
    """
    # The order matters: a run first writes the record, then removes what waits.
    if not waits(run.folder, id):
        run.index.follow_all()
        told = _record(run.index, id)
        if told:
            return told
        if not run.alive:
            raise Failure(Exit.INPUT_MISSING, f"nobody trains in {run.folder.name}", "start it; then it can be told")
        post(run.folder, command, id)
    return {
        "id": id,
        "verb": command.verb,
        "argument": command.argument,
        "step": None,
        "time": None,
        "state": "left",
        "refused": None,
        "record": None,
    }


def told(run: Run) -> list[CommandTold]:
    """The newest commands that the ledger has, newest first."""
    return list(_newest(run.index))


def _newest(index: Index) -> Iterator[CommandTold]:
    with index.lock:
        ids = list(index.commands)[-_MOST:]
    for id in reversed(ids):
        found = _record(index, id)
        if found:
            yield found


def _record(index: Index, id: str) -> CommandTold | None:
    offset = index.commands.get(id)
    if offset is None:
        return None
    record = index.record(offset)
    if not isinstance(record, CommandRecord):
        return None
    return {
        "id": id,
        "verb": record.verb,
        "argument": record.argument,
        "step": record.step,
        "time": record.time,
        "state": "refused" if record.refused is not None else "done",
        "refused": record.refused,
        "record": record.to_json(),
    }


def _affects(run: Run, command: Command) -> str:
    if command.verb == "profile":
        return f"torch's profiler watches the next {command.argument} steps, which take longer; files go to profile/"
    if command.verb == "set":
        key, _, value = command.argument.partition("=")
        _require_settable(run, command.argument)
        change = f"{key} becomes {value}{_before(run, key)} from one of the next steps on"
        return f"{change}, if the run takes the value; the steps until then stay as they are"
    return _AFFECTS[command.verb]


def _require_settable(run: Run, argument: str) -> None:
    """Raises Failure(78) for a key that cannot change; whether a value fits only the run itself can say."""
    for path in chosen(run.recipe.tree, argument):
        below = [key for key in run.recipe.values if key.startswith((f"{path}.", f"{path}["))]
        if not any(map(is_settable, [path, *below])):
            raise Failure(Exit.BAD_RECIPE, f"{path} cannot change while a run trains", f"there are {SETTABLE}")


def _before(run: Run, key: str) -> str:
    """What a key has now, in words: what was set last, or what the recipe has."""
    for told in _newest(run.index):
        set_key, _, value = told["argument"].partition("=")
        if told["verb"] == "set" and told["state"] == "done" and set_key == key:
            return f" (it is {value} now)"
    return f" (it is {json.dumps(run.recipe.values[key])} now)" if key in run.recipe.values else ""
