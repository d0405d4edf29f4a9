import io
import json
import math
from functools import partial

import pytest
from rich.console import Console

import drivetrain
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.spec.exits import Failure
from drivetrain.spec.load import load
from drivetrain.watch.compare import comparison, gather, show
from records import attempt, ended, evaluation, step

BEST = "checkpoint.keep_best={metric: stdlib/bits, mode: MODE}"


@pytest.fixture
def make(tmp_path):
    return partial(made, tmp_path)


def made(folder, name, records, *overrides, recipe="quickstart"):
    run = folder / name
    run.mkdir(parents=True)
    (run / "resolved.json").write_text(json.dumps({"recipe": load(recipe, overrides).tree}))
    ledger = LedgerFile.open(run / "ledger.jsonl")
    for record in records:
        ledger.append(record)
    ledger.close()
    return run


def trained(count, loss=5.0, score=1.5, **other):
    made = [step(n, loss=loss / n, **other) for n in range(1, count + 1)]
    return [attempt(steps=count), *made, evaluation(count, score, "stdlib"), ended(0, "done", at=40.0)]


def compared(*runs, by="step"):
    return comparison(gather(runs, by), by)


def text(*runs, by="step", width=100):
    console = Console(file=io.StringIO(), width=width)
    gathered = gather(runs, by)
    show(console, gathered, comparison(gathered, by))
    return console.file.getvalue()


def test_only_what_differs_in_the_recipes_is_told_by_dotted_key(make):
    one = make("one", trained(4))
    two = make("two", trained(4), "optimizer.lr=1e-2", "optimizer.kind=sgd")
    found = compared(one, two)["recipe"]
    assert found["optimizer.kind"] == {"one": "adamw", "two": "sgd"}
    assert found["optimizer.lr"]["two"] == 0.01
    assert "one" not in found["optimizer.momentum"]  # a key that the other kind does not have
    assert not any(key.startswith(("data", "task")) for key in found)


def test_a_password_in_a_recipe_is_not_told(make):
    source = {"kind": "mine:Rows", "url": "https://example.org/rows"}
    own = {"name": "own", "task": {"kind": "mine:Mine"}, "data": {"train": {"sources": [source]}}}
    own |= {"batch": {"size": 2, "micro": 2}, "budget": {"steps": 2}, "optimizer": {"kind": "sgd", "lr": 0.1}}
    one = make("one", trained(2), recipe=own)
    resolved = one / "resolved.json"  # as a version wrote it that did not refuse one yet
    resolved.write_text(resolved.read_text().replace("https://", "https://me:secret@"))
    told = compared(one, make("two", trained(2)))["recipe"]
    assert told["data.train.sources[0].url"] == {"one": "https://example.org/rows"}


@pytest.mark.parametrize(("mode", "better"), [("min", "two"), ("max", "one")])
def test_the_better_run_is_named_where_the_recipes_say_what_is_good(make, mode, better):
    says = BEST.replace("MODE", mode)
    one, two = make("one", trained(2, score=3.0), says), make("two", trained(2, score=2.0))
    metric = compared(one, two)["metrics"]["stdlib/bits"]
    assert (metric["mode"], metric["better"]) == (mode, better)
    assert next(line for line in text(one, two).splitlines() if line.startswith("stdlib/bits")).split()[-1] == better


def test_no_run_is_better_where_nobody_says_what_is_good_where_recipes_disagree_and_where_both_are_alike(make):
    plain = [make(name, trained(2, score=score)) for name, score in (("a", 3.0), ("b", 2.0))]
    assert compared(*plain)["metrics"]["stdlib/bits"]["mode"] is None
    assert "stdlib/bits: named alike by no checkpoint.keep_best" in text(*plain)
    against = [make(mode, trained(2), BEST.replace("MODE", mode)) for mode in ("min", "max")]
    assert compared(*against)["metrics"]["stdlib/bits"]["mode"] is None
    alike = [make(name, trained(2), BEST.replace("MODE", "min")) for name in ("c", "d")]
    assert compared(*alike)["metrics"]["stdlib/bits"]["better"] is None


