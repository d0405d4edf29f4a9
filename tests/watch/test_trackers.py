"""Trackers: nothing lost, nothing doubled, and training never waits. The libraries' own tests run where they are."""

import json
import stat
import sys
import threading
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import drivetrain
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import LedgerFile, read
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.watch import trackers
from drivetrain.watch import wandb as wandb_sink
from drivetrain.watch.recipe import Mlflow, Trackio, Wandb, Watch
from drivetrain.watch.sinks import follow
from drivetrain.watch.trackers import Trackers, without_secrets
from records import attempt, ended, evaluation, statistics, step, training


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(trackers, "EVERY", 0.02)
    monkeypatch.setattr(trackers, "PATIENCE", 10.0)


class StandIn:
    """A tracker in memory; `fails` takes each call's name and may raise."""

    name, holds = "standin", False

    def __init__(self, fails=lambda call: None, target="there", has=0):
        self.has = has
        self.rows, self.opened, self.closed, self._fails, self.target = [], [], 0, fails, target

    def open(self, about):
        self._fails("open")
        self.opened.append(about)
        return self.has

    def send(self, rows):
        self._fails("send")
        self.rows += rows

    def close(self):
        self._fails("close")
        self.closed += 1

    @property
    def keys(self):
        return [row.key for row in self.rows]


def write(run, records):
    ledger = LedgerFile.open(run / "ledger.jsonl")
    for record in records:
        ledger.append(record)
    ledger.close()


def send(run, tracker):
    """One start of a run whose ledger is there already."""
    Trackers(run, [tracker]).close()
    return tracker


def exits(number, code=0):
    return ended(code, "all steps are made") | {"attempt": number}


FIRST = [attempt(), step(1), step(2), evaluation(2), step(3, loss=9.0)]
SECOND = [attempt(2, 2), step(3, loss=3.0), step(4, loss="nan"), evaluation(4), exits(2)]
KEYS = ["attempt-1", "step-1", "step-2", "evaluation-2", "step-3"]
MORE = ["attempt-2", "step-4", "evaluation-4", "exit-2"]


def test_a_resume_sends_what_is_new_to_the_same_run_and_no_step_made_again(tmp_path):
    write(tmp_path, FIRST)
    first = send(tmp_path, StandIn())
    assert first.keys == KEYS
    write(tmp_path, SECOND)
    second = send(tmp_path, StandIn())
    assert second.keys == MORE
    assert [row.number for row in first.rows + second.rows] == list(range(1, 10))
    assert first.opened[0].id == second.opened[0].id == next(read(tmp_path / "ledger.jsonl"))["chain"]
    assert (first.closed, second.closed) == (1, 1)
    third = send(tmp_path, StandIn())
    assert (third.rows, third.opened, third.closed) == ([], [], 0)


def test_rows_have_values_with_samples_and_tokens_as_further_axes(tmp_path):
    write(tmp_path, [*FIRST, *SECOND])
    rows = {row.key: row for row in send(tmp_path, StandIn()).rows}
    assert rows["step-2"].values == {
        "train/loss": 2.5,
        "gradient_norm/model": 1.0,
        "learning_rate/model": 0.001,
        "samples_per_second/all": 8.0,
        "tokens_per_second/all": 800.0,
        "samples": 16,
        "tokens": 1600,
    }
    assert rows["step-4"].values["tokens"] == 3200
    assert rows["evaluation-4"].values == {"dogs/bits": 1.5, "samples": 32, "tokens": 3200}
    assert rows["attempt-2"].values == {"event/attempt": 2, "event/from_step": 2, "event/processes": 2}
    assert rows["exit-2"].notes == {"exit": "0 all steps are made"}


def test_scores_of_training_samples_are_sent_once(tmp_path):
    write(tmp_path, [attempt(), step(1), training(1), attempt(2, 0), training(1), step(1), training(2)])
    rows = [row for row in send(tmp_path, StandIn()).rows if row.kind == "training"]
    assert [(row.key, row.values["training_mean/auc"]) for row in rows] == [("training-1", 0.65), ("training-2", 0.65)]


def test_statistics_are_sent_once_with_their_histograms(tmp_path):
    write(tmp_path, [attempt(), step(1), step(2), statistics(2), attempt(2, 1), step(2), statistics(2)])
    (row,) = [row for row in send(tmp_path, StandIn()).rows if row.kind == "statistics"]
    assert (row.key, row.step) == ("statistics-2", 2)
    assert row.values == {"statistics/model/weights": 2.5, "statistics/model/change": 0.1}
    assert row.histograms["histograms/model/weights"].edges == [-1.0, 1.0, 3.0]


