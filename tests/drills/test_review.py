"""What a review has broken once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import run_under_supervisor
from drills.fault import Fault
from drills.runs import drill, one_server, reference
from drivetrain.ledger.ledger import read
from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit

pytestmark = [pytest.mark.xdist_group("drills"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def _server():
    with one_server():
        yield


def small(task, **other):
    return {
        "name": "small",
        "task": {"kind": f"drills.tasks:{task}"},
        "data": {"train": {"sources": [{"kind": "drills.tasks:Numbers"}]}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 12},
        "optimizer": {"lr": 0.01},
        "launch": {"threads": 1},
    } | other


@pytest.mark.parametrize("phase", ["data", "forward", "reduce", "optimizer", "pulse"])
@pytest.mark.parametrize("rank", [0, 1])
def test_survivors_hand_over_nothing_that_a_forward_pass_has_changed(tmp_path, phase, rank):
    recipe = small("Teacher")
    found = drill(recipe, tmp_path / "run", Fault("kill", rank, phase, 7), "launch.processes=2")
    assert found.trace == reference(recipe, tmp_path / "reference", "launch.processes=2"), found


@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_stop_where_no_commit_was_due_changes_no_bits_though_buffers_take_part(tmp_path, step):
    recipe = small("Statistics")
    found = drill(recipe, tmp_path / "run", Fault("term", 0, "forward", step), "launch.processes=2")
    assert found.starts == 2
    assert found.trace == reference(recipe, tmp_path / "reference", "launch.processes=2")


def test_a_tensor_that_no_commit_can_hold_is_78_before_the_first_step(tmp_path):
    outcome = drill(small("Odd"), tmp_path / "run", None).outcome
    assert outcome.code == Exit.BAD_RECIPE
    assert "networks/model/sparse is float32 (sparse_coo), which no commit can hold" in outcome.cause


def test_a_longer_budget_after_a_short_last_step_leaves_no_sample_out(tiny, tmp_path):
    tiny["budget"] = {"samples": 90}
    assert run_under_supervisor(tiny, tmp_path / "run").code == Exit.DONE
    tiny["budget"] = {"samples": 200}
    outcome = run_under_supervisor(tiny, tmp_path / "run", override=("budget",))
    assert outcome.code == Exit.INCOMPATIBLE
    assert "6 samples short" in outcome.cause


def test_a_resume_that_is_refused_leaves_the_directory_as_it_was(tiny, tmp_path, corpus):
    run = tmp_path / "run"
    run_under_supervisor(tiny, run, "budget.steps=5")
    kept = (run / "resolved.json").read_bytes()
    wider = run_under_supervisor(tiny, run, "task.model.width=32", override=("task", "budget"))
    assert wider.code == Exit.INCOMPATIBLE
    assert (run / "resolved.json").read_bytes() == kept
    assert run_under_supervisor(tiny, run, override=("budget",)).code == Exit.DONE


def test_an_ignored_optimizer_is_ignored_until_the_first_new_commit_whatever_happens(tiny, tmp_path):
    traces = []
    for name, fault in (("killed", Fault("kill", 0, "forward", 8)), ("whole", None)):
        run = tmp_path / name
        run_under_supervisor(tiny, run, "budget.steps=5")
        if fault:
            fault.arm(run)
        outcome = run_under_supervisor(
            tiny, run, override=("budget",), ignore=("optimizer",), worker="drills.fault:main"
        )
        assert outcome.code == Exit.DONE
        traces.append([(r["step"], r["losses"]) for r in read(run / "ledger.jsonl") if r["kind"] == "step"])
    killed, whole = ({step: str(losses) for step, losses in made} for made in traces)
    assert killed == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.4, 1.2])
def test_a_stop_while_it_starts_is_heard(tiny, tmp_path, number, delay):
    tiny["budget"] = {"steps": 200_000}
    (tmp_path / "recipe.json").write_text(json.dumps(tiny))
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        str(tmp_path / "recipe.json"),
        "--run",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.time() + 60
    while not psutil.Process(process.pid).children() and time.time() < until:  # before, it is Python that starts
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == Exit.STOPPED, said


def test_a_stop_during_the_pause_before_a_restart_commits_what_survivors_left(tiny, tmp_path, monkeypatch):
    tiny["checkpoint"]["every"] = None
    monkeypatch.setattr("drivetrain.launch.restarts.PAUSE", 30.0)
    tiny["budget"] = {"steps": 100_000}
    run = tmp_path / "run"
    Fault("kill", 1, "forward", 7, always=True).arm(run)
    said = []

    def say(text):
        said.append(text)
        if "in 30 s" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    started = time.time()
    from drivetrain.launch.planning import plan_job
    from drivetrain.launch.supervisor import supervise
    from drivetrain.spec.load import load

    job = plan_job(
        load(tiny, ["launch.processes=2"]), run=run, overrides=(), resume="auto", override=(), started=started
    )
    outcome = supervise(job, worker="drills.fault:main", say=say)
    assert any("in 30 s" in text for text in said)
    assert time.time() - started < 25
    assert outcome.code == Exit.STOPPED
    assert outcome.where["last_committed_step"] == outcome.where["step"] == 6


def test_data_workers_end_with_a_trainer_that_is_killed(tmp_path):
    recipe = small("Teacher")
    recipe["data"]["train"]["workers"] = 2
    before = {process.pid for process in psutil.process_iter() if "multiprocessing" in " ".join(cmdline(process))}
    found = drill(recipe, tmp_path / "run", Fault("kill", 0, "forward", 7))
    assert found.outcome.code == Exit.DONE
    end = time.time() + 10
    while time.time() < end:
        left = [p for p in psutil.process_iter() if "multiprocessing" in " ".join(cmdline(p)) and p.pid not in before]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"{left} are left")


def cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_holder_knows_that_it_was_followed_though_its_followers_files_are_gone(tmp_path):
    first = Lease.take(tmp_path, list)
    (tmp_path / "lease" / "00000001.beat").write_text("released")
    Lease.take(tmp_path, list, silent=1).release()
    third = Lease.take(tmp_path, list)
    third.prune(3)
    assert first.lost
    third.release()
    first.release()


def test_of_two_that_start_in_the_same_instant_one_has_the_directory(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from drivetrain.runtime.lease import Lease; from drivetrain.spec.exits import Failure\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "try:\n    lease = Lease.take(Path(sys.argv[1]), list)\n"
        "except Failure as failure:\n    sys.exit(failure.outcome.code)\n"
        "time.sleep(1.5)\nsys.exit(85 if lease.lost else 0)\n"
    )
    for trial in range(3):
        run = tmp_path / str(trial)
        run.mkdir()
        at = str(time.time() + 1.0)
        both = [subprocess.Popen([sys.executable, "-c", code, str(run), at]) for _ in range(3)]
        assert sorted(process.wait() for process in both) == [0, 85, 85]
        assert len(list(Path(run / "lease").glob("*.json"))) == 1
