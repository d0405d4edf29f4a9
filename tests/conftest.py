"""What tests share: small recipes, runs under the real supervisor, and what is compared between runs."""

from __future__ import annotations

import gc
import hashlib
import os
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import records  # noqa: F401 - its view of records
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import prepare_job
from drivetrain.launch.supervisor import PRELOAD, WORKER, supervise
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Outcome
from drivetrain.spec.load import load
from laws import USUAL
from warm.popen import ADDRESS, served

if TYPE_CHECKING:
    from torch import Tensor

# A busy machine fails no test. Whoever starts pytest may have asked for fewer examples already: `test_pythons` does.
settings.register_profile("patient", deadline=None, max_examples=min(settings.default.max_examples, USUAL))
settings.load_profile("patient")

TEXT = "".join(f"line {n}: the quick brown fox jumps over the lazy dog {n * n % 97}\n" for n in range(400))


def pytest_collection_finish():
    """What was imported and collected stays to the end: the collector need not go through it again and again."""
    gc.freeze()


def pytest_collection_modifyitems(items):
    """What takes long begins early: at the end one process would work at it, and the others would wait."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", autouse=True)
def _warm():
    """Pythons that tests start have torch loaded already, where it is installed."""
    with served() if find_spec("torch") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _cold(request, monkeypatch):
    """Where a test says so, the Pythons that it starts are started from nothing."""
    if request.node.get_closest_marker("cold"):
        monkeypatch.delenv(ADDRESS, raising=False)


@pytest.fixture(scope="module")
def forked():
    """All supervisors of a module share a server, that of this process: importing torch takes longer than a run."""
    from drills.runs import one_server  # imports this module

    with one_server():
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of small text files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(TEXT[number * 999 :])
    return folder


@pytest.fixture
def tiny(corpus: Path) -> dict:
    """A recipe of a few milliseconds a step."""
    return tiny_recipe(corpus)


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """A place to submit from, with a store and targets of its own."""
    from jobs import Desk

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIVETRAIN_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setenv("DRIVETRAIN_TARGETS", str(tmp_path / "targets.yaml"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "targets.yaml").write_text("{}")
    return Desk(tmp_path, capsys)


def tiny_recipe(corpus: Path) -> dict:
    """A language model that takes a few milliseconds a step, with dropout, accumulation and shuffling."""
    return {
        "name": "tiny",
        "task": {
            "kind": "language_model",
            "model": {"kind": "llama", "width": 16, "depth": 1, "heads": 2, "context": 16, "dropout": 0.1},
        },
        "data": {
            "train": {"sources": [{"kind": "text", "path": str(corpus)}]},
            "validation": {"dogs": {"kind": "text", "path": str(corpus / "3.txt")}},
        },
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 12},
        "optimizer": {"kind": "adamw", "lr": 1e-2},
        "schedule": {"kind": "cosine", "warmup": {"steps": 2}},
        "checkpoint": {"every": {"steps": 5}},
        "evaluate": {"every": {"steps": 6}, "batch": 256},
        "launch": {"threads": 1},
    }


def run_under_supervisor(recipe: dict, run: Path, *overrides: str, **options) -> Outcome:
    """Train a recipe as `drivetrain train` does, without its console."""
    where = {"worker": options.pop("worker", WORKER), "preload": options.pop("preload", PRELOAD)}
    told = options.pop("overrides", overrides)
    job = prepare_job(load(recipe, overrides), run=run, overrides=told, options=StartOptions(**options))
    return supervise(job, **where)


def tensors(run: Path) -> dict[str, Tensor]:
    """The newest commit's, by name."""
    from drivetrain.checkpoint.commits import newest  # imports torch, which many tests do without

    found = newest(run)
    assert found is not None
    return found.state.tensors


@pytest.fixture
def importable(monkeypatch):
    """Processes that a test starts find the modules beside this one: tasks, sources, what ranks do."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


class Trace(NamedTuple):
    """All that must be equal between two runs that are the same. A tuple: this module may be imported twice, under two
    names, and traces of both are compared."""

    state: str
    losses: tuple
    samples: tuple


def trace(run: Path) -> Trace:
    """The newest commit's tensors and values, and the history of losses and samples."""
    commit = max((run / "checkpoints").glob("step-*"))
    content = b"".join(path.read_bytes() for path in sorted(commit.iterdir()) if path.name != "MANIFEST.json")
    made = steps(lineage(read(run / "ledger.jsonl")))
    return Trace(
        state=hashlib.sha256(content).hexdigest(),
        losses=tuple((r["step"], *r["losses"].items(), *r["norm"].items(), *r["lr"].items()) for r in made),
        samples=tuple((r["step"], r["start"], r["stop"], r["samples"]) for r in made),
    )