def test_mfu_is_sent_once_for_each_step_also_by_a_sink_that_goes_on_within_an_attempt(tmp_path):
    known = {"flops": {"per_sample": 5e9, "peak": 1e11}}
    write(tmp_path, [attempt() | known, step(1)])
    first = send(tmp_path, StandIn())
    write(tmp_path, [step(2), attempt(2, 1) | {"world": 1} | known, step(2), step(3)])
    second = send(tmp_path, StandIn())
    told = [(row.step, row.values["mfu/all"]) for row in first.rows + second.rows if row.kind == "step"]
    assert told == [(1, pytest.approx(0.2)), (2, pytest.approx(0.2)), (3, pytest.approx(0.4))]


def test_the_mark_is_its_owners_and_tells_offset_and_chain(tmp_path):
    write(tmp_path, FIRST)
    send(tmp_path, StandIn())
    path = tmp_path / "trackers" / "standin.json"
    mark = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert mark["offset"] == (tmp_path / "ledger.jsonl").stat().st_size
    assert mark["chain"] == [record["chain"] for record in read(tmp_path / "ledger.jsonl")][-1]


def test_an_outage_loses_and_doubles_nothing_and_is_told_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(trackers, "LONGEST", 0.05)
    monkeypatch.setattr(trackers, "_ROWS", 3)
    calls = []

    def fails(call):
        calls.append(call)
        if len(calls) % 5 in (1, 2):
            raise ConnectionError("no way to https://me:secret@host")

    write(tmp_path, FIRST)
    tracker = StandIn(fails)
    sink = Trackers(tmp_path, [tracker])
    time.sleep(0.1)
    write(tmp_path, SECOND)
    deadline = time.monotonic() + 8
    while len(tracker.rows) < 9 and time.monotonic() < deadline:
        time.sleep(0.01)
    sink.close()
    assert tracker.keys == KEYS + MORE
    told = capfd.readouterr().err
    assert told.count("standin fails, the run goes on and it is tried again: ConnectionError: no way") >= 1
    assert "secret" not in told


def test_what_is_missing_at_the_end_is_told_and_the_next_start_sends_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(trackers, "PATIENCE", 0.3)

    def down(call):
        raise ConnectionError("down")

    write(tmp_path, FIRST)
    began = time.monotonic()
    assert send(tmp_path, StandIn(down)).rows == []
    assert time.monotonic() - began < 3
    assert "standin lacks the end of this run (ConnectionError: down, at " in capfd.readouterr().err
    assert send(tmp_path, StandIn()).keys == KEYS


def test_one_that_hangs_costs_a_bounded_wait_and_harms_no_other(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(trackers, "PATIENCE", 0.3)
    forever = threading.Event()
    write(tmp_path, FIRST)
    hanging, good = StandIn(lambda call: forever.wait()), StandIn()
    good.name = "good"
    began = time.monotonic()
    Trackers(tmp_path, [hanging, good]).close()
    assert time.monotonic() - began < 3
    assert good.keys == KEYS
    assert "standin lacks the end of this run (it takes too long)" in capfd.readouterr().err
    forever.set()


def test_what_a_library_holds_back_when_it_is_cut_off_comes_again_but_for_what_is_there(tmp_path, capfd):
    def fails(call):
        if call == "close":
            raise TimeoutError("upload")

    write(tmp_path, FIRST)
    tracker = StandIn(fails)
    tracker.holds = True
    assert send(tmp_path, tracker).keys == KEYS
    assert "standin lacks the end of this run (TimeoutError: upload, at " in capfd.readouterr().err
    again = StandIn(has=3)
    again.holds = True
    assert send(tmp_path, again).keys == KEYS[3:]
    assert send(tmp_path, StandIn()).keys == []


def test_a_ledger_that_lost_its_end_is_read_again_and_its_steps_are_not_sent_twice(tmp_path):
    write(tmp_path, FIRST)
    send(tmp_path, StandIn())
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    write(tmp_path, SECOND)
    assert send(tmp_path, StandIn()).keys == MORE


def test_another_ledger_or_another_target_begins_anew(tmp_path):
    write(tmp_path, FIRST)
    first = send(tmp_path, StandIn())
    assert send(tmp_path, StandIn(target="elsewhere")).keys == KEYS
    (tmp_path / "ledger.jsonl").unlink()
    write(tmp_path, [attempt(at=99.0), step(1)])
    other = send(tmp_path, StandIn(target="elsewhere"))
    assert other.keys == ["attempt-1", "step-1"]
    assert other.opened[0].id != first.opened[0].id


def test_a_mark_that_cannot_be_kept_doubles_nothing_in_this_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "LONGEST", 0.05)
    real, calls = trackers.write_json, []

    def full(path, value):
        calls.append(path)
        if len(calls) < 3:
            raise OSError("no space left")
        real(path, value)

    monkeypatch.setattr(trackers, "write_json", full)
    write(tmp_path, FIRST)
    assert send(tmp_path, StandIn()).keys == KEYS
    assert send(tmp_path, StandIn()).keys == []


