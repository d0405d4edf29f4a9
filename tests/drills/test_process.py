"""Faults of processes (P01 to P23) in real runs of one to four: whatever happens, the same bits or a clear end.

What is tried here is fixed; `make drill` tries all phases, ranks and worlds, and random ones as long as there is time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from conftest import run_under_supervisor, trace
from drills.fault import ALL, Fault
from drills.runs import OF_A_COMMIT, PHASES, WORKER, drill, leftovers, reference, sweep
from drivetrain.launch import worker_group
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Failure

pytestmark = [pytest.mark.xdist_group("drills"), pytest.mark.timeout(400), pytest.mark.usefixtures("forked")]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("world", [1, 2])
def test_p01_to_p11_killed_anywhere_equals_never_killed(tiny, tmp_path, references, world, blocking):
    """SIGKILL at each phase, of one rank or the other in turn; in a commit of one and of all, of which the other one is
    struck where it is written the other way."""
    asked = f"launch.processes={world}"
    expected = references(tiny, asked)
    tiny["checkpoint"]["blocking"] = blocking
    # The interval of five, and the step it was in. Beside training, also what is stepped until a commit is written: at
    # the end of twelve steps the commit of step 10 may not be there yet, and step 5 is where it goes on.
    most = 6 if blocking else 7
    for fault in sweep(world):
        turn = PHASES.index(fault.phase)
        if fault.phase not in OF_A_COMMIT and (blocking or fault.rank != turn % world):
            continue
        if fault.phase in OF_A_COMMIT and world > 1 and (fault.rank == ALL) == ((turn + blocking) % 2 == 0):
            continue
        run = tmp_path / f"{fault.phase}-{fault.rank}"
        found = drill(tiny, run, fault, asked)
        assert found.trace == expected, (fault, found.outcome)
        survived = world > 1 and fault.rank != ALL
        if survived and found.lost > 1:
            # What a process had sent may be lost with it: then the other one stands within the step. Not each time.
            found = drill(tiny, tmp_path / f"{fault.phase}-{fault.rank}-again", fault, asked)
            assert found.trace == expected, (fault, found.outcome)
        assert found.lost <= (1 if survived else most), fault
        assert leftovers(run) == [], fault
        assert list(read(run / "ledger.jsonl"))


@pytest.mark.parametrize("phase", ["backward", "reduce", "pulse"])
def test_p05_four_processes_lose_one_and_at_most_a_step(tiny, tmp_path, references, phase):
    tiny["checkpoint"]["every"] = None
    found = drill(tiny, tmp_path / "run", Fault("kill", 2, phase, 9), "launch.processes=4")
    assert found.trace == references(tiny, "launch.processes=4")
    assert found.lost <= 1
    attempt = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "attempt"][-1]
    assert attempt["from_step"] >= 8
    assert attempt["survivors"]
    assert "rank 2 was ended by SIGKILL" in attempt["after"]["cause"]


@pytest.mark.parametrize("phase", ["data", "forward", "reduce", "evaluation", "snapshot", "publish"])
@pytest.mark.parametrize("act", ["term", "terms"])
def test_p13_p14_asked_to_stop_in_any_phase_it_commits_that_step_and_loses_none(tiny, tmp_path, references, act, phase):
    step = {"evaluation": 6, "snapshot": 10, "publish": 10}.get(phase, 7)
    run, asked = tmp_path / "run", "launch.processes=2"
    first = drill(tiny, run, Fault(act, 0, phase, step), asked, again=False)
    assert first.outcome.code == Exit.STOPPED
    assert first.outcome.where["last_committed_step"] == first.outcome.where["step"]
    last = drill(tiny, run, None, asked)
    assert last.trace == references(tiny, asked)
    assert last.lost == 0


@pytest.mark.parametrize(
    ("act", "phase"), [("stop", "forward"), ("stop", "data"), ("gil", "backward"), ("sleep", "data")]
)
def test_p15_p17_a_hang_is_found_its_stacks_are_written_and_the_run_goes_on(tiny, tmp_path, references, act, phase):
    run = tmp_path / "run"
    asked = ("launch.processes=2", "launch.hang_after=2")
    found = drill(tiny, run, Fault(act, 1, phase, 7), *asked)
    assert found.trace == references(tiny, "launch.processes=2")
    after = [r for r in read(run / "ledger.jsonl") if r["kind"] == "attempt"][-1]["after"]
    assert after["code"] == Exit.HANG
    assert f"rank 1 at step 7 ({phase})" in after["cause"]
    assert found.recovery < 30
    for rank in (0, 1):
        stacks = run / "logs" / f"stacks-{rank}.txt"
        assert "Current thread" in stacks.read_text() or "Thread" in stacks.read_text()
        assert stacks.stat().st_mode & 0o777 == 0o600
    assert "loop.py" in (run / "logs" / "stacks-0.txt").read_text()


def test_p15_a_hang_that_comes_again_and_again_ends_with_a_crash_loop(tiny, tmp_path):
    fault = Fault("sleep", 0, "forward", 3, always=True)
    found = drill(tiny, tmp_path / "run", fault, "launch.hang_after=1", "launch.restarts=1")
    assert found.outcome.code == Exit.INTERNAL
    assert "crash loop: 1 restarts" in found.outcome.cause
    assert found.outcome.where["phase"] == "forward"


def test_p18_an_exception_on_one_rank_is_the_first_cause_and_ends_all_within_two_seconds(tiny, tmp_path):
    found = drill(tiny, tmp_path / "run", Fault("raise", 1, "forward", 7), "launch.processes=2")
    ended = time.time()
    assert found.outcome.code == Exit.INTERNAL
    assert "ValueError: on purpose" in found.outcome.cause
    assert found.outcome.where["rank"] == 1
    assert ended - float((tmp_path / "run" / "struck-at").read_text()) < 10  # not gloo's half hour; usually under two
    assert found.starts == 1


def test_p19_an_early_exit_with_zero_is_a_failure(tiny, tmp_path):
    found = drill(tiny, tmp_path / "run", Fault("exit", 1, "forward", 7), "launch.processes=2")
    assert found.outcome.code == Exit.INTERNAL
    assert "exited with 0 without saying why" in found.outcome.cause


@pytest.mark.parametrize("act", ["segv", "abort"])
def test_p20_a_fault_in_native_code_leaves_stacks_and_says_where_cores_go(tiny, tmp_path, references, act):
    run = tmp_path / "run"
    found = drill(tiny, run, Fault(act, 0, "backward", 7, always=True), "launch.restarts=0")
    assert found.outcome.code == Exit.INTERNAL
    assert found.outcome.where["core_pattern"]
    assert found.outcome.where["phase"] == "backward"
    assert "Fatal Python error" in (run / "logs" / "stacks-0.txt").read_text()
    assert drill(tiny, tmp_path / "once", Fault(act, 0, "backward", 7)).trace == references(tiny, "launch.processes=1")


def test_p21_a_process_that_ran_out_of_memory_is_not_started_again(tiny, tmp_path, monkeypatch):
    """The kernel's count is what tells; here it is made to grow, since a cgroup cannot be made everywhere."""
    counts = iter([0, *[1] * 99])
    monkeypatch.setattr(worker_group, "oom_kills", lambda: next(counts))
    found = drill(tiny, tmp_path / "run", Fault("kill", 0, "forward", 7))
    assert found.outcome.code == Exit.INTERNAL
    assert found.outcome.where["class"] == "oom"
    assert found.starts == 1


