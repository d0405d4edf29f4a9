"""A run whose disk fills up, is slow, or goes away (S01, S11, S16), with real file systems in memory."""

import os
import shutil
import subprocess
import threading
import time

import pytest

from conftest import trace
from drills.fault import Fault
from drills.runs import drill, leftovers, reference
from drivetrain.checkpoint.commits import newest
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from records import of_kind

pytestmark = [pytest.mark.xdist_group("drills"), pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_s01_a_full_disk_leaves_the_run_alive_and_the_commits_before_whole(tiny, tmp_path, small_disk):
    tiny["budget"], tiny["checkpoint"]["every"] = {"steps": 200}, {"steps": 20}
    run = small_disk / "run"

    def free():
        while not (run / "ledger.jsonl").exists() or not of_kind(run, "miss"):
            time.sleep(0.01)
        (run / "filler").unlink()

    thread = threading.Thread(target=free)
    thread.start()
    found = drill(tiny, run, Fault("fill", 0, "forward", 31))
    thread.join()
    assert found.outcome.code == Exit.DONE
    assert found.starts == 1
    misses = of_kind(run, "miss")
    assert 1 <= len(misses) <= 3
    assert misses[0]["step"] == 40
    assert "MB are needed" in misses[0]["cause"] or "No space left" in misses[0]["cause"]
    assert leftovers(run) == []
    assert found.trace == reference(tiny, tmp_path / "reference")


def test_s01_a_disk_that_stays_full_ends_the_run_with_74_after_three_misses(tiny, small_disk):
    tiny["budget"], tiny["checkpoint"]["every"] = {"steps": 120}, {"steps": 20}
    run = small_disk / "run"
    found = drill(tiny, run, Fault("fill", 0, "forward", 31), "launch.processes=2")
    assert found.outcome.code == Exit.STORAGE
    assert found.starts == 1
    assert [record["step"] for record in of_kind(run, "miss")] == [40, 60, 80]
    (run / "filler").unlink()
    assert newest(run).step == 20
    assert drill(tiny, run, None, "launch.processes=2").outcome.code == Exit.DONE


def test_s01_a_disk_that_is_full_at_the_end_is_74_and_not_done(tiny, small_disk):
    found = drill(tiny, small_disk / "run", Fault("fill", 0, "forward", 12), "launch.processes=2")
    assert found.outcome.code == Exit.STORAGE


def test_s16_a_run_directory_that_is_removed_ends_the_run_with_74(tiny, tmp_path):
    tiny["budget"], tiny["checkpoint"]["every"] = {"steps": 100_000}, {"steps": 10}
    run = tmp_path / "run"

    def remove():
        while not (run / "checkpoints" / "step-00000020").exists():
            time.sleep(0.01)
        os.rename(run, tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    found = drill(tiny, run, None)
    thread.join()
    assert found.outcome.code == Exit.STORAGE


def test_s16_a_ledger_that_is_removed_ends_the_run_with_74_at_the_next_commit(tiny, tmp_path):
    tiny["budget"], tiny["checkpoint"]["every"] = {"steps": 100_000}, {"steps": 10}
    run = tmp_path / "run"

    def remove():
        while not (run / "checkpoints" / "step-00000020").exists():
            time.sleep(0.01)
        (run / "ledger.jsonl").unlink()

    thread = threading.Thread(target=remove)
    thread.start()
    found = drill(tiny, run, None)
    thread.join()
    assert found.outcome.code == Exit.STORAGE
    assert "ledger.jsonl was removed or replaced while the run wrote it" in found.outcome.cause
    assert "--override ledger" in found.outcome.hint
    assert not (run / "ledger.jsonl").exists()


def test_s11_a_slow_disk_does_not_hold_training_up_and_back_pressure_is_told(tiny, tmp_path):
    """Each commit takes longer than the steps to the next one: training waits for the one before, and says so."""
    tiny["budget"], tiny["checkpoint"]["every"] = {"steps": 50}, {"steps": 10}
    found = drill(tiny, tmp_path / "run", Fault("slow", 0, "write", 10, always=True))
    assert found.outcome.code == Exit.DONE
    commits = of_kind(tmp_path / "run", "commit")
    assert commits[0]["writing"] > 1
    assert commits[0]["seconds"] < 0.5
    assert commits[1]["waited"] > 0.3
    steps = [record["step"] for record in read(tmp_path / "run" / "ledger.jsonl") if record["kind"] == "step"]
    assert steps == list(range(1, 51))
    assert trace(tmp_path / "run") == reference(tiny, tmp_path / "reference")
