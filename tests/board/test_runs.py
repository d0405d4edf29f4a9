"""The runs of a board: found, followed, told apart, and never held up by one that is broken."""

import json
import os
import shutil

import pytest

from boards import RECIPE, append, made_run
from drivetrain.board.row import row
from drivetrain.board.runs import Runs, find, run_id
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.runtime.lease import Lease
from records import attempt, commit, ended, step

COMMAND = {"kind": "command", "time": 12.0, "attempt": 1, "step": 1, "settings": "s", "id": "1", "argument": ""}
PAUSED = COMMAND | {"verb": "pause"}
STARTED = [attempt(), step(1)]


@pytest.fixture
def folder(tmp_path):
    """A folder of runs."""
    return tmp_path / "runs"


def looked(runs):
    """Everything read that there is; returns the ids of runs that changed."""
    changed, more = runs.scan(), True
    while more:
        followed, more = runs.poll()
        changed |= followed
    return changed


def told(folder, name="one"):
    """The line of one run, as a board that starts now has it."""
    runs = Runs([folder], None)
    looked(runs)
    return row(runs.all[run_id(folder / name)])


@pytest.mark.parametrize(
    ("records", "state", "code", "cause"),
    [
        ([], "cut off", None, "it has not begun to train"),
        (STARTED, "cut off", None, "cut off"),
        ([*STARTED, ended(0, "all steps are made")], "done", 0, "all steps are made"),
        ([*STARTED, ended(75, "control stop")], "stopped", 75, "control stop"),
        ([*STARTED, ended(82, "loss nan")], "failed", 82, "loss nan"),
        ([*STARTED, ended(70, "crash loop: 3 restarts")], "crash loop", 70, "crash loop: 3 restarts"),
        ([*STARTED, ended(84, "a hang"), attempt(2, 1, at=99.0)], "cut off", None, "cut off"),
    ],
)
def test_a_run_that_nobody_trains_has_the_state_in_which_it_ended(folder, records, state, code, cause):
    made_run(folder / "one", records)
    line = told(folder)
    assert (line["state"], line["code"], line["cause"]) == (state, code, cause)
    assert line["left"] is None


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], "starts"),
        (STARTED, "trains"),
        ([*STARTED, PAUSED], "paused"),
        ([*STARTED, PAUSED, COMMAND | {"verb": "resume"}], "trains"),
        ([*STARTED, ended(84, "a hang")], "trains"),
    ],
)
def test_a_run_that_somebody_holds_is_at_work(folder, records, state):
    run = made_run(folder / "one", records)
    lease = Lease.take(run, commits=list)
    assert told(folder)["state"] == state
    lease.release()
    assert told(folder)["state"] not in ("starts", "trains", "paused")


def test_what_the_supervisor_knows_of_the_end_is_told_where_the_ledger_has_only_a_loss(folder):
    run = made_run(folder / "one", [*STARTED, ended(69, "a peer was lost")])
    outcome = {"code": 70, "class": "out of memory", "cause": "out of memory", "hint": "", "where": {}}
    (run / "exit.json").write_text(json.dumps(outcome))
    assert (told(folder)["state"], told(folder)["cause"]) == ("failed", "out of memory")


def test_a_line_follows_when_only_the_end_is_known_later(folder):
    run = made_run(folder / "one", [*STARTED, ended(69, "a peer was lost")])
    runs = Runs([folder], None)
    looked(runs)
    assert row(runs.all[run_id(run)])["code"] == 69
    (run / "exit.json").write_text(json.dumps({"code": 70, "class": "x", "cause": "later", "hint": "", "where": {}}))
    assert row(runs.all[run_id(run)])["cause"] == "later"


def test_a_torn_record_is_no_damage_and_waits_for_its_end(folder):
    run = made_run(folder / "one", STARTED)
    with (run / "ledger.jsonl").open("ab") as file:
        file.write(b'{"kind":"step","time":13')
    runs = Runs([folder], None)
    looked(runs)
    line = row(runs.all[run_id(run)])
    assert (line["records"], line["state"]) == (2, "cut off")
    # It is not read again and again.
    assert runs.poll() == (set(), False)