def test_a_line_that_is_being_written_is_waited_for(tmp_path):
    write(tmp_path, FIRST)
    path = tmp_path / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert send(tmp_path, StandIn()).keys == KEYS[:-1]
    path.write_bytes(whole)
    assert send(tmp_path, StandIn()).keys == KEYS[-1:]


def test_no_ledger_is_no_error(tmp_path, capfd):
    assert send(tmp_path, StandIn()).rows == []
    assert capfd.readouterr().err == ""


def test_the_config_is_the_resolved_recipe_without_users_and_passwords(tmp_path):
    recipe = {"name": "x", "list": [{"path": "https://me:secret@host/a?b=1"}]}
    (tmp_path / "resolved.json").write_text(json.dumps({"recipe": recipe}))
    write(tmp_path, FIRST)
    about = send(tmp_path, StandIn()).opened[0]
    assert about.config == {"name": "x", "list": [{"path": "https://host/a?b=1"}]}
    assert without_secrets("s3://bucket/a@b 1") == "s3://bucket/a@b 1"


def test_training_is_the_same_with_a_tracker_that_fails_and_the_tracker_has_it_all(tiny, tmp_path, monkeypatch, capfd):
    calls = []

    def fails(call):
        calls.append(call)
        if len(calls) < 4:
            raise ConnectionError("down")

    tracker = StandIn(fails)
    monkeypatch.setattr(trackers, "LONGEST", 0.05)
    monkeypatch.setattr("drivetrain.watch.sinks._trackers", lambda settings: [tracker])
    run = drivetrain.train(tiny, run=tmp_path / "with", progress=False).run
    monkeypatch.setattr("drivetrain.watch.sinks._trackers", lambda settings: [])
    plain = drivetrain.train(tiny, run=tmp_path / "without", progress=False).run
    made, other = (steps(lineage(read(path / "ledger.jsonl"))) for path in (run, plain))
    assert [record["losses"] for record in made] == [record["losses"] for record in other]
    sent = {row.step: row.values["train/loss"] for row in tracker.rows if row.kind == "step"}
    assert sent == {record["step"]: record["losses"]["loss"] for record in made}
    assert sorted(tracker.keys) == sorted(set(tracker.keys))
    assert tracker.keys[-1] == "exit-1"
    assert tracker.opened[-1].config["budget"] == {"steps": 12}


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_without_the_package_the_recipe_is_refused_before_training(name, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    given = {"mlflow": "{experiment: x}"}.get(name, "{project: x}")
    with pytest.raises(Failure) as caught:
        drivetrain.train(tiny, [f"watch.{name}={given}"], run=tmp_path / "run", progress=False)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert f"pip install 'drivetrain[{name}]'" in caught.value.outcome.hint
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "nolibrary").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Failure):
        trackers.require("nolibrary")


def test_a_password_in_a_recipe_is_refused_and_not_repeated(tiny):
    with pytest.raises(RecipeMistakes) as caught:
        load(tiny | {"watch": {"mlflow": {"uri": "https://me:secret@host"}}})
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert "secret" not in str(caught.value)


def test_wandb_asks_for_a_project(tiny):
    with pytest.raises(RecipeMistakes, match="'project' is missing"):
        load(tiny | {"watch": {"wandb": {"mode": "offline"}}})


