"""What a run's networks say of samples: of a set of the recipe, or of a new file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from drivetrain.engine.placement import Replicated
from drivetrain.engine.transfer import to_device
from drivetrain.loop.evaluation import ValidationSet
from drivetrain.loop.task import Task
from drivetrain.run.build import open_inputs
from drivetrain.run.finished import FinishedRun, Weights, chosen, open_finished
from drivetrain.runtime.group import Group
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import own_name
from drivetrain.spec.recipe import Recipe

_FORMATS = (".jsonl", ".csv", ".tsv")
_ROWS = ("jsonl", "table", "parquet", "datasets")
_FILE = "file"  # the name of a set that is made of a new file


def predict_run(run: Path, data: str, to: Path, commit: str | None = None, weights: Weights | None = None) -> int:
    """Write what the newest commit, or the named one, says of each sample, in their order; returns how many there are.

    `data` is the name of a set, or a file or folder that is read as the recipe reads such ones. `to` is a .jsonl, .csv
    or .tsv file; the latter two have the fields that are numbers or words. It is written batch by batch, and is there
    once it is whole.

    Raises Failure: 64 where the task predicts nothing or the file is of another kind, 66 where there is no such run,
    commit or set, 73 where the file is there already or cannot be made.
    """
    _require_new(to)
    finished = open_finished(run, commit, weights)
    if type(finished.task).predict is Task.predict:
        raise Failure(Exit.BAD_COMMAND, f"{run}: the task {type(finished.task).__name__} has no predict", "write one")
    predicted = _predicted(finished, _set_of(finished, run, data))
    temporary = to.with_name(f".{to.name}.{own_name()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", newline="") as file:
            count = _write(file, predicted, to.suffix)
        os.rename(temporary, to)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{to} cannot be written: {error}", "name another file") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return count


def _set_of(finished: FinishedRun, run: Path, data: str) -> ValidationSet:
    """The set that `data` means."""
    recipe, name = finished.recipe, data
    if data not in {*recipe.data.validation, *recipe.data.test, "validation", "test", "all"} and Path(data).exists():
        recipe, name = _with_file(recipe, data), _FILE
    sets = chosen(open_inputs(recipe, run, finished.task).sets(recipe, 1), name)
    if len(sets) > 1:
        names = ", ".join(each.name for each in sets)
        raise Failure(Exit.BAD_COMMAND, f"--data {data} means several sets", f"name one of {names}")
    return sets[0]


def _with_file(recipe: Recipe, path: str) -> Recipe:
    """The recipe with one set: all of what lies at this path, read as the first of its sources of rows that ends
    alike, or else as the first one. Raises Failure(64) where it has none."""
    sources = [*recipe.data.test.values(), *recipe.data.validation.values(), *recipe.data.train.sources]
    files = [source for source in sources if not isinstance(source, Custom) and source.kind in _ROWS]
    if not files:
        raise Failure(Exit.BAD_COMMAND, f"--data {path}: the recipe has no source of rows", "name one of its sets")
    alike = [source for source in files if Path(source.path).suffix == Path(path).suffix]
    own = replace((alike or files)[0], path=path, part="all")
    return replace(recipe, data=replace(recipe.data, validation={}, test={_FILE: own}))


def _predicted(finished: FinishedRun, given: ValidationSet) -> Iterator[dict[str, Any]]:
    """What the networks say of each sample."""
    engine, task = finished.engine(Replicated(Group())), finished.task
    with engine.evaluating() as networks:
        for first in range(0, given.size, given.batch):
            ids = np.arange(first, min(first + given.batch, given.size), dtype=np.int64)
            batch = to_device(task.collate(given.source.read(ids, ids)), engine.device)
            yield from task.predict(networks, batch)


def _require_new(to: Path) -> None:
    if to.suffix not in _FORMATS:
        raise Failure(Exit.BAD_COMMAND, f"--to {to} is of no kind that is written", f"it ends in {', '.join(_FORMATS)}")
    if to.exists() or not to.parent.is_dir():
        why = "is there already" if to.exists() else "cannot be made: its folder is not there"
        raise Failure(Exit.CANNOT_CREATE, f"{to} {why}", "name another file")


def _write(file: IO[str], rows: Iterable[dict[str, Any]], suffix: str) -> int:
    """Write the rows as they come; how many there are."""
    count = 0
    names: list[str] = []
    writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
    for count, row in enumerate(rows, 1):
        if suffix == ".jsonl":
            file.write(json.dumps(row) + "\n")
            continue
        if count == 1:
            names = [name for name, value in row.items() if not isinstance(value, (dict, list))]
            writer.writerow(names)
        writer.writerow([row[name] for name in names])
    if not count and suffix != ".jsonl":
        writer.writerow(names)
    return count
