"""What a run does not share with another one, or with what its command would train today."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drivetrain.checkpoint.compatible import deciding
from drivetrain.ledger.records import CodeFileRecord
from drivetrain.ledger.resume_index import ResumeIndex, history_of
from drivetrain.run.build import build_task, open_inputs
from drivetrain.run.user_code import Contents, changes, contents, recorded, shown
from drivetrain.runtime import device as devices
from drivetrain.spec.affects import differences
from drivetrain.spec.code.kept import kept
from drivetrain.spec.code.scan import files_today, scan
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe


@dataclass(frozen=True)
class Difference:
    """One thing that differs: of which part (recipe, code, environment, data), its name, both sides (None: it is not
    there), whether it decides bits, and for code a unified diff."""

    part: str
    name: str
    old: Any
    new: Any
    bits: bool
    diff: str = ""


@dataclass(frozen=True)
class Comparison:
    """What differs between two sides, and what could not be compared."""

    old: str
    new: str
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class _Side:
    """A run as of its newest attempt, or today. Of recipe, files and data None means that nothing is known."""

    name: str
    recipe: Recipe | None
    files: Mapping[str, CodeFileRecord] | None
    contents: Contents
    environment: Mapping[str, Any]
    data: Mapping[str, str] | None
    unread: str = ""
    """Why nothing is known of the data."""


def compared(run: Path, other: Path | None = None, *, data: bool = True) -> Comparison:
    """A run and another one, or today: what its recipe's file, its code, this environment and its sources are now.

    Without `data` no source is opened today. Raises Failure: 66 where one is no run, and what loading a recipe raises.
    """
    history = history_of(run)
    old = _of_run(run, history)
    new = _of_run(other, history_of(other)) if other else _today(run, history, data=data)
    found = [*_recipe(old, new), *_code(old, new), *_environment(old, new), *_data(old, new)]
    return Comparison(old.name, new.name, tuple(found), tuple(_unknown(old, new)))


def _of_run(run: Path, history: ResumeIndex) -> _Side:
    newest, files = history.newest, history.newest_files
    if newest is None:
        raise Failure(Exit.INPUT_MISSING, f"{run}: the ledger has no attempt", "train it first")
    recipe = load(run).recipe
    if files is None and not scan(recipe).files:
        files = {}  # there is no code of the user's to know of
    environment = newest.environment
    if (run / "environment.json").is_file():
        environment = _kept_environment(run / "environment.json")
    return _Side(str(run), recipe, files, partial(kept, run), environment, newest.data)


def _kept_environment(path: Path) -> Mapping[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return dict(kept)
    except (OSError, ValueError, TypeError) as error:
        raise Failure(Exit.BAD_DATA, f"{path} is damaged: {error}", "the next attempt writes it anew") from error


def _today(run: Path, history: ResumeIndex, *, data: bool) -> _Side:
    """What the run would be if its command was given now, here."""
    before = load(run)
    recipe: Recipe | None = None
    # A path is absolute, the name of a shipped recipe is none.
    if before.source and (Path(before.source).is_file() or not Path(before.source).is_absolute()):
        recipe = load(before.source, before.given).recipe
    now = recipe or before.recipe
    code = scan(now)
    files = files_today(code, history.late_places)
    threads = devices.threads_per_process(now.launch.processes, now.launch.threads, exact=now.exact)
    devices.configure_determinism(devices.choose(now.device, 0), threads, now.matmul, exact=now.exact)
    digests, unread = _digests(now, run) if data else (None, "not looked at")
    environment = devices.environment(code.installed | now.embeddings.packages)
    return _Side("today", recipe, recorded(files), contents(files), environment, digests, unread)


def _digests(recipe: Recipe, run: Path) -> tuple[Mapping[str, str] | None, str]:
    """The content of today's sources, or why nobody can tell: to open them takes code of the user's, in any state."""
    try:
        return open_inputs(recipe, run, build_task(recipe)).digests, ""
    except Exception as error:
        return None, f"today's cannot be opened: {type(error).__name__}: {error}"


def _unknown(old: _Side, new: _Side) -> Iterator[str]:
    if new.recipe is None:
        yield "recipe: it came from no file, or that is gone; the run's own copy stands for today's"
    for side in (old, new):
        if side.files is None:
            yield f"code: {side.name} kept no record of it"
    if new.data is None:
        yield f"data: {new.unread}"


def _recipe(old: _Side, new: _Side) -> Iterator[Difference]:
    if old.recipe and new.recipe:
        for change in differences(old.recipe, new.recipe):
            yield Difference("recipe", change.path, change.old, change.new, change.affects == "bits")


def _code(old: _Side, new: _Side) -> Iterator[Difference]:
    if old.files is None or new.files is None:
        return
    for change in changes(old.files, new.files):
        was, now = change.old and change.old.digest, change.new and change.new.digest
        yield Difference("code", change.name, was, now, change.bits, shown([change], old.contents, new.contents))


def _environment(old: _Side, new: _Side) -> Iterator[Difference]:
    decide = deciding(old.environment).keys() | deciding(new.environment).keys()
    for name in dict.fromkeys([*old.environment, *new.environment]):
        was, now = old.environment.get(name), new.environment.get(name)
        if was != now:
            yield Difference("environment", name, was, now, name in decide)


def _data(old: _Side, new: _Side) -> Iterator[Difference]:
    if old.data is None or new.data is None:
        return
    for name in dict.fromkeys([*old.data, *new.data]):
        was, now = old.data.get(name), new.data.get(name)
        if was != now:
            yield Difference("data", name, was, now, bits=True)
