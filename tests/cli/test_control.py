"""`drivetrain control`, as a person uses it beside a run."""

import json
import os
import subprocess
import sys
import time

import pytest

from drivetrain.cli.main import run as command
from drivetrain.cli.watch import Newest
from drivetrain.launch.rundir import prepare
from drivetrain.ledger.ledger import read
from records import attempt, ended, parsed, step


@pytest.fixture
def running(tiny, tmp_path):
    """A run that would train for long."""
    path, run = tmp_path / "recipe.json", tmp_path / "run"
    path.write_text(
        json.dumps(tiny | {"budget": {"steps": 100_000}, "evaluate": {"every": {"steps": 50_000}, "batch": 256}})
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "train", str(path), "--run", str(run)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + 60
    while not (run / "ledger.jsonl").is_file() or b'"step"' not in (run / "ledger.jsonl").read_bytes():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    yield run, process
    process.kill()
    process.wait()


def test_a_run_does_what_it_is_told_and_says_so(running, capsys):
    run, process = running
    assert command(["control", str(run), "pause"]) == 0
    assert "pause: done after step" in capsys.readouterr().out
    assert command(["control", str(run), "set", "optimizer.lr=5e-4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verb"], told["argument"]) == ("set", "optimizer.lr=5e-4")
    assert command(["control", str(run), "set", "optimizer.lr=-3"]) == 64
    assert "optimizer.lr" in capsys.readouterr().err
    assert command(["control", str(run), "profile", "2"]) == 0
    assert command(["control", str(run), "profile", "2"]) == 64
    assert command(["control", str(run), "pin"]) == 0
    assert command(["control", str(run), "resume"]) == 0
    assert command(["control", str(run), "stop"]) == 0
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "control: set optimizer.lr=5e-4  done after step" in shown
    records = list(read(run / "ledger.jsonl"))
    paused = [record["step"] for record in records if record["kind"] == "pause"]
    pinned = [path.name for path in (run / "pins").iterdir()]
    assert pinned == [f"step-{paused[0]:08d}"]
    assert (run / "checkpoints" / pinned[0]).is_dir()
    assert any("profile of steps" in record.get("text", "") for record in records)
    assert command(["control", str(run), "save"]) == 66  # nobody trains there any more
    assert command(["control", str(run), "watch"]) == 66


def test_watch_shows_the_live_line_until_the_run_ends(running):
    run, process = running
    watching = subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "control", str(run), "watch"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(3)
    os.kill(process.pid, 15)
    shown, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "step " in shown
    assert "commit step-" in shown


class Sink:
    def __init__(self):
        self.seen = []

    def record(self, record):
        self.seen.append((record["kind"], record["time"]))

    def close(self):
        pass


def test_what_was_long_ago_is_not_shown_but_for_the_attempt_that_goes_on():
    sink = Sink()
    newest = Newest(sink, 10.0)
    kept = [
        attempt(1, at=1.0),
        step(1, at=1.0),
        ended(0, "done", 3.0),
        attempt(2, at=5.0),
        step(1, at=8.0),
        step(2, at=9.0),
    ]
    for record in parsed(kept):
        newest.record(record)
    assert sink.seen == [("attempt", 5.0), ("step", 11.0)]
    assert not newest.ended.is_set()
    newest.record(*parsed([ended(0, "done", 12.0)]))
    assert newest.ended.is_set()


def test_a_command_can_be_left_for_a_run_that_is_just_starting_and_for_no_other_folder(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    assert command(["control", str(run), "save", "--wait", "0"]) == 66
    prepare(run)  # as the supervisor does, before anything else
    assert command(["control", str(run), "save"]) == 66
    assert "nobody trains" in capsys.readouterr().err
    assert command(["control", str(run), "save", "--wait", "0"]) == 0
    assert len(list((run / "control").iterdir())) == 1
