"""The examples, reduced to seconds: they learn, show something, and come to the same bits after any stop."""

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import tensors, trace
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from golden.warm import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ["launch.threads=1", "launch.hang_after=null", "evaluate.every=null", "checkpoint.every=null"]
FEW_DIGITS = ["data.train.sources[0].count=256", "data.validation.digits.count=16"]
SHORT = {
    "char_gpt": [
        *("task.width=32", "task.depth=1", "task.heads=2", "task.dropout=0.1", "budget.steps=40"),
        *("data.train.sources[0].sentences=200", "data.validation.text.sentences=10"),
        *("optimizer.lr=1e-2", "schedule.warmup.steps=5"),
    ],
    "vae": [*FEW_DIGITS, "task.width=64", "batch.size=32", "budget.epochs=5"],
    "dcgan": [*FEW_DIGITS, "task.width=4", "task.latent=8", "budget.epochs=1"],
    "word_lm": [
        *("task.width=32", "task.streams=10", "batch.size=10", "evaluate.batch=10", "budget.epochs=2"),
        *("data.train.sources[0].sentences=1800", "data.train.sources[0].streams=10"),
        *("data.validation.text.sentences=60", "data.validation.text.streams=10"),
        *("data.test.more.sentences=60", "data.test.more.streams=10"),
    ],
}
LEARNED = {"char_gpt": 0.7, "vae": 0.6, "dcgan": 0.8, "word_lm": 0.8}
"""The last losses are at most this share of the first."""

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with warm(tmp_path_factory.mktemp("examples")) as command:
        yield command


@pytest.fixture
def train(server, tmp_path, monkeypatch):
    """Train a reduced example: `train(name, run, *arguments)` gives the exit code."""
    monkeypatch.chdir(tmp_path)

    def started(name, run, *arguments):
        recipe = EXAMPLES / f"{name}.yaml"
        return server(["train", str(recipe), *QUICK, *SHORT[name], "--run", run, *map(str, arguments)], tmp_path)

    return started


@pytest.fixture(autouse=True)
def _forgotten():
    """What a check has imported here is not there for other tests."""
    yield
    for name in ("synthetic", *SHORT):
        sys.modules.pop(name, None)


def losses(run):
    """The whole loss of each step; a GAN's is its discriminator's."""
    made = [record.losses for record in steps(lineage(read(Path(run) / "ledger.jsonl")))]
    return [loss.get("discriminator.loss", sum(loss.values())) for loss in made]


@pytest.mark.parametrize("recipe", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_recipe_has_no_mistakes(server, recipe, tmp_path, capfd):
    assert server(["recipe", "check", str(recipe)], tmp_path) == 0
    assert "no mistakes" in capfd.readouterr().out


@pytest.mark.parametrize("name", SHORT)
def test_an_example_learns_shows_and_comes_to_the_same_bits_after_stops(train, name, capfd):
    assert train(name, "whole") == Exit.DONE, capfd.readouterr().err
    found = losses("whole")
    assert sum(found[-4:]) < LEARNED[name] * sum(found[:4])
    assert list(Path("whole/gallery").rglob("*.*"))
    assert train(name, "parts", "--steps", 3) == Exit.STOPPED
    assert train(name, "parts", "--steps", 5) == Exit.STOPPED
    assert train(name, "parts") == Exit.DONE
    assert trace(Path("parts")) == trace(Path("whole"))


def test_two_processes_come_to_the_bits_of_one_where_exactness_is_asked_for(train):
    exact = ["exact=true", "lanes=2", "batch.micro=16"]
    assert train("vae", "one", *exact) == Exit.DONE
    assert train("vae", "two", *exact, "launch.processes=2") == Exit.DONE
    assert trace(Path("two")) == trace(Path("one"))


def test_the_state_of_the_word_model_is_in_commits_and_refuses_to_be_cut(train, capfd):
    assert train("word_lm", "run", "--steps", 2) == Exit.STOPPED
    (state,) = [tensor for name, tensor in tensors(Path("run")).items() if name.endswith("/state")]
    assert state.shape == (2, 2, 10, 32)
    assert state.any(dim=-1).all()  # of every stream
    capfd.readouterr()
    assert train("word_lm", "cut", "batch.micro=5") == Exit.INTERNAL
    assert "leave out batch.micro and processes" in capfd.readouterr().err


def test_the_callback_says_once_when_the_discriminator_has_won(monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    balance = import_module("dcgan").Balance(below=0.1, steps=2)
    for step, loss in enumerate([0.05, 0.2, 0.05, 0.05, 0.05], start=1):
        balance.on_step(SimpleNamespace(step=step, losses={"discriminator.loss": loss}))
    assert capsys.readouterr().out == "step 4: the discriminator's loss was below 0.1 for 2 steps\n"
