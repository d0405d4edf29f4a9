"""GaLore in whole runs: killed and resumed, on several processes, and in exact mode."""

import json
import threading
import time
from itertools import pairwise

import pytest

import drivetrain
from conftest import run_under_supervisor, tensors, trace
from drivetrain.cli.main import run as command
from drivetrain.ledger.derive import attempts
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from records import of_kind

GALORE = {"kind": "galore", "lr": 1e-2, "rank": 4, "gap": 7, "moments": "rotate", "clip": 1.0}


@pytest.fixture
def galore(tiny):
    """Twenty steps with two refreshes of each matrix after the first."""
    return tiny | {"optimizer": GALORE, "budget": {"steps": 20}, "evaluate": {}}


@pytest.mark.parametrize("base", ["adamw", "adafactor", "sgd"])
def test_stopped_between_refreshes_and_resumed_equals_never_stopped(galore, tmp_path, base):
    galore["optimizer"] = GALORE | {"base": {"kind": base}}
    assert run_under_supervisor(galore, tmp_path / "straight").code == Exit.DONE
    for until in ("3", "12", None):
        outcome = run_under_supervisor(galore, tmp_path / "stopped", *([f"stop.at=[{until}]"] if until else []))
    assert outcome.code == Exit.DONE
    assert len(attempts(list(read(tmp_path / "stopped" / "ledger.jsonl")))) == 3
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")


def test_killed_and_resumed_equals_never_stopped(galore, tmp_path):
    """SIGKILL: what was made after the last commit is made again, bases included."""
    galore |= {"budget": {"steps": 120}, "checkpoint": {"every": {"steps": 10}}}
    run_under_supervisor(galore, tmp_path / "straight")

    def kill():
        import psutil

        path = tmp_path / "killed" / "ledger.jsonl"
        while not path.exists() or path.read_bytes().count(b'"kind":"step"') < 37:
            time.sleep(0.005)
        workers = [p for p in psutil.Process().children(recursive=True) if p.children() == []]
        workers[-1].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    outcome = run_under_supervisor(galore, tmp_path / "killed")
    thread.join()
    assert outcome.code == Exit.DONE
    assert len(attempts(list(read(tmp_path / "killed" / "ledger.jsonl")))) == 2
    assert trace(tmp_path / "killed") == trace(tmp_path / "straight")


@pytest.mark.parametrize(("base", "refresh"), [("adamw", "subspace"), ("sgd", "exact")])
def test_two_processes_come_to_the_weights_of_one(galore, tmp_path, base, refresh):
    galore["optimizer"] = GALORE | {"base": {"kind": base}, "refresh": refresh}
    for processes in (1, 2):
        outcome = run_under_supervisor(galore, tmp_path / str(processes), f"launch.processes={processes}")
        assert outcome.code == Exit.DONE
    one, two = tensors(tmp_path / "1"), tensors(tmp_path / "2")
    assert one.keys() == two.keys()
    weights = [name for name in one if name.startswith("networks/")]
    assert max(float((one[name] - two[name]).abs().max()) for name in weights) < 1e-5


def test_exact_mode_has_the_same_bits_on_one_and_two_processes(galore, tmp_path):
    galore["exact"] = True
    for processes in (1, 2):
        outcome = run_under_supervisor(galore, tmp_path / str(processes), f"launch.processes={processes}")
        assert outcome.code == Exit.DONE
    one, two = tensors(tmp_path / "1"), tensors(tmp_path / "2")
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)


STILL = ("optimizer.lr=0", "schedule.warmup=null")


PLAIN = {"kind": "galore", "lr": 1e-2, "rank": 4, "gap": 5, "clip": None}


@pytest.fixture
def plain(tiny):
    return tiny | {"optimizer": PLAIN}


def train(recipe, run, *overrides):
    return drivetrain.train(recipe, overrides, run=run, progress=False)


def weights(run):
    """The networks' of the newest commit."""
    return {name: tensor for name, tensor in tensors(run).items() if name.startswith("networks/")}


