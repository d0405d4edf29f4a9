"""GLUE's tasks: their files, columns, labels and metrics (Wang et al. 2018, arXiv 1804.07461).

Columns have the names that Hugging Face's `datasets` gives them, whatever the files say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from drivetrain.data.arrow import open_datasets
from drivetrain.data.recipe import Datasets, Table
from drivetrain.data.rows import place_of
from drivetrain.data.source import Source
from drivetrain.data.table import open_table
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.classification.recipe import Glue


@dataclass(frozen=True)
class Benchmark:
    """One of GLUE's tasks.

    `labels` are empty for regression. `numbered`: files give labels by their numbers. `renamed` are columns by what
    the files call them, `headless` those of files without a first line, `dev` and `test` what the sets' files are
    called, `raw` those of a distribution before GLUE's.
    """

    folder: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    numbered: bool = True
    label: str = "label"
    renamed: Mapping[str, str] = field(default_factory=dict)
    headless: tuple[str, ...] = ()
    dev: str = "dev"
    test: str = "test"
    raw: Mapping[str, str] = field(default_factory=dict)

    def columns(self, unlabelled: bool) -> dict[str, str]:
        """What the files call the columns that a sample has, by the columns' names."""
        files = {new: old for old, new in self.renamed.items()}
        columns = {name: files.get(name, name) for name in self.texts}
        if not unlabelled:
            columns["label"] = self.label
        return columns


_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
BENCHMARKS: Mapping[str, Benchmark] = {
    "cola": Benchmark(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("matthews",),
        headless=("source", "label", "star", "sentence"),
    ),
    "mnli": Benchmark(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        numbered=False,
        label="gold_label",
        renamed={"sentence1": "premise", "sentence2": "hypothesis"},
        dev="dev_matched",
        test="test_matched",
    ),
    "mrpc": Benchmark(
        "MRPC",
        _PAIR,
        ("not_equivalent", "equivalent"),
        ("accuracy", "f1"),
        label="Quality",
        renamed={"#1 String": "sentence1", "#2 String": "sentence2"},
        raw={"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
    ),
    "qnli": Benchmark("QNLI", ("question", "sentence"), _ENTAILMENT, ("accuracy",), numbered=False),
    "qqp": Benchmark(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("accuracy", "f1"),
        label="is_duplicate",
    ),
    "rte": Benchmark("RTE", _PAIR, _ENTAILMENT, ("accuracy",), numbered=False),
    "sst2": Benchmark("SST-2", ("sentence",), ("negative", "positive"), ("accuracy",)),
    "stsb": Benchmark("STS-B", _PAIR, (), ("pearson", "spearman"), label="score"),
    "wnli": Benchmark("WNLI", _PAIR, ("not_entailment", "entailment"), ("accuracy",)),
}


def open_glue(settings: Glue, cache: Path) -> Source:
    """A set of a task. A sample is a dict of its texts and, but in most test sets, `label`.

    Raises Failure(78) where neither the source nor the recipe's task says which task or where, 66 where there is no
    such file, 65 with FILE:LINE where a row cannot be read.
    """
    for name, given in (("task", settings.task), ("path", settings.path)):
        if given is None:
            raise Failure(Exit.BAD_RECIPE, f"a source of kind glue needs a {name}", "or give task.glue and task.folder")
    if settings.set.endswith("_mismatched") and settings.task != "mnli":
        raise Failure(Exit.BAD_RECIPE, f"{settings.set} is a set of mnli, not of {settings.task}", "name another set")
    benchmark = BENCHMARKS[settings.task or ""]
    folder = Path(settings.path or "")
    if (folder / benchmark.folder).is_dir():
        folder = folder / benchmark.folder
    common = {name: getattr(settings, name) for name in ("name", "weight", "part", "split", "by")}
    if (folder / "dataset_dict.json").is_file():
        subset = _subset(settings)
        return open_datasets(Datasets(path=str(folder), subset=subset, **common), cache)
    file = _file(folder, benchmark, settings.set)
    # GLUE keeps the labels of its test sets to itself; a distribution from before it has them.
    unlabelled = settings.set.startswith("test") and file.name not in benchmark.raw.values()
    columns = benchmark.columns(unlabelled)
    # All test sets have a first line that names the columns.
    headless = () if unlabelled else benchmark.headless
    table = Table(
        path=str(file),
        columns=tuple(columns.values()),
        delimiter="\t",
        # A quotation mark is a part of the text here, and often has no partner in its line.
        quotes=False,
        header=headless or None,
        malformed=settings.malformed,
        **common,
    )
    return Renamed(open_table(table, cache), {old: new for new, old in columns.items()})


def _file(folder: Path, benchmark: Benchmark, name: str) -> Path:
    """The set's file. Raises Failure(66) where it is not there."""
    stem = {"dev": benchmark.dev, "test": benchmark.test}.get(name, name)
    given = folder / f"{stem}.tsv"
    raw = folder / benchmark.raw.get(name, given.name)
    if not given.is_file() and not raw.is_file():
        hint = f"path is a folder that holds {benchmark.folder}, or is it, with GLUE's TSV files or a saved DatasetDict"
        raise Failure(Exit.INPUT_MISSING, f"there is no {given}", hint, file=str(given))
    if given.is_file():
        return given
    return raw


def _subset(settings: Glue) -> str:
    """What `datasets` calls a set."""
    part, _, kind = settings.set.partition("_")
    if part == "dev":
        part = "validation"
    if settings.task != "mnli" or part == "train":
        return part
    return f"{part}_{kind or 'matched'}"


class Renamed:
    """A source of rows whose columns have other names."""

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        """`names` are the new ones by the old ones."""
        self._source, self._names = source, dict(names)
        self.thread_safe, self.fingerprint = source.thread_safe, source.fingerprint
        self.notes: tuple[str, ...] = getattr(source, "notes", ())

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._source)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[dict[str, Any]]:
        """The rows with these numbers."""
        renamed = []
        for row in self._source.read(ids, positions):
            renamed.append({new: row[old] for old, new in self._names.items()})
        return renamed

    def place(self, number: int) -> str:
        """FILE:LINE of a row."""
        return place_of(self._source, number)
