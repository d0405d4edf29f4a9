import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clock import Clock
from drivetrain.runtime import lease as leases
from drivetrain.runtime.lease import Lease, Takeover, fenced, require_free, takeovers
from drivetrain.spec.exits import Exit, Failure


def take(run, commits=(), **options):
    return Lease.take(run, lambda: list(commits), **options)


def forge(run, epoch, host="elsewhere", boot="another kernel", beat="7"):
    """A holder on another host."""
    folder = run / "lease"
    folder.mkdir(exist_ok=True)
    line = json.dumps({"epoch": epoch, "found": [], "host": host, "pid": 1, "boot": boot}).encode()
    (folder / f"{epoch:08d}.json").write_bytes(line + b"\n" + leases.sha256(line).hexdigest().encode() + b"\n")
    (folder / f"{epoch:08d}.beat").write_text(beat)


def test_a_free_directory_is_taken_and_given_back(tmp_path):
    assert require_free(tmp_path) is None
    first = take(tmp_path, ["step-00000001"])
    assert first.epoch == 1
    first.release()
    second = take(tmp_path)
    assert (second.epoch, second.inherited) == (2, False)
    second.release()
    assert [t.found for t in takeovers(tmp_path)] == [("step-00000001",), ()]


def test_s10_a_second_run_on_a_directory_is_85_within_two_seconds(tmp_path):
    holder = take(tmp_path)
    started = time.monotonic()
    with pytest.raises(Failure) as caught:
        take(tmp_path)
    assert time.monotonic() - started < 2
    assert caught.value.outcome.code == Exit.OWNED_ELSEWHERE
    assert f"process {os.getpid()}" in caught.value.outcome.cause
    holder.release()


def test_a_holder_on_this_machine_that_died_is_followed_at_once(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from drivetrain.runtime.lease import Lease\n"
        "Lease.take(Path(sys.argv[1]), list); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    clock = Clock()
    lease = take(tmp_path, clock=clock, sleep=clock.sleep)
    assert lease.epoch == 2
    assert clock.now == 0
    assert not lease.inherited
    lease.release()


def test_a_holder_elsewhere_lives_while_its_counter_moves(tmp_path):
    forge(tmp_path, 4)
    clock = Clock()
    clock.at[3.0] = lambda: (tmp_path / "lease" / "00000004.beat").write_text("8")
    with pytest.raises(Failure) as caught:
        take(tmp_path, clock=clock, sleep=clock.sleep)
    assert caught.value.outcome.code == Exit.OWNED_ELSEWHERE
    assert clock.now < 4


def test_l07_a_holder_whose_counter_stands_still_is_followed_after_a_bounded_wait(tmp_path):
    forge(tmp_path, 4)
    clock = Clock()
    lease = take(tmp_path, clock=clock, sleep=clock.sleep)
    assert lease.epoch == 5
    assert lease.inherited
    assert 10 <= clock.now < 11
    lease.release()


def test_a_holder_that_the_supervisor_has_waited_for_is_not_waited_for_again(tmp_path):
    forge(tmp_path, 4)
    clock = Clock()
    assert require_free(tmp_path, clock, clock.sleep) == 4
    lease = take(tmp_path, silent=4, sleep=pytest.fail)
    assert (lease.epoch, lease.inherited) == (5, True)
    lease.release()


def test_p16_who_was_followed_may_neither_publish_nor_write(tmp_path):
    old = take(tmp_path)
    (tmp_path / "lease" / "00000002.json").write_text("a newer holder")
    for forbidden in (old.require, lambda: old.holding().__enter__()):
        with pytest.raises(Failure) as caught:
            forbidden()
        assert caught.value.outcome.code == Exit.OWNED_ELSEWHERE
    old.release()
    assert "released" not in (tmp_path / "lease" / "00000001.beat").read_text()


def test_a_commit_that_the_next_takeover_did_not_find_is_fenced_off():
    history = [Takeover(1, ()), Takeover(2, ("step-5",)), Takeover(3, None), Takeover(4, ("step-5", "step-7"))]
    assert not fenced(history, "step-5", 1)
    assert fenced(history, "step-6", 1)
    assert not fenced(history, "step-7", 2)  # takeover 3 was cut off: what it found is not known, and it made nothing
    assert fenced(history, "step-8", 3)
    assert not fenced(history, "step-9", 4)


def test_a_takeover_that_was_cut_off_fences_nothing_off(tmp_path):
    take(tmp_path).release()
    (tmp_path / "lease" / "00000002.json").write_text('{"epoch": 2, "fou')
    assert takeovers(tmp_path)[-1].found is None
    clock = Clock()
    lease = take(tmp_path, clock=clock, sleep=clock.sleep)
    assert lease.epoch == 3
    lease.release()


def test_takeovers_older_than_every_commit_are_forgotten(tmp_path):
    for _ in range(4):
        take(tmp_path).release()
    lease = take(tmp_path)
    lease.prune(3)
    assert [t.epoch for t in takeovers(tmp_path)] == [3, 4, 5]
    lease.prune(99)
    assert [t.epoch for t in takeovers(tmp_path)] == [5]
    lease.release()


def test_x17_only_its_owner_may_read_the_lease(tmp_path):
    before = os.umask(0)
    try:
        take(tmp_path).release()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "lease").iterdir()} == {0o600}


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
