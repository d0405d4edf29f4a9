"""GaLore in whole runs: killed and resumed, on several processes, in exact mode, and on sharded parameters."""

import json
import os
import threading
import time

import pytest

from conftest import run_under_supervisor, tensors, trace
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.ledger.derive import attempts
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

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


def test_shards_of_fully_shard_move_as_whole_parameters_do_and_go_on_elsewhere(tmp_path, monkeypatch, importable):
    """On two processes, two refreshes of each matrix after the first; and on two, then on one, then on two. Where the
    base cannot move shards apart it is 78."""
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=2)
    outcome = supervise(job, worker="ranks_galore:sharded", preload=("torch", "ranks_galore"))
    assert outcome.code == 0, outcome
    differences, refused = json.loads(outcome.cause)
    assert len(differences) == 6
    assert max(map(max, differences.values())) < 1e-5, differences
    means, blocks, lowbit = refused
    assert {each["code"] for each in refused} == {Exit.BAD_RECIPE}
    assert "the rows of 0.bias, moved as (64,); but it takes means over whole tensors" in means["cause"]
    assert "the rows of 0.weight, moved as (64, 12); but it has a scale for each 256 numbers" in blocks["cause"]
    assert "blocks that share a scale" in lowbit["cause"]
