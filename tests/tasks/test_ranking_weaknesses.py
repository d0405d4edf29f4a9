"""Faults of other recommender trainers by their numbers, and the page that says which test would find each of them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import drivetrain
from conftest import tensors, trace
from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from tasks.test_ranking_task import recipe

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "ranking-tests.md"


def test_the_page_has_every_fault():
    rows = re.findall(r"^\| (W\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"W{number}" for number in range(1, 18)]


@pytest.mark.parametrize(
    "budget", [{"steps": 5, "epochs": 5}, {"steps": 30, "epochs": 2}, {"steps": 1000, "epochs": 1}, {}]
)
def test_w1_a_budget_is_in_exactly_one_unit(budget):
    with pytest.raises(RecipeMistakes, match="exactly one of steps, samples, tokens, epochs"):
        load(recipe() | {"budget": budget})


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_w1_a_budget_of_nothing_is_a_mistake(unit):
    with pytest.raises(RecipeMistakes, match=f"budget.{unit}"):
        load(recipe() | {"budget": {unit: 0}})


def test_w6_w10_w17_an_empty_folder_is_no_commit_and_an_epoch_may_be_one_step(tmp_path):
    """A resume begins where the commit ends, once: four epochs of a step each are four moves."""
    log = {"kind": "clicks", "samples": 32, "users": 20, "items": 10}
    given = recipe() | {"budget": {"epochs": 4}, "data": {"train": {"sources": [log]}}, "evaluate": {}}
    drivetrain.train(given, run=tmp_path / "whole", progress=False)
    halves = tmp_path / "halves"
    assert drivetrain.train(given, ["stop.at=[1]"], run=halves, progress=False).step == 1
    (halves / "checkpoints" / "step-00000999").mkdir()
    assert drivetrain.train(given, run=halves, progress=False).step == 4
    assert int(tensors(halves)["rows/model/embeddings.table_device/moves"]) == 4
    assert not (halves / "checkpoints" / "step-00000999").exists()
    assert trace(halves) == trace(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", "ctr-demo", "--bogus_flag", "3"], Exit.BAD_COMMAND),
        (["train", "ctr-demo", "task.features[name=nobody].hash=9"], Exit.BAD_RECIPE),
        (["train", "ctr-demo", "optimizer.groups=[{match: nothing, lr: 1.0}]", "--steps", "0"], Exit.BAD_RECIPE),
    ],
)
def test_w14_what_fits_nothing_is_told(words, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(words) == code
    assert not list(tmp_path.glob("runs/*/checkpoints/step-*"))


def test_w16_a_ranking_task_loads_no_reader_or_package_that_it_does_not_use():
    heavy = ("pyarrow", "pandas", "sklearn", "confluent_kafka", "transformers", "torchrec", "fbgemm_gpu")
    code = f"import sys, drivetrain.tasks.ranking.task; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_w16_no_text_is_run_as_code():
    """But what a notebook or a file of the user's own holds, which is code."""
    for path in (TESTS.parent / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", "")
            assert name != "eval", f"{path.name}:{node.lineno}"
