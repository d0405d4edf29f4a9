import math
import stat
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import drivetrain
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.spec.exits import Exit, Failure
from drivetrain.watch.recipe import Watch
from drivetrain.watch.sinks import follow
from drivetrain.watch.tensorboard import TensorBoardSink
from records import attempt, evaluation, parsed, rollback, statistics, step, training


def events(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def points(folder):
    found = events(folder)
    return {tag: [(e.step, round(e.value, 4)) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def replay(folder, records):
    sink = TensorBoardSink(folder)
    for record in parsed(records):
        sink.record(record)
    sink.close()


def test_each_point_is_there_once_after_a_resume_and_after_a_second_replay(tmp_path):
    records = [attempt(), step(1, loss=5.0), step(2, loss=4.0), step(3, loss=9.0)]
    records += [attempt(2, 2), step(3, loss=3.0), evaluation(3)]
    for _ in range(2):
        replay(tmp_path / "tb", records)
    found = points(tmp_path / "tb")
    assert found["train/loss"] == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert found["dogs/bits"] == [(3, 1.5)]
    assert found["tokens_per_second/all"][0] == (1, 800.0)


def test_mfu_is_a_point_where_the_peak_is_known_and_a_skipped_step_trains_nothing(tmp_path):
    known = {"flops": {"per_sample": 5e9, "peak": 1e11}}
    records = [
        attempt() | known,
        step(1),
        step(2),
        attempt(2, 1) | known | {"world": 1},
        step(2),
        step(3, skipped={"model": "spike"}),
    ]
    replay(tmp_path / "tb", records)
    found = points(tmp_path / "tb")
    assert found["mfu/all"] == [(1, 0.2), (2, 0.4), (3, 0.0)]
    assert found["tokens_per_second/all"] == [(1, 800.0), (2, 800.0), (3, 0.0)]


def test_values_that_are_not_finite_are_points_too(tmp_path):
    replay(tmp_path / "tb", [attempt(), step(1, loss="nan"), step(2, loss="inf")])
    first, second = events(tmp_path / "tb").Scalars("train/loss")
    assert math.isnan(first.value)
    assert second.value == math.inf


def test_texts_are_shown_even_where_no_encoding_has_their_characters(tmp_path):
    text = {"sample": "a\n\ud800b"}
    replay(tmp_path / "tb", [attempt(), {"kind": "show", "time": 2.0, "step": 1, "text": text, "files": {}}])
    (event,) = events(tmp_path / "tb").Tensors("gallery/sample")
    assert event.tensor_proto.string_val[0] == b"    a\n    ?b"


def test_x17_the_folder_is_its_owners_and_old_files_are_gone(tmp_path):
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "old").write_text("")
    replay(tmp_path / "tb", [attempt()])
    assert stat.S_IMODE((tmp_path / "tb").stat().st_mode) == 0o700
    assert not (tmp_path / "tb" / "old").exists()


def test_a_link_in_its_place_costs_the_sink_not_the_run(tmp_path, capfd):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "elsewhere")
    ledger = LedgerFile.open(tmp_path / "ledger.jsonl")
    ledger.append(attempt())
    follow(tmp_path, Watch(tensorboard=True), None, 0.0).close()
    assert "TensorBoardSink is dropped, the run goes on" in capfd.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_the_package_the_recipe_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(Failure) as caught:
        TensorBoardSink(tmp_path / "tb")
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_a_whole_run_is_in_its_files_and_on_the_console(tiny, tmp_path, capsys):
    run = drivetrain.train(tiny, ["watch.tensorboard=true"], run=tmp_path / "run").run
    assert [at for at, _ in points(run / "tensorboard")["train/loss"]] == list(range(1, 13))
    told = capsys.readouterr().out
    for words in ("step 12/12  loss", "evaluation at step 12  dogs", "commit step-00000012", "done in 0:"):
        assert words in told


def test_what_was_undone_is_shown_once_and_as_it_was_made_again(tmp_path):
    replay(tmp_path / "tb", [attempt(), step(1), step(2, loss=9.0), rollback(2, 1), step(2, loss=3.0)])
    found = points(tmp_path / "tb")
    assert found["train/loss"] == [(1, 2.5), (2, 3.0)]


def test_scores_of_training_samples_are_points(tmp_path):
    replay(tmp_path / "tb", [attempt(), step(1), training(1), step(2)])
    found = points(tmp_path / "tb")
    assert found["training/auc"] == [(1, pytest.approx(0.7))]
    assert found["training_mean/auc"] == [(1, pytest.approx(0.65))]


def test_statistics_are_points_and_histograms(tmp_path):
    replay(tmp_path / "tb", [attempt(), step(1), step(2), statistics(2)])
    found = points(tmp_path / "tb")
    assert found["statistics/model/weights"] == [(2, 2.5)]
    assert found["statistics/model/change"] == [(2, pytest.approx(0.1))]
    (event,) = events(tmp_path / "tb").Tensors("histograms/model/weights")
    assert list(event.tensor_proto.double_val) == [-1.0, 1.0, 5.0, 1.0, 3.0, 7.0]
    assert [dim.size for dim in event.tensor_proto.tensor_shape.dim] == [2, 3]