class WandbStandIn(types.ModuleType):
    """A stand-in for the wandb library that records calls; it cannot be reached at first."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None, origin="stand-in")
        self.starting_step = 0
        self.begun, self.logged, self.finished, self.summary, self.axes = [], [], 0, {}, []

    def Settings(self, **settings):
        return settings

    def login(self, prompt):
        return not prompt

    def init(self, **given):
        self.begun.append(given)
        if len(self.begun) < 3:
            raise ConnectionError("cannot be reached")
        return self

    def define_metric(self, name, step_metric):
        self.axes.append((name, step_metric))

    def log(self, values, step, commit):
        if step == 3 and len(self.begun) < 4:
            raise BrokenPipeError("its process is gone")
        if not self.logged or step > self.logged[-1][0]:  # as the library does: a step that it has is dropped
            self.logged.append((step, values["step"], values.get("train/loss")))

    def finish(self):
        self.finished += 1


def test_wandb_begins_once_it_can_be_reached_and_again_where_its_process_dies(tmp_path, monkeypatch):
    library = WandbStandIn()
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setattr(trackers, "LONGEST", 0.05)
    write(tmp_path, FIRST)
    follow(tmp_path, Watch(wandb=Wandb(project="p", entity="e")), None, 0.0).close()
    assert library.logged == [(1, 0, None), (2, 1, 2.5), (3, 2, 2.5), (4, 2, None), (5, 3, 9.0)]
    assert library.axes[-1] == ("*", "step")
    assert library.summary == {"attempts": "1", "exit": "not yet"}
    ids = {given["id"] for given in library.begun}
    assert ids == {next(read(tmp_path / "ledger.jsonl"))["chain"]}
    last = library.begun[-1]
    assert (last["project"], last["entity"], last["mode"], last["resume"]) == ("p", "e", "online", "allow")
    assert library.finished == 2  # the run whose process died, and the last one


# What follows needs the libraries; each is used as it is, without a network.


def replayed_in_two_attempts(run, settings):
    """A run that is cut off after step 3, goes on from step 2, and is started once more after its end."""
    (run / "resolved.json").write_text(
        json.dumps({"recipe": {"name": "x", "batch": {"size": 8}, "groups": [{"lr": 1}]}})
    )
    write(run, FIRST)
    follow(run, settings, None, 0.0).close()
    write(run, SECOND)
    follow(run, settings, None, 0.0).close()
    follow(run, settings, None, 0.0).close()


def test_mlflow_has_every_point_once(tmp_path, capfd):
    tracking = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path}/m.db"
    replayed_in_two_attempts(tmp_path, Watch(mlflow=Mlflow(uri=uri, experiment="e")))
    client = tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("e").experiment_id
    (run,) = client.search_runs([experiment])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history][:3] == [(1, 2.5), (2, 2.5), (3, 9.0)]
    assert [point.step for point in history] == [1, 2, 3, 4]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "dogs/bits")] == [2, 4]
    assert [point.value for point in client.get_metric_history(run.info.run_id, "tokens")][:3] == [800, 1600, 2400]
    assert run.data.params == {"name": "x", "batch.size": "8", "groups.0.lr": "1"}
    assert run.data.tags["drivetrain.attempts"] == "2"
    assert run.data.tags["drivetrain.exit"] == "0 all steps are made"
    assert run.info.status == "FINISHED"
    (tmp_path / "trackers" / "mlflow.json").unlink()  # all is sent again: the same points
    follow(tmp_path, Watch(mlflow=Mlflow(uri=uri, experiment="e")), None, 0.0).close()
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 4
    assert "fails" not in capfd.readouterr().err


def test_trackio_has_every_point_once(tmp_path, monkeypatch, capfd):
    trackio = pytest.importorskip("trackio")
    storage = pytest.importorskip("trackio.sqlite_storage")
    monkeypatch.setattr(storage, "TRACKIO_DIR", tmp_path / "tio")
    settings = Watch(trackio=Trackio(project="p"))
    replayed_in_two_attempts(tmp_path, settings)
    (tmp_path / "trackers" / "trackio.json").unlink()  # all is sent again: the same points
    follow(tmp_path, settings, None, 0.0).close()
    assert "fails" not in capfd.readouterr().err
    (run,) = trackio.Api().runs("p")
    assert run.name == tmp_path.name
    found = storage.SQLiteStorage.get_logs("p", run.name)
    assert [(row["step"], row["train/loss"]) for row in found if "train/loss" in row][:3] == [
        (1, 2.5),
        (2, 2.5),
        (3, 9.0),
    ]
    assert [row["step"] for row in found if "train/loss" in row] == [1, 2, 3, 4]
    assert [row["step"] for row in found if "dogs/bits" in row] == [2, 4]
    assert storage.SQLiteStorage.get_run_config("p", run.name)["batch"] == {"size": 8}


def journal(path: Path):
    """The history rows of a wandb journal."""
    from wandb.proto.wandb_internal_pb2 import Record

    records = [Record.FromString(content) for content in wandb_sink._records(path.read_bytes())]
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def test_wandb_has_every_point_once(tmp_path, capfd):
    pytest.importorskip("wandb")
    replayed_in_two_attempts(tmp_path, Watch(wandb=Wandb(project="p", mode="offline")))
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 2  # one for each attempt that had something to send
    assert len({path.name for path in files}) == 1  # of the same run
    rows = [row for path in files for row in journal(path)]
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row][:3] == [
        (1, 2.5),
        (2, 2.5),
        (3, 9.0),
    ]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
    assert [(row["step"], row["tokens"]) for row in rows if "dogs/bits" in row] == [(2, 1600), (4, 3200)]
    assert [row["_step"] for row in rows] == list(range(1, 10))
    assert [row["_timestamp"] for row in rows if "train/loss" in row][:2] == [12.0, 13.0]
    assert "fails" not in capfd.readouterr().err


def test_wandb_without_a_key_does_not_ask_and_costs_nothing(tmp_path, monkeypatch, capfd):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(trackers, "PATIENCE", 2.0)
    write(tmp_path, FIRST)
    follow(tmp_path, Watch(wandb=Wandb(project="p")), None, 0.0).close()
    assert "wandb lacks the end of this run (RuntimeError: no key is set" in capfd.readouterr().err
