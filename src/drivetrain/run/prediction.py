"""What a run's networks say of the samples of a set."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.engine.placement import Replicated
from drivetrain.engine.transfer import to_device
from drivetrain.loop.task import Task
from drivetrain.run.build import open_inputs
from drivetrain.run.finished import Weights, chosen, open_finished
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_FORMATS = (".jsonl", ".csv", ".tsv")


def predict_run(run: Path, data: str, to: Path, commit: str | None = None, weights: Weights | None = None) -> int:
    """Write what the newest commit, or the named one, says of each sample of a set, in the set's order; returns how
    many there are. `to` is a .jsonl, .csv or .tsv file; the latter two have the fields that are numbers or words.

    Raises Failure: 64 where the task predicts nothing or the file is of another kind, 66 where there is no such run,
    commit or set, 73 where the file is there already or cannot be made.
    """
    _require_new(to)
    finished = open_finished(run, commit, weights)
    recipe, task = finished.recipe, finished.task
    if type(task).predict is Task.predict:
        raise Failure(Exit.BAD_COMMAND, f"{run}: the task {type(task).__name__} has no predict", "write one")
    sets = chosen(open_inputs(recipe, run, task).sets(recipe, 1), data)
    if len(sets) > 1:
        names = ", ".join(each.name for each in sets)
        raise Failure(Exit.BAD_COMMAND, f"--data {data} means several sets", f"name one of {names}")
    engine = finished.engine(Replicated(Group()))
    rows: list[dict[str, Any]] = []
    with engine.evaluating() as ready:
        for first in range(0, sets[0].size, sets[0].batch):
            ids = np.arange(first, min(first + sets[0].batch, sets[0].size), dtype=np.int64)
            batch = to_device(task.collate(sets[0].source.read(ids, ids)), engine.device)
            rows += task.predict(ready, batch)
    try:
        write_private(to, _content(rows, to.suffix).encode())
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{to} cannot be written: {error}", "name another file") from error
    return len(rows)


def _require_new(to: Path) -> None:
    if to.suffix not in _FORMATS:
        raise Failure(Exit.BAD_COMMAND, f"--to {to} is of no kind that is written", f"it ends in {', '.join(_FORMATS)}")
    if to.exists() or not to.parent.is_dir():
        why = "is there already" if to.exists() else "cannot be made: its folder is not there"
        raise Failure(Exit.CANNOT_CREATE, f"{to} {why}", "name another file")


def _content(rows: Sequence[dict[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    text = io.StringIO()
    names: list[str] = []
    if rows:
        names = [name for name, value in rows[0].items() if not isinstance(value, (dict, list))]
    delimiter = "\t" if suffix == ".tsv" else ","
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([row[name] for name in names])
    return text.getvalue()
