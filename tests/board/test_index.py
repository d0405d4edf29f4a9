"""The index of a ledger says what the ledger says, at any zoom, however it grew."""

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.board.index import ChangedError, Index
from drivetrain.board.lookup import last, newest, seconds, series, step_at
from drivetrain.board.steps import AXES, SECONDS, STEP, TIME, TOKENS
from drivetrain.board.zoom import Window
from drivetrain.ledger.derive import lineage, scores
from drivetrain.ledger.derive import steps as steps_of
from drivetrain.ledger.ledger import LedgerFile, read
from drivetrain.ledger.run_summary import summary_of
from records import attempt, commit, evaluation, rollback, step


def index_of(run):
    found = Index(run / "ledger.jsonl")
    found.follow_all()
    return found


def write(run, told):
    ledger = LedgerFile.open(run / "ledger.jsonl")
    for record in told:
        ledger.append(record)
    ledger.close()


@st.composite
def histories(draw):
    """Attempts and rollbacks that go back to any step, with evaluations, commits and telemetry between steps."""
    made, at, number = [], 0, 0
    for _ in range(draw(st.integers(1, 5))):
        to = draw(st.integers(0, at))
        if made and at and draw(st.booleans()):
            made.append(rollback(at, to, attempt=number))
        else:
            number += 1
            made.append(attempt(number, to, at=100.0 * number))
        at = to
        for _ in range(draw(st.integers(0, 40))):
            at += 1
            value = draw(st.floats(-5, 5) | st.sampled_from(["nan", "inf"]))
            made.append(step(at, at=100.0 * number, loss=value, seconds=0.5 + at % 3, attempt=number))
            if at % 7 == 0:
                made.append(evaluation(at, value=float(at)))
            if at % 11 == 0:
                made.append(commit(at, at=100.0 * number))
    return made


@settings(max_examples=60, deadline=None)
@given(histories(), st.lists(st.floats(0, 1), max_size=12))
def test_what_counts_is_the_lineage_and_seconds_are_those_of_the_report(tmp_path_factory, made, looks):
    run = tmp_path_factory.mktemp("run")
    write(run, made)
    found = Index(run / "ledger.jsonl")
    grown = Index(run / "ledger.jsonl")
    found.follow_all()
    # The same from a file that is looked at while it grows, at any byte.
    whole = (run / "ledger.jsonl").read_bytes()
    for share in [*sorted(looks), 1]:
        (run / "ledger.jsonl").write_bytes(whole[: round(share * len(whole))])
        grown.follow_all()
    for index in (found, grown):
        assert not index.damage
        assert index.records == len(made)
        history = steps_of(lineage(read(run / "ledger.jsonl")))
        told = index.curves(["train/loss"], Window(STEP))["train/loss"] if "train/loss" in series(index) else None
        live = [one for one in history if math.isfinite(one.losses["loss"])]
        if told is not None:
            counts = told.flags & 1 == 0
            assert told.x[counts].tolist() == [one.step for one in live]
            assert told.mean[counts] == pytest.approx([one.losses["loss"] for one in live], rel=1e-6)
        if history:
            assert last(index, "train/loss") == pytest.approx(history[-1].losses["loss"], nan_ok=True)
        summary = summary_of(run)
        assert seconds(index) == pytest.approx(summary.seconds, abs=1e-6)
        assert index.groups.position[1] == pytest.approx(sum(summary.steps.seconds) + sum(summary.steps.wait))
        scored = scores(summary.records).get(("dogs", "bits"), [])
        if "dogs/bits" in series(index):
            points = index.curves(["dogs/bits"], Window(STEP))["dogs/bits"]
            assert points.x[points.flags & 1 == 0].tolist() == [at for at, _ in scored]


@pytest.fixture
def long(tmp_path):
    """50,000 steps with spikes of one step."""
    rng = np.random.default_rng(0)
    ledger = LedgerFile.open(tmp_path / "ledger.jsonl")
    ledger.append(attempt())
    losses = 2 + rng.normal(0, 0.01, 50_000)
    losses[[77, 12_345, 12_346, 49_999]] = [9, 8, -7, 11]
    rows = []
    for at, loss in enumerate(losses, 1):
        rows.append(
            {
                "time": 1e9 + at,
                "step": at,
                "start": 16 * at - 16,
                "stop": 16 * at,
                "samples": at,
                "losses": {"loss": loss},
                "counts": {"samples": 16, "tokens": 100},
                "norm": {"model": 1.0},
                "lr": {"model": 0.1},
                "seconds": 0.5,
                "wait": 0.1,
            }
        )
    ledger.append_steps(1, rows)
    ledger.close()
    return tmp_path, losses


