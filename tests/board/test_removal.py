import os
import signal
import subprocess
import sys

import pytest

from drivetrain.board.removal import empty, trash
from drivetrain.board.runs import find
from drivetrain.runtime import lease as leases
from drivetrain.runtime.lease import Lease, fenced, takeovers
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def run(tmp_path):
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    (made / "ledger.jsonl").write_text("")
    return made


def test_a_run_goes_out_of_sight_at_once_and_then_from_the_disk(run):
    place = trash(run, "one")
    assert not run.exists()
    assert place.parent == run.parent
    assert list(find(run.parent)) == []
    empty(place)
    assert list(run.parent.iterdir()) == []


@pytest.mark.parametrize("confirm", ["", "One", "one/", "*"])
def test_another_name_removes_nothing(run, confirm):
    with pytest.raises(Failure) as found:
        trash(run, confirm)
    assert found.value.outcome.code == Exit.BAD_COMMAND
    assert run.is_dir()


def test_one_that_trains_stays(run):
    lease = Lease.take(run, commits=list)
    with pytest.raises(Failure) as found:
        trash(run, "one")
    assert found.value.outcome.code == Exit.OWNED_ELSEWHERE
    assert run.is_dir()
    lease.release()
    trash(run, "one")


def test_a_link_is_not_followed(run, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(run)
    with pytest.raises(Failure) as found:
        trash(link, "link")
    assert found.value.outcome.code == Exit.SECURITY
    assert run.is_dir()
    assert list(find(tmp_path, 3)) == [run]


def test_a_folder_behind_a_link_is_not_gone_into(run, tmp_path):
    (tmp_path / "elsewhere").symlink_to(run.parent)
    with pytest.raises(Failure) as found:
        trash(tmp_path / "elsewhere" / "one", "one")
    assert found.value.outcome.code == Exit.SECURITY
    assert run.is_dir()


def test_a_run_that_could_not_be_moved_has_all_its_commits(run, monkeypatch):
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    Lease.take(run, list).release()

    def busy(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(Failure) as found:
        trash(run, "one")
    assert found.value.outcome.code == Exit.CANNOT_CREATE
    assert not fenced(takeovers(run), "step-00000010", 1)
    Lease.take(run, list).release()


HOLDER = """
import sys, time
from pathlib import Path
from drivetrain.runtime.lease import Lease
Lease.take(Path(sys.argv[1]), list)
print("holds", flush=True)
time.sleep(60)
"""


def test_a_run_that_is_only_stopped_stays(run, monkeypatch):
    monkeypatch.setattr(leases, "PATIENCE", 1.0)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"holds\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(Failure) as found:
            trash(run, "one")
        assert found.value.outcome.code == Exit.OWNED_ELSEWHERE
        assert "stopped" in found.value.outcome.cause
        assert len(takeovers(run)) == 1
    finally:
        holder.kill()
        holder.communicate()
    trash(run, "one")


def test_a_long_name_can_be_removed(run):
    long = run.rename(run.with_name("é" * 127))
    assert trash(long, long.name).is_dir()