def test_losses_are_laid_side_by_side_up_to_where_all_have_come(make):
    short, long = make("short", trained(4)), make("long", trained(16, loss=16.0))
    equal = compared(short, long)["at_equal"]
    assert equal["places"] == [1, 2, 3, 4]
    assert equal["losses"]["loss"] == {"short": [5.0, 2.5, 5 / 3, 1.25], "long": [16.0, 8.0, 16 / 3, 4.0]}
    assert equal["metrics"]["stdlib/bits"] == {"short": [None, None, None, 1.5], "long": [None] * 4}


def test_places_can_be_samples_tokens_or_seconds_of_training(make):
    slow = make("slow", trained(8, seconds=1.9))
    wide = make("wide", trained(8, counts={"samples": 8, "tokens": 1600}))
    by = {name: compared(slow, wide, by=name)["at_equal"] for name in ("samples", "tokens", "seconds")}
    assert by["samples"]["places"][-1] == 64
    assert by["samples"]["losses"]["loss"]["slow"] == by["samples"]["losses"]["loss"]["wide"]
    assert by["tokens"]["places"][-1] == 6400
    assert by["tokens"]["losses"]["loss"]["wide"][-1] == 5.0 / 4
    assert by["seconds"]["places"][-1] == pytest.approx(8.0)
    assert by["seconds"]["losses"]["loss"]["slow"][-1] == 5.0 / 4
    assert by["seconds"]["losses"]["loss"]["wide"][-1] == 5.0 / 8


def test_runs_of_different_tasks_compare_what_they_share(make, tmp_path):
    gan = trained(4, losses={"real": 1.0, "fake": 2.0})[:-2]
    found = compared(make("gan", gan), make("text", trained(4)))
    assert found["at_equal"]["losses"] == found["at_equal"]["metrics"] == {}
    assert set(found["metrics"]["stdlib/bits"]["runs"]) == {"text"}
    told = text(tmp_path / "gan", tmp_path / "text")
    assert all(name in told for name in ("training real", "training fake", "training loss", "goodput"))


def test_it_says_how_each_ended_and_what_it_took(make):
    killed = [attempt(), step(1), step(2), attempt(2, 1, at=30.0), step(2, at=30.0)]
    told = text(make("whole", trained(4)), make("killed", killed)).splitlines()
    rows = {line.split("  ")[0]: line.split()[-2:] for line in told}
    assert rows["attempts"] == ["1", "2"]
    assert rows["goodput"] == ["11.6%", "7.8%"]
    assert any(line.startswith("ended") and "done" in line and "not yet, or cut off" in line for line in told)


def test_a_run_that_has_not_begun_and_values_that_are_no_numbers_are_no_error(make):
    new, broken = make("new", []), make("broken", trained(2, losses={"loss": "nan"}))
    found = compared(new, broken)
    assert found["at_equal"]["places"] == [1, 2]
    assert math.isnan(found["runs"]["broken"]["losses"]["loss"])
    assert "no finite value" in text(new, broken)


def test_runs_of_one_name_are_called_by_their_paths(make):
    one, two = make("x/run", trained(2)), make("y/run", trained(2))
    assert list(gather([one, two], "step")) == [str(one), str(two)]


def test_a_name_cannot_write_to_the_terminal(make):
    evil = make("\x1b[31mevil", trained(2))
    assert "\x1b" not in text(evil, make("[bold]b", trained(2)))
    assert "[bold]b" in text(evil, make("z/[bold]b", trained(2)))


@pytest.mark.parametrize("twice", [False, True])
def test_fewer_than_two_runs_are_64(make, twice):
    run = make("run", trained(2))
    with pytest.raises(Failure, match="two different runs") as caught:
        gather([run, run / "../run"] if twice else [run], "step")
    assert caught.value.outcome.code == 64


def test_tokens_where_a_task_counts_none_are_64(make):
    silent = make("silent", trained(2, counts={"samples": 8}))
    with pytest.raises(Failure, match="silent: the task counts no tokens"):
        gather([silent, make("text", trained(2))], "tokens")


def test_the_python_function_returns_the_same_and_draws(make, tmp_path):
    runs = make("one", trained(4)), make("two", trained(4))
    found = drivetrain.compare(*runs, by="samples", plot=tmp_path / "both.svg")
    assert found == compared(*runs, by="samples")
    assert (tmp_path / "both.svg").read_bytes().startswith(b"<?xml")
