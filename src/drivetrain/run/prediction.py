"""What a run's networks say of samples: of a set of the recipe, or of a new file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.column_files import named_files
from drivetrain.data.opening import open_source
from drivetrain.data.recipe import ColumnFiles
from drivetrain.data.remote import is_url, suffix_of
from drivetrain.engine.placement import replicas
from drivetrain.engine.transfer import to_device
from drivetrain.launch.preparation import require_importable
from drivetrain.launch.shares import dealt, others, send_share
from drivetrain.loop.evaluation import ValidationSet
from drivetrain.loop.task import Task
from drivetrain.run.build import evaluation_batch, only_training, open_inputs
from drivetrain.run.finished import CodeChanged, FinishedRun, Weights, chosen, open_finished
from drivetrain.run.new_file import new_file, require_new
from drivetrain.run.predicted import FORMATS, CopiedColumns, write_rows
from drivetrain.runtime.group import Group
from drivetrain.runtime.mistakes import returned
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import require_no_secret

_ROWS = ("jsonl", "table", "parquet", "columns", "datasets")
_PATTERN = "*?[,"  # what paths of several files have
_FILE = "file"  # the name of a set that is made of a new file
_WORKER = "drivetrain.run.prediction:predict_share"
_PREDICTION = 1 << 35
"""A place in the seeds' path that no step has."""


class RowsLeftOut(UserWarning):
    """Rows of a file cannot be read, and nothing is predicted of them: the recipe's source says so."""


@dataclass(frozen=True)
class Predicting:
    """Which commit predicts, by which of its weights, on how many processes; and columns of the file that are copied,
    by their names beside what is predicted."""

    commit: str | None = None
    weights: Weights | None = None
    processes: int = 1
    copy: Mapping[str, str] = field(default_factory=dict)


class _Asked(NamedTuple):
    """A set, and the settings of its source."""

    set: ValidationSet
    source: Any


def predict_run(run: Path, data: str, to: Path, asked: Predicting) -> int:
    """Write what a run's commit says of each sample, in their order; returns how many there are.

    `data` is the name of a set, or files or URLs that are read as the recipe reads such ones. `to` is a .jsonl, .csv,
    .tsv or .parquet file; .csv and .tsv have the fields that are numbers or words. It is written as it comes, and is
    there once it is whole. It has the same bytes on any number of processes.

    Raises Failure: 64 where the task predicts nothing or the file is of another kind, 66 where there is no such run,
    commit or set, 65 where a row or a column to copy cannot be read, 73 where the file is there already or cannot be
    made.
    """
    require_no_secret(data, "--data")
    require_new(to, FORMATS)
    processes = asked.processes
    if processes < 1:
        raise Failure(Exit.BAD_COMMAND, f"{processes} processes", "one or more")
    finished = open_finished(run, asked.commit, asked.weights, rank=0)
    if type(finished.task).predict is Task.predict:
        raise Failure(Exit.BAD_COMMAND, f"{run}: the task {type(finished.task).__name__} has no predict", "write one")
    if processes > 1:
        require_importable(finished.recipe, f"{processes} processes (--processes)")
    given = _set_of(finished, run, data)
    for note in getattr(given.set.source, "notes", ()):
        warnings.warn(note, RowsLeftOut, stacklevel=3)
    copied = None
    if asked.copy:
        copied = CopiedColumns(open_source(given.source, finished.recipe.seed, run / "sources.json"), asked.copy)
    own = _share(finished, given.set, 0, processes)
    # By its name: a run that trains meanwhile would give a later process another one.
    told = {"run": str(run), "data": data, "commit": finished.commit.path.name, "weights": asked.weights}
    # Closed where writing fails, too: what it has open would hold for whatever this process does next.
    with closing(own), new_file(to) as file:
        if processes == 1:
            return write_rows(file, own, to.suffix, copied)
        with others(_WORKER, [told], processes, ("torch", "drivetrain.run.prediction")) as shares:
            return write_rows(file, dealt([own, *shares]), to.suffix, copied)