@pytest.mark.parametrize("axis", range(len(AXES)))
def test_every_extreme_is_in_every_zoom(long, axis):
    run, losses = long
    index = index_of(run)
    whole = index.curves(["train/loss"], Window(axis))["train/loss"]
    assert whole.high.max() == 11
    assert sorted(whole.high)[-3:] == [8, 9, 11]
    assert whole.low.min() == -7
    assert len(whole.x) <= 1000
    assert whole.mean.mean() == pytest.approx(losses.mean(), abs=1e-3)
    # Ever deeper around the spikes, down to single steps.
    unit = {STEP: 1, TOKENS: 100, SECONDS: 0.6, TIME: 1}.get(axis, 16)
    base = 1e9 if axis == TIME else 0
    for wide in (12_000, 9_000, 7_000, 1_500, 300, 5):
        lo, hi = base + (12_345 - wide) * unit, base + (12_346 + wide) * unit
        told = index.curves(["train/loss"], Window(axis, lo, hi, 1000))["train/loss"]
        assert told.high.max() == 8
        assert told.low.min() == -7
        assert len(told.x) <= 1002
    assert told.exact
    assert told.mean[np.argmin(abs(told.x - base - 12_346 * unit))] == 8


def test_a_zoom_beyond_the_data_and_a_single_place_have_few_points(long):
    index = index_of(long[0])
    assert len(index.curves(["train/loss"], Window(STEP, 1e9, 2e9))["train/loss"].x) == 0
    assert 1 <= len(index.curves(["train/loss"], Window(STEP, 500, 500))["train/loss"].x) <= 3 * 16


def test_a_torn_tail_waits_for_its_end(tmp_path):
    write(tmp_path, [attempt(), *(step(at) for at in range(1, 30))])
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(whole[:-100])
    index = index_of(tmp_path)
    assert (index.records, index.damage) == (29, "")
    (tmp_path / "ledger.jsonl").write_bytes(whole)
    index.follow_all()
    assert index.records == 30
    assert index.groups.newest[STEP] == 29


def test_a_ledger_that_was_cut_back_and_written_anew_is_read_anew(tmp_path):
    write(tmp_path, [attempt(), *(step(at, loss=5.0) for at in range(1, 50))])
    index = index_of(tmp_path)
    os.unlink(tmp_path / "ledger.jsonl")
    write(tmp_path, [attempt(), *(step(at, loss=1.0) for at in range(1, 80))])
    index.follow_all()
    assert index.curves(["train/loss"], Window(STEP))["train/loss"].high.max() == 1
    assert index.records == 80


def test_a_copy_in_its_place_with_the_same_records_is_read_on(tmp_path):
    write(tmp_path, [attempt(), step(1)])
    index = index_of(tmp_path)
    copy = LedgerFile.open(tmp_path / "ledger.jsonl", anew=True)
    copy.append(step(2))
    copy.close()
    groups = index.groups
    index.follow_all()
    assert index.groups is groups
    assert index.groups.newest[STEP] == 2


def test_a_changed_record_is_damage_that_is_named_and_what_came_before_is_shown(tmp_path):
    write(tmp_path, [attempt(), *(step(at) for at in range(1, 30))])
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b'"seconds":0.9', b'"seconds":9.5')
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines))
    index = index_of(tmp_path)
    assert "record 21 does not follow" in index.damage
    assert index.records == 20


def test_a_record_of_another_form_is_damage_and_no_crash(tmp_path):
    ledger = LedgerFile.open(tmp_path / "ledger.jsonl")
    ledger.append(attempt())
    ledger.append({"kind": "step", "time": 1.0, "step": 1})
    ledger.close()
    index = index_of(tmp_path)
    assert "another form" in index.damage
    assert index.records == 1


OTHER_FORMS = [
    step(25, losses=5),
    step(25, losses={"loss": [1.0]}),
    step(25, losses={"loss": 10**400}),
    step(25, seconds="x"),
    step(25, counts=None),
    step(25, skipped=5),
    evaluation(25) | {"metrics": {"dogs": {"bits": 10**400}}},
    evaluation(25) | {"kind": "skip"},
    attempt(2, 24, at=90.0) | {"started": 10**400},
    {"time": 1.0, "kind": "step"},
]