def test_p22_a_step_that_always_crashes_ends_with_its_samples(tiny, tmp_path):
    found = drill(tiny, tmp_path / "run", Fault("kill", 1, "forward", 7, always=True), "launch.processes=2")
    assert found.outcome.code == Exit.INTERNAL
    assert "crash loop: 3 restarts without a newly committed step" in found.outcome.cause
    where = found.outcome.where
    assert where["step"] == 7
    assert len(where["sample_ids"]) == 8
    told = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert told["where"]["sample_ids"] == where["sample_ids"]


def test_p23_killed_after_the_last_step_it_has_nothing_left_to_do(tiny, tmp_path, references):
    found = drill(tiny, tmp_path / "run", Fault("kill", 0, "teardown", 12))
    assert found.trace == references(tiny, "launch.processes=1")
    assert found.lost == 0


def test_p16_a_zombie_that_wakes_up_after_another_took_over_ends_with_85_and_changes_nothing(tiny, tmp_path):
    """A whole run is stopped and nobody watches it, another one follows, and then the first wakes up."""
    tiny["budget"], tiny["launch"]["hang_after"] = {"steps": 60}, None
    run, ends = tmp_path / "run", []
    Fault("stop", 0, "forward", 7).arm(run)
    zombie = threading.Thread(target=lambda: ends.append(run_under_supervisor(tiny, run, worker=WORKER)))
    zombie.start()
    while not (run / "struck-at").exists():
        time.sleep(0.02)
    stopped = [p for p in psutil.process_iter() if p.status() == psutil.STATUS_STOPPED and is_mine(p)]
    (tmp_path / "recipe.json").write_text(json.dumps(tiny))
    command = [sys.executable, "-m", "drivetrain", "train", str(tmp_path / "recipe.json"), "--run", str(run)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == Exit.DONE
    stopped[0].resume()
    zombie.join()
    assert ends[0].code == Exit.OWNED_ELSEWHERE
    made = [r["attempt"] for r in read(run / "ledger.jsonl") if r["kind"] == "step"]
    assert made == sorted(made)
    assert made[-1] == 2
    run_under_supervisor(tiny, tmp_path / "alone")
    assert trace(run) == trace(tmp_path / "alone")


def is_mine(process):
    return psutil.Process().pid in [parent.pid for parent in process.parents()]


def test_s10_two_runs_on_one_directory_the_second_ends_with_85_within_two_seconds(tiny, tmp_path):
    run = tmp_path / "run"
    Fault("sleep", 0, "forward", 7).arm(run)
    first = threading.Thread(target=lambda: drill(tiny, run, Fault("sleep", 0, "forward", 7), "launch.hang_after=4"))
    first.start()
    while not (run / "struck-at").exists():
        time.sleep(0.02)
    started = time.monotonic()
    with pytest.raises(Failure) as caught:
        run_under_supervisor(tiny, run)
    assert time.monotonic() - started < 2
    assert caught.value.outcome.code == Exit.OWNED_ELSEWHERE
    first.join()


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


@pytest.mark.cold
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
    from drivetrain.launch.job import StartOptions
    from drivetrain.launch.preparation import prepare_job
    from drivetrain.launch.supervisor import supervise
    from drivetrain.spec.load import load

    resolved = load(tiny, ["launch.processes=2"])
    job = prepare_job(resolved, run=run, overrides=(), options=StartOptions(started=started))
    outcome = supervise(job, worker="drills.fault:main", say=say)
    assert any("in 30 s" in text for text in said)
    assert time.time() - started < 25
    assert outcome.code == Exit.STOPPED
    assert outcome.where["last_committed_step"] == outcome.where["step"] == 6
