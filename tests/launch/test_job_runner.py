import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from drivetrain.launch import attempts
from drivetrain.launch.job import Job
from drivetrain.launch.job_runner import CANCEL, claim, run_job
from drivetrain.launch.submission import NodeWork
from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import write_json

SAYS = "import os, sys; os.rename(*sys.argv[1:])"


class Scripted:
    """An engine whose nodes do, one attempt after the other, what a list says: an exit.json, or an exit status."""

    elsewhere = True

    def __init__(self, run, script, requeues=False):
        self.native, self.run, self.script, self.requeues = "7", run, list(script), requeues
        self.started, self.asked, self.stopped = [], 0, 0

    def address(self):
        return "127.0.0.1"

    def start(self, command, environment):
        self.started.append(environment)
        what = self.script.pop(0)
        if isinstance(what, Outcome):
            said = self.run.parent / "said.json"
            write_json(said, what.to_json())
            (self.run / "checkpoints" / f"step-{what.where.get('reached', 0):08d}").mkdir(parents=True, exist_ok=True)
            return subprocess.Popen([sys.executable, "-c", SAYS, said, self.run / "exit.json"])
        return subprocess.Popen(["sh", "-c", what])

    def stop(self):
        self.stopped += 1

    def requeue(self):
        self.asked += 1
        if not self.requeues:
            raise Failure(Exit.STOPPED, "this engine does not")


@pytest.fixture(autouse=True)
def _signals():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "run" / "launch" / "test-00000001"
    folder.mkdir(parents=True)
    work = NodeWork(
        token="test-00000001",
        job=Job(folder=str(tmp_path / "run"), recipe={}, origins={}),
        folder=str(folder),
        nodes=1,
        retries=5,
        fruitless=2,
        environment={},
        secrets={},
        cwd="/",
    )
    (folder / "work.json").write_text(work.text())
    return folder / "work.json"


@pytest.fixture
def run(file):
    return file.parent.parent.parent


def says(code, reached=0, **where):
    return Outcome(code=code, cause="test", where={"reached": reached, **where})


DONE = says(Exit.DONE, 40)
KILLED = {"signal": "SIGKILL"}


def test_it_starts_again_in_place_until_it_is_done_and_each_attempt_has_a_port_of_its_own(file, run):
    engine = Scripted(run, [says(Exit.INTERNAL, 10, **KILLED), says(Exit.HANG, 20), DONE])
    assert run_job(file, engine) == Exit.DONE
    assert [one["DRIVETRAIN_ATTEMPT"] for one in engine.started] == ["0", "1", "2"]
    assert len({one["DRIVETRAIN_PORT"] for one in engine.started}) == 3
    told = json.loads((run / "exit.json").read_text())
    assert told["attempts"] == ["70 test", "84 test", "0 test"]


def test_l06_a_job_that_is_done_is_not_run_again(file, run):
    assert run_job(file, Scripted(run, [DONE])) == Exit.DONE
    again = Scripted(run, [])
    assert run_job(file, again) == Exit.DONE
    assert not again.started


@pytest.mark.parametrize("code", [Exit.BAD_RECIPE, Exit.INCOMPATIBLE, Exit.DIVERGED, Exit.INTERNAL])
def test_l09_what_would_end_the_same_is_not_run_again(file, run, code):
    engine = Scripted(run, [says(code, 10)], requeues=True)
    assert run_job(file, engine) == code
    assert engine.asked == 0


def test_l10_without_progress_it_ends_with_70_and_every_attempt_is_told(file, run):
    engine = Scripted(run, [says(Exit.HANG), says(Exit.CORRUPTION_SUSPECTED), DONE])
    assert run_job(file, engine) == Exit.INTERNAL
    told = json.loads((run / "exit.json").read_text())
    assert "2 attempts in a row without a new commit; the last end: 83 test" in told["cause"]
    assert told["attempts"] == ["84 test", "83 test"]


def test_its_user_may_ask_for_more_attempts_after_that(file, run):
    assert run_job(file, Scripted(run, [says(Exit.HANG), says(Exit.HANG)])) == Exit.INTERNAL
    assert run_job(file, Scripted(run, [says(Exit.HANG), DONE])) == Exit.DONE


@pytest.mark.parametrize("how", [says(Exit.STOPPED, 10), says(Exit.PEER_UNAVAILABLE, 10), "kill -9 $$"])
def test_what_was_stopped_or_lost_is_the_engines_to_start_again(file, run, how):
    engine = Scripted(run, [how], requeues=True)
    run_job(file, engine)
    assert engine.asked == 1
    assert attempts.read(file.parent).state == "requeued"
    assert run_job(file, Scripted(run, [DONE])) == Exit.DONE
    assert len(attempts.read(file.parent).attempts) == 2


def test_a_stop_that_the_user_asked_for_stays(file, run):
    engine = Scripted(run, [says(Exit.STOPPED, 10, stop="asked")], requeues=True)
    assert run_job(file, engine) == Exit.DONE
    assert engine.asked == 0


def test_l08_a_mark_is_enough_to_cancel(file, run):
    (file.parent / CANCEL).touch()
    engine = Scripted(run, [says(Exit.STOPPED, 10)], requeues=True)
    assert run_job(file, engine) == Exit.STOPPED
    assert (engine.asked, attempts.read(file.parent).state) == (0, "ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_l05_a_signal_to_the_script_reaches_the_trainers_and_one_before_they_hear_it_is_a_requeue(file, run, number):
    engine = Scripted(run, ["sleep 0.6; exit 143"], requeues=True)
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
    assert run_job(file, engine) == Exit.STOPPED
    assert (engine.stopped, engine.asked) == (1, 1)
    assert number.name in attempts.read(file.parent).attempts[0].outcome.cause


def test_a_conductor_that_was_lost_with_its_node_counts_as_an_attempt(file, run):
    lost = says(Exit.INTERNAL, **{"class": "unsaid"})
    before = attempts.JobAttempt(outcome=lost, before=None, reached=None, began=0.0, ended=1.0)
    attempts.write(file.parent, attempts.Attempts(attempts=(before,), open=(2.0, None)))
    engine = Scripted(run, [])
    assert run_job(file, engine) == Exit.INTERNAL
    assert not engine.started
    assert len(attempts.read(file.parent).attempts) == 2


def test_l11_where_the_engine_cannot_requeue_the_job_says_so(file, run):
    class Away(Scripted):
        def requeue(self):
            raise Failure(Exit.PEER_UNAVAILABLE, "slurmctld is away")

    assert run_job(file, Away(run, [says(Exit.STOPPED, 10)])) == Exit.PEER_UNAVAILABLE
    assert json.loads((run / "exit.json").read_text())["cause"] == "slurmctld is away"


def test_a_request_that_was_sent_twice_runs_once(tmp_path):
    claim(tmp_path, "7")
    claim(tmp_path, "7")  # requeued
    with pytest.raises(Failure) as failure:
        claim(tmp_path, "8")
    assert failure.value.outcome.code == Exit.OWNED_ELSEWHERE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner"]


def test_a_third_cancel_is_not_passed_on_for_it_would_end_the_commit(file, run):
    engine = Scripted(run, ["sleep 1.5; exit 143"])
    for after in (0.3, 0.6, 0.9, 1.2):
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM)).start()
    run_job(file, engine)
    assert engine.stopped == 2
