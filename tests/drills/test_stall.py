"""A run directory that stalls, as a network file system does: training goes on, within bounds, and no bit is lost."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import trace
from drills.runs import leftovers
from drills.stalled import beside, forget, reached, stall, train, workers
from drivetrain.launch import rundir, worker_group
from drivetrain.launch.rundir import record
from drivetrain.ledger.ledger import read
from drivetrain.run.proof import prove
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Outcome

pytestmark = [pytest.mark.xdist_group("stalls"), pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]
HANG = "launch.hang_after=3"
SECONDS = 6.5  # more than twice the watchdog's patience
STEPS = 320  # more than are made until a stall is over, at the pace that it has then


@pytest.fixture
def hurried(monkeypatch):
    """A disk that stays away is asked for its last answers for a second each, not for five."""
    monkeypatch.setattr(rundir, "ANSWER", 1.0)
    monkeypatch.setattr(worker_group, "LEFT", 1.0)


@pytest.fixture
def long(tiny):
    """A run that goes on for longer than a stall, and commits at its end only."""
    return tiny | {"budget": {"steps": STEPS}, "checkpoint": {"every": None}, "evaluate": {"every": None, "batch": 256}}


def kinds(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


def require_whole(run, steps):
    made = [record["step"] for record in kinds(run, "step")]
    assert made == list(range(1, steps + 1))
    assert prove(run, data=False).steps == steps
    assert leftovers(run) == []


@pytest.mark.parametrize("world", [1, 2])
def test_s20_a_stall_of_the_run_directory_holds_up_no_step_and_is_no_hang(long, tmp_path, world, references):
    run, asked = tmp_path / "run", f"launch.processes={world}"
    with stall(run, step=20, seconds=SECONDS) as seen:
        outcome = train(long, run, asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    assert seen.ended - seen.began > 50  # steps that were made while nothing could be written
    assert len(kinds(run, "attempt")) == 1
    require_whole(run, STEPS)
    assert trace(run) == references(long, asked)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("blocking", ["true", "false"])
def test_s20_a_commit_that_is_due_in_a_stall_is_waited_for_and_no_hang(long, tmp_path, world, blocking, references):
    run, asked = tmp_path / "run", (f"launch.processes={world}", f"checkpoint.blocking={blocking}")
    often = long | {"checkpoint": {"every": {"steps": 20}}}
    with stall(run, step=50, seconds=SECONDS) as seen:
        outcome = train(often, run, *asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    next_due = (seen.began // 20 + 1) * 20
    assert seen.ended <= next_due + 21  # the next commit is under way, the one after it waits
    waited = max(record["waited"] + record["seconds"] for record in kinds(run, "commit"))
    assert waited > SECONDS / 2
    assert len(kinds(run, "attempt")) == 1
    require_whole(run, STEPS)
    assert trace(run) == references(long, f"launch.processes={world}")


@pytest.mark.parametrize("every", [None, {"steps": 20}])
@pytest.mark.usefixtures("hurried")
def test_s20_a_stall_that_lasts_longer_than_stop_stall_ends_with_74_and_says_what_stalls(
    long, tmp_path, every, references
):
    run = tmp_path / "run"
    wanted = long | {"checkpoint": {"every": every}}
    with stall(run, step=20, seconds=60):
        began = time.monotonic()
        outcome = train(wanted, run, "stop.stall=1.5", HANG)
        took = time.monotonic() - began
    assert outcome.code is Exit.STORAGE, outcome
    assert f"{run} stalls: nothing could be written to it for" in outcome.cause
    assert outcome.where["stalled"] >= 1.5
    assert "goes on from the last commit" in outcome.hint
    assert took < 60
    assert train(wanted, run, HANG).code is Exit.DONE
    assert prove(run, data=False).steps == STEPS
    assert trace(run) == references(long, "launch.processes=1")


@pytest.mark.usefixtures("hurried")
def test_s20_more_records_than_may_wait_end_with_74(long, tmp_path, references):
    run = tmp_path / "run"
    beside(run, "most").write_text("20000")
    with stall(run, step=20, seconds=60):
        outcome = train(long, run, HANG)
    assert outcome.code is Exit.STORAGE
    assert "records wait in memory, at most 0.0 MB may wait" in outcome.cause
    beside(run, "most").unlink()
    assert train(long, run).code is Exit.DONE
    assert trace(run) == references(long, "launch.processes=1")


@pytest.mark.parametrize("world", [1, 2])
def test_s20_a_command_in_a_stall_acts_only_once_it_is_durable(long, tmp_path, world):
    """It is left before the stall, at the very moment, and none of it happens until the ledger has it."""
    run, asked = tmp_path / "run", f"launch.processes={world}"

    def told():
        name = f"{time.time_ns():020d}-{'0' * 16}.json"
        beside(run, "command").write_text(json.dumps(Command("set", "optimizer.lr=0.001").to_json()))
        # By other processes: what this one does there stalls.
        subprocess.run(["mkdir", "-p", run / "control"], check=True)
        subprocess.run(["mv", beside(run, "command"), run / "control" / name], check=True)

    with stall(run, step=20, seconds=SECONDS, within=told) as seen:
        outcome = train(long, run, asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    (command,) = kinds(run, "command")
    assert command["step"] >= seen.ended - 2  # the stall was over
    rates = {record["step"]: record["lr"]["model"] for record in kinds(run, "step")}
    assert rates[command["step"]] > 0.001 >= rates[command["step"] + 1]
    assert prove(run, data=False).commands == 1


@pytest.mark.parametrize("world", [1, 2])
def test_s20_killed_in_a_stall_it_goes_on_with_the_same_bits(long, tmp_path, world, references):
    run, asked = tmp_path / "run", f"launch.processes={world}"
    wanted = long | {"checkpoint": {"every": {"steps": 50}}}

    def kill():
        time.sleep(2)
        os.kill(workers(run)[-1][1], signal.SIGKILL)

    with stall(run, step=60, seconds=SECONDS, within=kill):
        outcome = train(wanted, run, asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    assert len(kinds(run, "attempt")) == 2
    assert prove(run, data=False).steps == STEPS
    assert trace(run) == references(long, asked)


@pytest.mark.parametrize("seconds", [0.3, 0.6])
def test_s20_scores_that_only_a_killed_leader_had_are_made_again_before_a_rate_follows_them(
    tiny, tmp_path, seconds, references
):
    """Beside a survivor, that is a step further: what it did hangs on scores that the ledger does not have."""
    run, asked = tmp_path / "run", "launch.processes=2"
    tiny |= {"budget": {"steps": 120}, "checkpoint": {"every": {"steps": 10}}}
    tiny["evaluate"] = {"every": None, "batch": 256}
    falls = {"every": {"steps": 2}, "patience": 0, "factor": 0.9, "threshold": 9.0}
    tiny["schedule"] = {"kind": "plateau", "metric": "dogs/loss", **falls}

    def kill():
        time.sleep(seconds)
        os.kill(workers(run)[0][1], signal.SIGKILL)

    with stall(run, step=60, seconds=1.5, within=kill):
        outcome = train(tiny, run, asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    assert {record["step"] for record in kinds(run, "evaluation")} == set(range(2, 121, 2))
    assert trace(run) == references(tiny, asked)


@pytest.fixture
def frozen(tmp_path):
    """A real file system that `fsfreeze` stops: who writes waits in the kernel, where not even SIGKILL reaches it."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    image.touch()
    os.truncate(image, 64 << 20)
    if subprocess.run(["mkfs.ext4", "-q", image], capture_output=True).returncode:
        pytest.skip("no mkfs.ext4")
    if subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True).returncode:
        pytest.skip("mounting needs root")

    @contextmanager
    def freeze(seconds, when):
        over = threading.Event()
        forget(disk / "run")

        def work():
            while not when(disk / "run") and not over.wait(0.002):
                pass
            subprocess.run(["fsfreeze", "-f", disk], check=True)
            over.wait(seconds)
            subprocess.run(["fsfreeze", "-u", disk], check=True)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield disk / "run"
        finally:
            over.set()
            thread.join()

    yield freeze
    subprocess.run(["umount", "-l", disk], check=True)


