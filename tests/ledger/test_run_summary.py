import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.run_summary import BUCKETS, summarize
from records import attempt, commit, ended, evaluation, parsed, rollback, step


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=6))
def test_the_columns_are_the_steps_of_the_lineage(told):
    records, reached = [], 0
    for number, (back, made, both) in enumerate(told, start=1):
        reached = max(0, reached - back)
        records.append(attempt(number, reached, at=100.0 * number))
        for _ in range(made):
            reached += 1
            losses = {"loss": float(reached), "other": 1.0} if both and reached % 2 else {"loss": float(reached)}
            records.append(step(reached, at=100.0 * number, losses=losses) | {"wait": 0.1 * number})
            if reached % 3 == 0:
                records.append(evaluation(reached))
    found, history = summarize(parsed(records)), lineage(parsed(records))
    kept = steps(history)
    assert list(found.steps.step) == [record["step"] for record in kept]
    assert list(found.steps.stop) == [record["stop"] for record in kept]
    assert list(found.steps.axis("seconds")) == pytest.approx(_sums([r["seconds"] + r["wait"] for r in kept]))
    assert list(found.steps.axis("tokens")) == _sums([record["counts"]["tokens"] for record in kept])
    assert found.records == [record for record in history if record["kind"] != "step"]
    for name in ("loss", "other"):
        if name in found.steps.losses:
            curve = found.steps.losses[name]
            shown = [(found.steps.step[row], value) for row, value in zip(curve.rows, curve.values, strict=True)]
            assert shown == [(r["step"], r["losses"][name]) for r in kept if name in r["losses"]]
    assert found.throughput().samples == 8 * len(kept)


def _sums(values):
    return [sum(values[: n + 1]) for n in range(len(values))]


def test_a_run_that_stood_still_for_an_hour_was_restarted_not_slow():
    spent = summarize(
        parsed([attempt(), step(1), ended(75, "stopped", at=30.0), attempt(2, 1, at=3631.0), step(2, at=3630.0)])
    )
    assert spent.seconds["restart"] == pytest.approx(3600.0)
    assert sum(spent.seconds.values()) == pytest.approx(3632.0 - 9.0)
    assert spent.goodput == pytest.approx(1.8 / 3623)


def test_a_pause_has_its_own_time_also_where_its_step_is_made_again():
    pause = {"kind": "pause", "time": 15.0, "step": 1, "seconds": 3.0}
    spent = summarize(parsed([attempt(), step(1), pause, attempt(2, 0, at=20.0), step(1, at=20.0)])).seconds
    assert spent["pause"] == pytest.approx(3.0)
    assert spent["lost work"] == pytest.approx(1.0)
    assert sum(spent.values()) == pytest.approx(21.0 - 9.0)


def test_the_loops_own_sums_tell_what_no_record_does():
    own = {"start": 1.0, "wait": 0.3, "step": 9.0, "commit": 0.5, "compile": 2.0, "tuning": 0.25}
    spent = summarize(parsed([attempt(), step(1), ended(0, "done", at=20.0) | {"seconds": own}])).seconds
    assert [spent[name] for name in ("start", "data wait", "commit", "compile")] == pytest.approx([1.0, 0.3, 0.5, 2.0])
    assert spent["step"] == pytest.approx(0.9)  # a step that was never whole is no goodput
    assert spent["tuning"] == 0.25  # a bucket that this version does not know
    assert sum(spent.values()) == pytest.approx(11.0)


def test_a_commit_that_is_written_after_later_steps_is_lost_with_its_own():
    late = commit(1, at=14.0)
    records = [attempt(), step(1), step(2), step(3), late, attempt(2, 1, at=20.0)]
    assert summarize(parsed(records)).seconds["lost work"] == pytest.approx(2.0)
    assert summarize(parsed(records)).seconds["commit"] == pytest.approx(0.5)
    assert len(summarize(parsed(records)).steps) == 1


def test_nothing_is_told_of_an_empty_ledger():
    nothing = summarize(parsed([]))
    assert nothing.seconds == dict.fromkeys(BUCKETS, 0.0)
    assert (nothing.goodput, nothing.budget, nothing.attempts, nothing.left_out) == (0.0, 0, [], {})
    assert (nothing.steps.newest(), len(nothing.steps), nothing.steps.row(5)) == ({}, 0, -1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_a_rollback_makes_void_what_an_attempt_from_there_would(told):
    """The two tell of the same history; only the attempts, and what the time was used for, are others."""
    undone, again, reached = [attempt()], [attempt()], 0
    for number, (evaluated, back, made) in enumerate(told, start=2):
        for _ in range(made):
            reached += 1
            more = [step(reached), evaluation(reached)] if evaluated else [step(reached)]
            undone, again = undone + more, again + more
        to = max(0, reached - 1 - back)
        undone.append(rollback(reached, to))
        again.append(attempt(number, to, at=50.0))
        reached = to
    one, other = summarize(parsed(undone)), summarize(parsed(again))
    assert list(one.steps.step) == list(other.steps.step)
    assert steps(lineage(parsed(undone))) == steps(lineage(parsed(again)))
    assert [r for r in one.records if r["kind"] == "evaluation"] == [
        r for r in other.records if r["kind"] == "evaluation"
    ]
    assert one.seconds["lost work"] == pytest.approx(other.seconds["lost work"])
    assert one.seconds["rollback"] == pytest.approx(0.1 * len(told))
    assert len(one.rollbacks) == len(told)
    assert [made.to_step for made in one.attempts] == [reached]
