import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from drivetrain.launch.forkserver import ForkServer
from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.spec.exits import Exit, Failure

pytestmark = pytest.mark.usefixtures("importable")

TESTS = Path(__file__).parent.parent


def run(folder, worker, processes=2, overrides=(), **options):
    job = Job(folder=str(folder), recipe={}, origins={}, processes=processes, overrides=overrides)
    return supervise(job, worker=f"ranks:{worker}", preload=("torch", "ranks"), **options)


def children():
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_ranks_meet_and_talk(tmp_path, processes):
    outcome = run(tmp_path, "talk", processes)
    assert outcome.code == Exit.DONE, outcome
    said = json.loads(outcome.cause)
    assert ("the number differs between ranks" in said["refused"]) == (processes > 1)


def test_x11_on_one_machine_nothing_listens_beyond_the_loopback(tmp_path):
    said = json.loads(run(tmp_path, "talk", 2).cause)
    assert said["listeners"]
    assert set(said["listeners"]) <= {"0100007F"}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("how", "code", "cause"),
    [
        ("SIGKILL", 70, "was ended by SIGKILL"),
        ("SIGSEGV", 70, "was ended by SIGSEGV"),
        ("exit", 70, "exited with 0 without saying why"),
        ("raise", 70, "exited with 70 without saying why"),
        ("82", 82, "its own reason"),
    ],
    ids=["p04-killed", "p20-segfault", "p19-early-exit", "p18-exception", "own-code"],
)
def test_a_dead_rank_ends_the_others_within_a_second_and_is_named(tmp_path, victim, how, code, cause):
    outcome = run(tmp_path, "die", 2, (str(victim), how))
    ended = time.time()
    assert outcome.code == code
    assert cause in outcome.cause
    died = float((tmp_path / f"died-{victim}").read_text())
    assert ended - died < 2.5  # a second of grace, and the machine may be busy
    told = json.loads((tmp_path / "exit.json").read_text())
    assert (told["code"], told["cause"]) == (code, outcome.cause)
    if how.startswith("SIG"):
        assert told["where"]["rank"] == victim


def test_ranks_that_do_not_end_are_ended_after_a_second(tmp_path):
    def kill_one():
        path = tmp_path / "pid-1"
        while not path.exists() or not path.read_text():
            time.sleep(0.02)
        os.kill(int(path.read_text()), signal.SIGKILL)

    before = children()
    threading.Thread(target=kill_one).start()
    outcome = run(tmp_path, "hang", 2)
    assert "rank 1 was ended by SIGKILL" in outcome.cause
    assert children() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_p13_a_signal_to_the_supervisor_asks_every_rank_to_stop(tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("started by nohup: a closed terminal is no reason to stop")
    said = []

    def ask():
        while len(list(tmp_path.glob("pid-*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask).start()
    outcome = run(tmp_path, "stoppable", 2, say=said.append)
    assert outcome.code == Exit.STOPPED
    assert outcome.cause == number.name
    assert len(said) == 1


def test_p14_the_third_signal_ends_it_at_once(tmp_path):
    said = []

    def ask():
        while len(list(tmp_path.glob("pid-*"))) < 2:
            time.sleep(0.02)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.4)

    threading.Thread(target=ask).start()
    started = time.time()
    outcome = run(tmp_path, "hang", 2, say=said.append)
    assert outcome.code == Exit.INTERNAL
    assert "third signal" in outcome.cause
    assert time.time() - started < 10
    assert len(said) == 2


@pytest.mark.cold  # all that it starts is below it
def test_p12_a_killed_supervisor_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen([sys.executable, str(TESTS / "ranks.py"), str(tmp_path)], start_new_session=True)
    deadline = time.time() + 30
    while len(list(tmp_path.glob("pid-*"))) < 2 and time.time() < deadline:
        time.sleep(0.02)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 3
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=2)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]  # whoever adopted it is to reap it


def test_s02_a_run_directory_that_cannot_be_made_is_73(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as caught:
        run(tmp_path / "file" / "run", "talk", 1)
    assert caught.value.outcome.code == Exit.CANNOT_CREATE


def test_x17_the_run_directory_is_its_owners(tmp_path):
    os.umask(0)
    try:
        run(tmp_path / "run", "talk", 1)
    finally:
        os.umask(0o022)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "exit.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_started_again_in_whatever_order_the_ends_are_told(tmp_path, victim):
    """The peer that exits because of it may be told first."""
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=2, overrides=(str(victim), "SIGKILL"))
    starts = []
    outcome = supervise(
        dataclasses.replace(job, most_restarts=2),
        worker="ranks:die",
        preload=("torch", "ranks"),
        say=starts.append,
    )
    assert len(starts) == 2
    assert "crash loop: 2 restarts" in outcome.cause


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_killed_forkserver_is_named_and_started_again_as_a_killed_rank_is(tmp_path, restarts):
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=1, most_restarts=restarts)
    said = []
    outcome = supervise(job, worker="ranks:bereave", preload=("ranks",), say=said.append)
    cause = "the forkserver was ended by SIGKILL, and the ranks with it"
    if restarts:
        assert outcome.code == Exit.DONE
        assert said == [f"{cause}; starting again"]
    else:
        assert (outcome.code, outcome.cause) == (Exit.INTERNAL, cause)
        assert "traceback" not in outcome.hint


def test_a_module_in_the_current_folder_does_not_take_the_place_of_pythons_own(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise RuntimeError('not Python's')\n")
    monkeypatch.chdir(tmp_path)
    server = ForkServer(("random",))
    try:
        server.start("builtins:len", 0, [])
        assert "pid" in server.news()
        assert server.news()["status"] == 0
    finally:
        server.close()
    status = subprocess.run([sys.executable, "-m", "drivetrain", "status", "nothing"], capture_output=True, text=True)
    assert (status.returncode, "Traceback" in status.stderr) == (66, False)