def at_step_20(run):
    return reached(run) >= 20


def opens(run):
    """Its worker has taken the directory, and trains nothing yet."""
    return (run / "lease").is_dir()


@pytest.mark.parametrize("world", [1, 2])
def test_s20_a_file_system_that_is_frozen_and_thawed_again_costs_no_bit(long, tmp_path, frozen, world, references):
    asked = f"launch.processes={world}"
    with frozen(SECONDS, at_step_20) as run:
        outcome = train(long, run, asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    assert len(kinds(run, "attempt")) == 1
    require_whole(run, STEPS)
    assert trace(run) == references(long, asked)


@pytest.mark.usefixtures("hurried")
def test_s20_a_file_system_that_stays_frozen_ends_the_run_with_74(long, tmp_path, frozen, references):
    """The workers cannot even be ended: the supervisor has heard how they end, and waits for nobody."""
    with frozen(100, at_step_20) as run:
        began = time.monotonic()
        outcome = train(long, run, "stop.stall=1.5", "launch.processes=2", HANG)
        assert time.monotonic() - began < 60
    assert outcome.code is Exit.STORAGE, outcome
    assert f"{run} stalls" in outcome.cause
    assert train(long, run).code is Exit.DONE
    assert trace(run) == references(long, "launch.processes=1")


@pytest.mark.parametrize("world", [1, 2])
def test_s20_a_start_that_waits_for_a_frozen_file_system_is_no_hang(long, tmp_path, frozen, world, references):
    """Whoever opens the directory gets nowhere for longer than a start may take; it is the disk that is waited for."""
    asked = (f"launch.processes={world}", "launch.slow_after=2", "launch.restarts=0")
    with frozen(SECONDS, opens) as run:
        outcome = train(long, run, *asked, HANG)
    assert outcome.code is Exit.DONE, outcome
    assert len(kinds(run, "attempt")) == 1
    assert trace(run) == references(long, f"launch.processes={world}")


@pytest.mark.usefixtures("hurried")
def test_s20_a_start_on_a_file_system_that_stays_frozen_ends_with_74(long, tmp_path, frozen, references):
    with frozen(100, opens) as run:
        outcome = train(long, run, "launch.slow_after=2", "stop.stall=3", HANG)
    assert outcome.code is Exit.STORAGE, outcome
    assert f"{run} stalls" in outcome.cause
    assert "before: no sign of life" in outcome.cause
    assert train(long, run).code is Exit.DONE
    assert trace(run) == references(long, "launch.processes=1")


@pytest.mark.usefixtures("hurried")
def test_s20_whoever_tells_how_a_run_ended_is_not_kept_by_a_frozen_file_system(frozen):
    """A thread that waits in the kernel would keep the whole process, whatever has ended the run."""
    with frozen(100, Path.is_dir) as run:
        run.mkdir()
        time.sleep(1)
        record(run, Outcome(code=Exit.INTERNAL, cause="three signals", hint="", where={}))
        assert not [thread for thread in threading.enumerate() if thread.name == "within"]