def predict_share(asked: Mapping[str, Any], rank: int, processes: int, descriptors: list[int]) -> int:
    """Send what one of several processes predicts of `run`'s `data`, by its `commit` with these `weights`."""
    warnings.simplefilter("ignore", CodeChanged)  # the process that writes has said so

    def blocks() -> Iterator[list[dict[str, Any]]]:
        run = Path(asked["run"])
        finished = open_finished(run, asked["commit"], asked["weights"], rank=rank)
        return _share(finished, _set_of(finished, run, asked["data"]).set, rank, processes)

    return send_share(descriptors[0], blocks)


def _set_of(finished: FinishedRun, run: Path, data: str) -> _Asked:
    """The set that `data` means."""
    recipe = finished.recipe
    named = {*recipe.data.validation, *recipe.data.test, "validation", "test", "all"}
    if data not in named and (is_url(data) or Path(data).exists() or set(data) & set(_PATTERN)):
        return _new_set(finished, run, data)
    sets = chosen(open_inputs(recipe, run, finished.task).sets(recipe, 1), data)
    if len(sets) > 1:
        names = ", ".join(each.name for each in sets)
        raise Failure(Exit.BAD_COMMAND, f"--data {data} means several sets", f"name one of {names}")
    return _Asked(sets[0], {**recipe.data.test, **recipe.data.validation}[sets[0].name])


def _new_set(finished: FinishedRun, run: Path, path: str) -> _Asked:
    """All of what lies at this path, read as the first of the recipe's sources of rows that ends alike, or else as the
    first one. Raises Failure(64) where it has none."""
    recipe, task = finished.recipe, finished.task
    sources = [*recipe.data.test.values(), *recipe.data.validation.values(), *recipe.data.train.sources]
    files = [source for source in sources if not isinstance(source, Custom) and source.kind in _ROWS]
    if not files:
        raise Failure(Exit.BAD_COMMAND, f"--data {path}: the recipe has no source of rows", "name one of its sets")
    # Opened for what the task learns from them, such as popularity; nothing of them is predicted.
    if type(task).prepare is not Task.prepare and not task.learned:  # it may find in training data what it needs
        open_inputs(only_training(recipe), run, task)
    alike = [source for source in files if suffix_of(source.path) == suffix_of(path)]
    own = (alike or files)[0]
    if isinstance(own, ColumnFiles):
        own = named_files(own, path)
    own = replace(own, path=path, part="all")
    source = task.prepare(open_source(own, recipe.seed, run / "sources.json"), "predict")
    return _Asked(ValidationSet(_FILE, source, evaluation_batch(recipe, 1)), own)


def _share(
    finished: FinishedRun, given: ValidationSet, rank: int, processes: int
) -> Generator[list[dict[str, Any]], None, None]:
    """What the networks say of every so many-th block of samples: the blocks, and what is drawn in each, are the same
    on any number of processes."""
    engine, task = finished.engine(replicas(Group())), finished.task
    with engine.evaluating() as networks:
        for block, first in enumerate(range(0, given.size, given.batch)):
            # Dealt in turn, so that the process that writes can take them one after the other, and holds few.
            if block % processes != rank:
                continue
            ids = np.arange(first, min(first + given.batch, given.size), dtype=np.int64)
            engine.seed(_PREDICTION, block)
            batch = to_device(task.collate(given.source.read(ids, ids)), engine.device)
            rows = _plain_rows(task, task.predict(networks, batch))
            if len(rows) != len(ids):
                raise _no_rows(task, f"{len(rows)} rows for {len(ids)} samples")
            yield rows


def _plain_rows(task: Task, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as another process would have sent them."""
    try:
        # Also of this process's own rows: else a file would depend on who predicted which block.
        plain = json.loads(json.dumps(list(rows), default=_plain))
    except (TypeError, ValueError) as error:
        raise _no_rows(task, str(error)) from error
    for row in plain:
        if not isinstance(row, dict):
            raise _no_rows(task, f"a row is {row!r}, and no dict")
    return plain


def _no_rows(task: Task, why: str) -> Failure:
    hint = "give a dict for each sample, of numbers, words, lists and dicts"
    return returned(task.predict, f"{type(task).__name__}.predict: {why}", hint)


def _plain(value: Any) -> Any:
    """Arrays and tensors, and numbers of their types, as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no JSON data")
