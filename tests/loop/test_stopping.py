import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paced
from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.ledger.resume_index import score_of
from drivetrain.loop.recipe import Patience, Stop
from drivetrain.loop.stopping import PlannedStops, deadline, exhausted, seconds_of, why_exhausted
from drivetrain.run.opened import unequal_clocks
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "options", "ends"),
    [
        ([], {}, False),
        ([3, 2, 1], {}, False),
        ([1, 2, 3], {}, True),
        ([1, 2, 0.5, 3], {}, False),
        ([1, 0.95, 0.92], {"change": 0.1}, True),
        ([1, 2, 3], {"mode": "max"}, False),
        ([3, 2, 1], {"mode": "max"}, True),
        ([1, NAN, NAN], {}, True),
        ([NAN, NAN, 1], {}, False),
        ([NAN, NAN], {}, True),
    ],
)
def test_patience_ends_after_two_evaluations_without_a_better_score(scores, options, ends):
    assert exhausted(scores, Patience(metric="a/b", evaluations=2, **options)) == ends


@given(st.lists(st.floats(), max_size=20), st.integers(1, 5))
def test_n09_a_score_that_is_no_number_is_never_the_best(scores, evaluations):
    patience = Patience(metric="a/b", evaluations=evaluations)
    real = [math.inf if math.isnan(score) else score for score in scores]
    if any(not math.isnan(score) for score in scores[:1]):
        assert exhausted(scores, patience) == exhausted(real, patience)


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), ("90s", 90), ("2h30m", 9000), ("1d", 86400), ("1d2h3m4s", 93784), (0.5, 0.5)]
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


def test_the_deadline_counts_from_either_attempt_and_slurm_may_be_earlier():
    assert deadline(Stop(), 0, 100, {}) is None
    assert deadline(Stop(deadline=50), 0, 100, {}) == 150
    assert deadline(Stop(deadline=50, counted_from="first"), 0, 100, {}) == 50
    assert deadline(Stop(deadline=500, margin=30), 0, 100, {"SLURM_JOB_END_TIME": "400"}) == 370
    assert deadline(Stop(), 0, 100, {"SLURM_JOB_END_TIME": "no"}) is None


def test_scores_are_found_by_set_and_metric():
    assert score_of({"a": {"b": 2}}, "a/b") == 2
    assert score_of({"a": {"b": 2}}, "a/c") is None
    assert math.isnan(score_of({"a": {}}, "a/c"))


def test_the_cause_of_an_early_stop_tells_of_scores_that_were_no_numbers():
    patience = Patience(metric="a/b", evaluations=2)
    assert why_exhausted([1, 2, 3], patience) == "a/b has not become better in 2 evaluations"
    assert why_exhausted([NAN, 1, 3, NAN], patience).endswith("evaluations; in 1 of them it was not a number")


def exits(run):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == "exit"]


@pytest.mark.parametrize("processes", [1, 2])
def test_early_stopping_is_done_and_the_same_after_a_stop_in_between(tiny, tmp_path, processes):
    """A rate of zero: no evaluation is ever better than the first."""
    tiny["budget"], tiny["evaluate"], tiny["optimizer"]["lr"] = (
        {"steps": 40},
        {"every": {"steps": 2}, "batch": 256},
        0.0,
    )
    tiny["stop"] = {"patience": {"metric": "dogs/loss", "evaluations": 3}}
    tiny["launch"]["processes"] = processes
    assert run_under_supervisor(tiny, tmp_path / "run").code == Exit.DONE
    assert (
        "done at step 8 of 40: dogs/loss has not become better in 3 evaluations" in exits(tmp_path / "run")[-1]["cause"]
    )
    assert run_under_supervisor(tiny, tmp_path / "cut", most_steps=5).code == Exit.STOPPED
    assert run_under_supervisor(tiny, tmp_path / "cut").code == Exit.DONE
    assert exits(tmp_path / "cut")[-1]["step"] == 8
    assert trace(tmp_path / "cut") == trace(tmp_path / "run")
    assert run_under_supervisor(tiny, tmp_path / "run").code == Exit.DONE
    assert exits(tmp_path / "run")[-1]["step"] == 8


def test_megatron_d15_a_deadline_commits_and_the_run_goes_on_later(tiny, tmp_path):
    tiny["budget"], tiny["stop"] = {"steps": 100_000}, {"deadline": 1.5}
    tiny["checkpoint"]["every"] = None
    outcome = run_under_supervisor(tiny, tmp_path / "run", "launch.processes=2")
    assert outcome.code == Exit.STOPPED
    assert "the deadline at step" in outcome.cause or "a stop request" in outcome.cause
    assert outcome.where["last_committed_step"] == outcome.where["step"]
    again = run_under_supervisor(tiny, tmp_path / "run", "stop.deadline=1s", "stop.counted_from=first")
    assert again.code == Exit.STOPPED
    assert again.where["step"] - outcome.where["step"] <= 1


def test_a_run_stops_at_the_steps_that_are_listed_and_goes_on_beyond(tiny, tmp_path):
    tiny["stop"] = {"at": [4, 9, 12]}
    steps = [run_under_supervisor(tiny, tmp_path / "run").where["step"] for _ in range(3)]
    assert steps == [4, 9, 12]
    assert exits(tmp_path / "run")[-1]["code"] == Exit.DONE
    del tiny["stop"]
    run_under_supervisor(tiny, tmp_path / "whole")
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_a_rank_whose_clock_is_a_day_ahead_ends_no_run_and_is_told(tmp_path, importable, monkeypatch):
    (tmp_path / "gate").touch()
    recipe = paced.recipe(tmp_path / "gate") | {"budget": {"steps": 12}}
    recipe["task"]["kind"] = "clocks:Ahead"
    monkeypatch.setenv("RANK_AHEAD", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    outcome = run_under_supervisor(recipe, tmp_path / "run", "launch.processes=2")
    assert outcome.code == Exit.DONE, outcome
    notes = [record["text"] for record in read(tmp_path / "run" / "ledger.jsonl") if record["kind"] == "note"]
    assert any(note.startswith("the clock of rank 1 is 86") and "ahead of rank 0's" in note for note in notes), notes


def test_clocks_that_differ_by_less_than_a_minute_are_not_told():
    assert unequal_clocks([100.0]) == ""
    assert unequal_clocks([100.0, 159.0, 41.0]) == ""
    assert unequal_clocks([100.0, 101.0, 30.0]).startswith("the clock of rank 2 is 70 s behind rank 0's")


@pytest.mark.parametrize(
    "wrong", ["stop.deadline=soon", "stop.deadline=''", "stop.patience={metric: cats/loss}", "stop.at=[0]"]
)
def test_stops_that_make_no_sense_are_78(tiny, wrong):
    with pytest.raises(RecipeMistakes):
        load(tiny, [wrong])


@pytest.mark.parametrize(
    ("stops", "step", "why"),
    [
        (PlannedStops(), 5, ""),
        (PlannedStops(at=(5, 9)), 5, "step 5 is one of stop.at"),
        (PlannedStops(at=(5, 9)), 6, ""),
        (PlannedStops(begin=3, most=2), 5, "2 steps were asked for"),
        (PlannedStops(begin=4, most=2), 5, ""),
        (PlannedStops(at=(5,), begin=3, most=2), 5, "step 5 is one of stop.at"),
    ],
)
def test_a_planned_stop_says_why(stops, step, why):
    assert stops.why(step) == why