def test_a_report_tells_what_the_optimizer_saves(plain, tmp_path, capsys):
    train(plain, tmp_path / "run")
    assert command(["report", str(tmp_path / "run")]) == 0
    assert "less than AdamW's" in capsys.readouterr().out
    assert command(["report", str(tmp_path / "run"), "--json"]) == 0
    held = json.loads(capsys.readouterr().out)["held"]
    state = tensors(tmp_path / "run")
    assert held["optimizers"] == sum(t.nbytes for name, t in state.items() if name.startswith("optimizers/"))
    assert held["optimizers"] < 2 * held["gradients"] == 2 * held["networks"]


def test_galore_trainer_4_a_runs_folder_has_the_whole_name_of_its_recipe(plain, tmp_path, monkeypatch):
    # there: rstrip(".json"), which takes off all letters at the end that are of these
    monkeypatch.chdir(tmp_path)
    run = train(plain | {"name": "llama_on"}, None, "budget.steps=1", *STILL).run
    assert run.name.startswith("llama_on-")


def test_galore_trainer_6_layer_by_layer_moves_once_a_step_at_the_same_rates(plain, tmp_path):
    # there: four moves for a step of four micro-batches
    assert plain["batch"]["size"] == 4 * plain["batch"]["micro"]
    for layerwise in ("false", "true"):
        train(plain, tmp_path / layerwise, f"optimizer.layerwise={layerwise}", "evaluate.every=null")
    one, other = (of_kind(tmp_path / run, "step") for run in ("false", "true"))
    assert [(r["losses"], r["lr"]) for r in one] == [(r["losses"], r["lr"]) for r in other]
    assert len(one) == 12
    moved = weights(tmp_path / "true")
    assert all(tensor.equal(moved[name]) for name, tensor in weights(tmp_path / "false").items())


def test_galore_trainer_7_layer_by_layer_commits_while_it_trains_and_at_its_end_and_is_exported(plain, tmp_path):
    train(plain, tmp_path / "run", "optimizer.layerwise=true", "optimizer.clip=0.3")
    assert [record["step"] for record in of_kind(tmp_path / "run", "commit")] == [5, 10, 12]
    assert drivetrain.export(tmp_path / "run", tmp_path / "to")
    assert drivetrain.evaluate(tmp_path / "run").metrics == of_kind(tmp_path / "run", "evaluation")[-1]["metrics"]


def test_galore_trainer_8_there_are_as_many_steps_as_were_asked_for_and_none_is_at_a_rate_of_zero(plain, tmp_path):
    result = train(plain, tmp_path / "run", "schedule.floor=0.1", "evaluate.every=null")
    rates = [record["lr"]["model"] for record in of_kind(tmp_path / "run", "step")]
    assert (result.step, len(rates)) == (12, 12)
    assert rates[:2] == pytest.approx([5e-3, 1e-2])
    assert all(after < before for before, after in pairwise(rates[1:]))
    assert rates[-1] == pytest.approx(1e-3)


def test_galore_trainer_9_an_evaluation_is_the_mean_over_tokens_whatever_its_batches(plain, tmp_path):
    scores = {}
    for size in (1, 7, 64):
        result = train(plain, tmp_path / f"{size}", "budget.steps=1", *STILL, f"evaluate.batch={size}")
        scores[size] = result.metrics["dogs"]["loss"]
    (count,) = of_kind(tmp_path / "7", "evaluation")[0]["counts"].values()
    assert count % 7  # so that the last batch is a partial one
    assert scores[1] == pytest.approx(scores[7], rel=1e-6)
    assert scores[1] == pytest.approx(scores[64], rel=1e-6)


def test_galore_trainer_12_a_run_begins_with_the_weights_that_another_has_committed(plain, tmp_path):
    train(plain, tmp_path / "first")
    train(plain, tmp_path / "second", f"init={{from: {tmp_path / 'first'}}}", *STILL, "budget.steps=2")
    second = weights(tmp_path / "second")
    assert all(tensor.equal(second[name]) for name, tensor in weights(tmp_path / "first").items())
    assert [record["step"] for record in of_kind(tmp_path / "second", "step")] == [1, 2]
