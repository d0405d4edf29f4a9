"""The promise: stop and start again equals never stopped, bit for bit. Real processes, real signals."""

import os
import random
import signal
import threading
import time

import pytest

import adversarial
from conftest import run_under_supervisor, trace
from drivetrain.ledger.derive import attempts, lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit


def stop_after(run, steps, number):
    """Send a signal to the supervisor (this process) once the ledger has that many steps more than now."""

    def watch():
        path = run / "ledger.jsonl"
        deadline = time.time() + 60
        before = path.read_bytes().count(b'"kind":"step"') if path.exists() else 0
        while time.time() < deadline:
            if path.exists() and path.read_bytes().count(b'"kind":"step"') >= before + steps:
                os.kill(os.getpid(), number)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("processes", [1, 2])
def test_p13_stopped_at_random_steps_equals_never_stopped(tiny, tmp_path, processes):
    tiny["budget"] = {"steps": 200}
    tiny["evaluate"] = {"every": {"steps": 60}, "batch": 256}
    tiny["checkpoint"] = {"every": {"steps": 70}}
    tiny["launch"]["processes"] = processes
    assert run_under_supervisor(tiny, tmp_path / "straight").code == Exit.DONE
    generator = random.Random(processes)
    codes = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        thread = stop_after(tmp_path / "stopped", generator.randint(1, 40), number)
        codes.append(run_under_supervisor(tiny, tmp_path / "stopped").code)
        thread.join()
    codes.append(run_under_supervisor(tiny, tmp_path / "stopped").code)
    assert codes.count(Exit.STOPPED) >= 2, codes
    assert codes[-1] == Exit.DONE
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")
    evaluations = {run: evaluated(tmp_path / run) for run in ("stopped", "straight")}
    assert evaluations["stopped"] == evaluations["straight"]


def evaluated(run):
    return [(r["step"], r["metrics"]) for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "evaluation"]


@pytest.mark.parametrize("processes", [1, 2])
def test_p11_killed_without_warning_equals_never_stopped(tiny, tmp_path, processes):
    """SIGKILL of a worker: all start again from what its peer leaves; what is lost is made again, to the same bits."""
    tiny["budget"] = {"steps": 120}
    tiny["evaluate"] = {"batch": 256}
    tiny["checkpoint"] = {"every": {"steps": 10}}
    tiny["launch"]["processes"] = processes
    run_under_supervisor(tiny, tmp_path / "straight")
    pids = {}

    def kill():
        import psutil

        path = tmp_path / "killed" / "ledger.jsonl"
        while not path.exists() or path.read_bytes().count(b'"kind":"step"') < 37:
            time.sleep(0.005)
        workers = [p for p in psutil.Process().children(recursive=True) if p.children() == []]
        pids["killed"] = workers[-1].pid
        workers[-1].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    outcome = run_under_supervisor(tiny, tmp_path / "killed")
    thread.join()
    assert outcome.code == Exit.DONE
    records = list(read(tmp_path / "killed" / "ledger.jsonl"))
    made = attempts(records)
    assert len(made) == 2
    if processes > 1:  # a peer has what the killed one had
        assert made[0].to_step - made[1].from_step <= 1
    else:  # how old the newest commit may be is the disk's to say: they are written beside training
        before = records[: [record["kind"] for record in records].index("attempt", 1)]
        assert made[1].from_step >= max(record["step"] for record in before if record["kind"] == "commit")
    assert trace(tmp_path / "killed") == trace(tmp_path / "straight")


def test_c07_two_then_one_then_two_processes_use_each_sample_once(tiny, corpus, tmp_path):
    tiny["data"]["train"]["sources"][0]["path"] = str(corpus / "3.txt")
    tiny["budget"] = {"epochs": 1}
    tiny["evaluate"] = {"batch": 256}
    for steps, processes in ((4, 2), (5, 1), (None, 2)):
        thread = stop_after(tmp_path / "run", steps, signal.SIGTERM) if steps else None
        outcome = run_under_supervisor(tiny, tmp_path / "run", f"launch.processes={processes}")
        if thread:
            thread.join()
    assert outcome.code == Exit.DONE
    run_under_supervisor(tiny, tmp_path / "alone")
    used = samples_used(lineage(read(tmp_path / "run" / "ledger.jsonl")))
    assert used == samples_used(lineage(read(tmp_path / "alone" / "ledger.jsonl")))
    assert [start for _, start, _, _ in used[1:]] == [stop for _, _, stop, _ in used[:-1]]
    attempts = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "attempt"]
    assert [r["world"] for r in attempts] == [2, 1, 2]
    assert len({r["claim"]["key"] for r in attempts}) == 2


def test_p23_a_finished_run_that_is_started_again_does_nothing(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run")
    before = trace(tmp_path / "run")
    assert run_under_supervisor(tiny, tmp_path / "run").code == Exit.DONE
    assert trace(tmp_path / "run") == before
    last = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["attempt"] == 2]
    assert [r["kind"] for r in last] == ["attempt", "exit"]


def test_another_number_of_processes_is_noted(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", "launch.processes=2", most_steps=5)
    run_under_supervisor(tiny, tmp_path / "run")
    notes = [r["text"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "note"]
    assert any("2 processes" in note and "round differently" in note for note in notes)


@pytest.mark.usefixtures("importable")
def test_trainloop_5_9_a_resume_at_or_past_the_end_makes_no_step_and_the_last_one_is_committed_once(tmp_path):
    recipe = adversarial.recipe(checkpoint={"every": {"steps": 4}})
    run = adversarial.train(recipe, tmp_path / "run").run
    before = trace(run)
    assert adversarial.train(recipe, run).step == 12
    past = adversarial.train(recipe, run, "budget.steps=8", override=["budget"])
    assert (past.step, past.stopped) == (12, False)
    assert trace(run) == before
    assert [record["step"] for record in adversarial.made(run, "commit")] == [4, 8, 12]