@pytest.mark.parametrize("wrong", OTHER_FORMS)
def test_of_a_block_with_a_record_of_another_form_all_before_it_is_shown_and_it_is_named(tmp_path, wrong):
    write(tmp_path, [attempt(), *(step(at) for at in range(1, 25)), evaluation(24), wrong, step(26)])
    index = index_of(tmp_path)
    assert "record 27 has another form" in index.damage
    assert index.records == 26
    # What is looked at again, since more came, is not taken twice.
    write(tmp_path, [step(27)])
    index.follow_all()
    assert index.groups.newest[STEP] == 24
    assert index.groups.position == (24 * 800, pytest.approx(24.0))
    assert len(index.curves(["train/loss"], Window(STEP))["train/loss"].x) == 24
    assert len(index.curves(["dogs/bits"], Window(STEP))["dogs/bits"].x) == 1


@pytest.mark.parametrize("size", [0, 3000])
def test_a_ledger_that_was_changed_where_it_was_read_is_said_to_be(tmp_path, size):
    write(tmp_path, [attempt(), *(step(at) for at in range(1, 25)), commit(24, at=60.0)])
    index = index_of(tmp_path)
    place = next(index.others.offsets(["commit"]))
    os.truncate(tmp_path / "ledger.jsonl", size)
    with pytest.raises(ChangedError):
        index.curves(["train/loss"], Window(STEP))
    with pytest.raises(ChangedError):
        index.record(place)


@pytest.mark.parametrize("steps", [40, 9000])
def test_a_number_beyond_what_is_drawn_is_left_out_and_the_others_stay(tmp_path, steps):
    made = [attempt(), *(step(at, loss=1e300 if at == 20 else 2.0) for at in range(1, steps + 1))]
    made += [evaluation(steps, -1e39), evaluation(steps, 3.0), evaluation(steps, 3.4e38)]
    write(tmp_path, made)
    told = index_of(tmp_path).curves(["train/loss", "dogs/bits"], Window(STEP))
    for curve in told.values():
        assert np.isfinite([curve.low, curve.high, curve.mean]).all()
    assert told["train/loss"].high.max() == 2
    assert len(told["dogs/bits"].x) == 2


def told_at(index, axis, place):
    """The step that is found at a place."""
    return index.record(step_at(index, axis, place)).step


@pytest.mark.parametrize("axis", range(len(AXES)))
def test_at_each_point_of_a_curve_its_own_step_is_found(tmp_path, axis):
    seconds = [0.1 + at % 7 / 3 for at in range(200)]
    write(tmp_path, [attempt(), *(step(at, seconds=seconds[at]) for at in range(1, 200))])
    index = index_of(tmp_path)
    x = index.curves(["train/loss"], Window(axis))["train/loss"].x
    assert [told_at(index, axis, place) for place in x] == list(range(1, 200))
    # Sums that are made in another order end on other bits.
    assert [told_at(index, axis, np.nextafter(place, 0)) for place in x] == list(range(1, 200))


def test_a_step_after_a_clock_was_set_back_is_found_at_its_time(tmp_path):
    times = [100.0 + at if at < 60 else 40.5 + at for at in range(1, 121)]
    write(tmp_path, [attempt(), *(step(at, time=time) for at, time in enumerate(times, 1))])
    index = index_of(tmp_path)
    assert told_at(index, TIME, times[99]) == 100
    assert told_at(index, TIME, times[9]) in (10, 69)


def test_a_clock_that_is_set_back_loses_no_step(tmp_path):
    times = [100.0 + at if at < 60 else 40.0 + at for at in range(1, 121)]
    write(tmp_path, [attempt(), *(step(at, time=time) for at, time in enumerate(times, 1))])
    index = index_of(tmp_path)
    assert len(index.curves(["train/loss"], Window(TIME))["train/loss"].x) == 120
    assert len(index.curves(["train/loss"], Window(TIME, 0, 1e9))["train/loss"].x) == 120


def test_a_loss_that_comes_and_goes_has_its_own_steps(tmp_path):
    made = [attempt()]
    for at in range(1, 41):
        made.append(step(at, losses={"loss": 1.0} if at < 20 else {"loss": 1.0, "other": float(at)}))
    write(tmp_path, made)
    told = index_of(tmp_path).curves(["train/other"], Window(STEP))["train/other"]
    assert told.x.tolist() == list(range(20, 41))


def test_commands_pause_and_the_newest_record_are_known(tmp_path):
    write(tmp_path, [attempt(), step(1), commit(1, at=12.0), commit(2, at=13.0)])
    index = index_of(tmp_path)
    assert newest(index, "commit").step == 2
    assert newest(index, "spike") is None
    assert b'"step":1,' in index.line(step_at(index, STEP, 1))