def test_a_damaged_ledger_is_said_and_holds_up_no_other(folder):
    made_run(folder / "sound", [*STARTED, ended(0, "all")])
    run = made_run(folder / "one", [attempt(), *(step(at) for at in range(1, 9)), commit(8, at=60.0)])
    whole = (run / "ledger.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    lines[5] = lines[5].replace(b'"seconds":0.9', b'"seconds":0.8')
    (run / "ledger.jsonl").write_bytes(b"".join(lines))
    line = told(folder)
    assert (line["state"], line["code"], line["step"]) == ("damaged", 74, 4)
    assert "record 6" in line["cause"] or "line 6" in line["cause"]
    assert told(folder, "sound")["state"] == "done"


def test_a_ledger_that_is_replaced_is_read_anew(folder):
    run = made_run(folder / "one", [attempt(), *(step(at, loss=9.0) for at in range(1, 9))])
    runs = Runs([folder], None)
    looked(runs)
    (run / "ledger.jsonl").unlink()
    append(run, [attempt(), step(1, loss=1.0)])
    assert looked(runs) == {run_id(run)}
    line = row(runs.all[run_id(run)])
    assert (line["step"], line["records"], line["losses"]) == (1, 2, {"loss": 1.0})


def test_a_run_that_begins_appears_and_one_that_goes_is_told_of_once(folder):
    made_run(folder / "one", STARTED)
    runs = Runs([folder], None)
    looked(runs)
    assert looked(runs) == set()
    new = made_run(folder / "deep" / "er" / "new", STARTED)
    assert looked(runs) == {run_id(new)}
    kept = runs.all[run_id(new)]
    shutil.rmtree(new)
    assert looked(runs) == {run_id(new)}
    assert list(runs.all) == [run_id(folder / "one")]
    assert row(kept)["state"] == "gone"
    assert looked(runs) == set()


def test_a_directory_that_goes_between_two_looks_leaves_the_list_as_it_is(folder):
    run = made_run(folder / "one", STARTED)
    runs = Runs([folder], None)
    looked(runs)
    shutil.rmtree(run)
    line = row(runs.all[run_id(run)])
    assert (line["step"], line["attempts"]) == (1, 1)


def test_a_directory_that_becomes_a_file_and_one_that_cannot_be_read_hold_up_no_other(folder, monkeypatch):
    one, two = made_run(folder / "one", STARTED), made_run(folder / "two", STARTED)
    runs = Runs([folder], None)
    looked(runs)
    shutil.rmtree(one)
    one.write_text("no folder")
    append(two, [step(2)])
    assert run_id(two) in runs.poll()[0]
    assert "cannot be read" in row(runs.all[run_id(one)])["cause"]
    real = os.stat

    def stat(path, **options):
        if str(path).startswith(str(two)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        runs.poll()
        assert row(runs.all[run_id(two)])["cause"] == "the ledger cannot be read: Permission denied"
        assert list(find(folder)) == []
    looked(runs)
    assert row(runs.all[run_id(two)])["cause"] == "cut off"


def test_a_ledger_that_is_cut_between_two_looks_leaves_a_line(folder):
    run = made_run(folder / "one", [attempt(), *(step(at) for at in range(1, 9)), commit(8, at=60.0)])
    runs = Runs([folder], None)
    looked(runs)
    os.truncate(run / "ledger.jsonl", 2500)
    assert row(runs.all[run_id(run)])["step"] == 8
    looked(runs)
    assert row(runs.all[run_id(run)])["step"] < 8


def test_a_rate_is_of_the_time_that_steps_took_and_no_mean_of_rates(folder):
    steps = [step(at, seconds=9.9 if at % 10 == 0 else 0.9) for at in range(1, 101)]
    made_run(folder / "one", [attempt(steps=100), *steps])
    rates = told(folder)["rates"]
    assert rates == {"samples": pytest.approx(800 / 190), "tokens": pytest.approx(80_000 / 190)}


def test_two_hundred_runs_take_no_descriptor_each(folder):
    for number in range(200):
        made_run(folder / f"run-{number:03d}", STARTED)
    before = len(os.listdir("/proc/self/fd"))
    runs = Runs([folder], None)
    looked(runs)
    assert len(runs.all) == 200
    assert len(os.listdir("/proc/self/fd")) == before


def test_hidden_folders_links_and_what_lies_deeper_than_three_are_passed_over(folder):
    made_run(folder / "a" / "b" / "c", STARTED)
    made_run(folder / "a" / "b" / "d" / "e", STARTED)
    made_run(folder / ".trash" / "one", STARTED)
    made_run(folder / "one" / "checkpoints" / "inner", STARTED)
    made_run(folder / "one", STARTED)
    (folder / "link").symlink_to(folder / "one")
    assert sorted(path.relative_to(folder).as_posix() for path in find(folder)) == ["a/b/c", "one"]


def test_only_ledgers_that_have_grown_are_read_and_the_one_somebody_looks_at_is_first(folder):
    one, two = (made_run(folder / name, STARTED) for name in ("one", "two"))
    runs = Runs([folder], None)
    looked(runs)
    followed = []
    for run in runs.all.values():
        run.index.follow = lambda run=run, real=run.index.follow: followed.append(run.folder.name) or real()
    assert runs.poll() == (set(), False)
    append(one, [step(2)])
    assert runs.poll()[0] == {run_id(one)}
    assert followed == ["one"]
    append(one, [step(3)])
    append(two, [step(2)])
    runs.wanted = run_id(two)
    runs.poll()
    assert followed == ["one", "two", "one"]


def test_reading_changes_nothing_in_a_run_and_waits_for_no_writer(folder):
    run = made_run(folder / "one", STARTED)
    lease, writer = Lease.take(run, commits=list), LedgerFile.open(run / "ledger.jsonl")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*.json*")}
    line = told(folder)
    after = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*.json*")}
    writer.close()
    lease.release()
    assert (line["step"], line["state"]) == (1, "trains")
    assert after == before


def test_a_recipe_that_is_half_written_holds_nothing_up(folder):
    run = made_run(folder / "one", STARTED)
    (run / "resolved.json").write_text('{"recipe": {"name"')
    line = told(folder)
    assert line["step"] == 1
    (run / "resolved.json").write_text(json.dumps({"recipe": RECIPE, "origins": {}}))
    assert told(folder)["mesh"] == {"shard": 2}
