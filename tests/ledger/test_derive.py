import pytest
from hypothesis import given
from hypothesis import strategies as st

import records
from drivetrain.ledger.derive import attempts, buckets, curve, goodput, lineage, samples_used, scores, steps
from drivetrain.ledger.records import RepairRecord
from records import parsed


def attempt(number, begin, started, start=1.0):
    more = {"world": 1, "started": started, "time": started + start, "startup": {"import": start}}
    return records.attempt(number, begin) | more


def step(number, at, value=0.0):
    return records.step(number, loss=value) | {"time": at, "samples": "f"}


def killed_and_resumed():
    """Three steps from 100 s on, a commit after the second, killed; again from 110 s on: the third and a fourth."""
    return parsed(
        [
            attempt(1, 0, 100.0),
            step(1, 102.0, 5.0),
            step(2, 103.0, 4.0),
            records.commit(2, at=103.5),
            records.evaluation(2, 4.5, "v", "loss") | {"time": 104.5, "seconds": 1.0},
            step(3, 105.5, 9.0),
            records.commit(3, at=106.0),
            attempt(2, 2, 110.0),
            step(3, 112.0, 3.0),
            step(4, 113.0, 2.0),
            records.ended(0, "done", at=113.5) | {"seconds": {"start": 1.0, "commit": 0.25}},
        ]
    )


def test_the_lineage_leaves_out_what_was_made_again():
    history = lineage(killed_and_resumed())
    assert curve(history, "loss") == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0)]
    assert [r.step for r in history if r.kind == "commit"] == [2]
    assert scores(history) == {("v", "loss"): [(2, 4.5)]}
    assert samples_used(history)[-1] == (4, 24, 32, "f")


def test_the_seconds_of_all_buckets_are_the_wall_clock():
    spent = buckets(killed_and_resumed())
    assert sum(spent.values()) == pytest.approx(13.5)
    assert spent["lost work"] == pytest.approx(0.9 + 0.1 + 0.5)  # a step, its data, and a commit
    assert spent["step"] == pytest.approx(4 * 0.9)
    assert spent["data wait"] == pytest.approx(4 * 0.1)
    assert spent["restart"] == pytest.approx(4.0)
    assert spent["commit"] == pytest.approx(0.5 + 0.25)  # of one that was missed only the loop's sum tells
    assert spent["start"] == pytest.approx(2.0)
    assert spent["other"] == pytest.approx(0.25)
    assert goodput(killed_and_resumed()) == pytest.approx(3.6 / 13.5)


def test_attempts_tell_where_they_began_and_why_they_ended():
    first, second = attempts(killed_and_resumed())
    assert (first.from_step, first.to_step, first.code, first.cause) == (0, 3, None, "cut off")
    assert (second.from_step, second.to_step, second.code) == (2, 4, 0)


def test_an_empty_ledger_derives_nothing():
    assert lineage([]) == []
    assert steps([]) == []
    assert sum(buckets([]).values()) == 0
    assert goodput([]) == 0


def test_the_time_before_a_repair_is_that_of_the_restart():
    told = killed_and_resumed()
    told.insert(7, RepairRecord(time=110.5, bytes=9))
    assert buckets(told) == buckets(killed_and_resumed())
    assert attempts(told)[0].ended == 106.0


def test_the_first_entry_of_a_cut_off_start_is_an_attempt():
    (only,) = attempts(parsed([attempt(1, 0, 100.0)]))
    assert (only.to_step, only.code, only.ended) == (0, None, 101.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 10), st.lists(st.floats(0, 5), max_size=9), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_buckets_add_up_whatever_the_clock_and_the_order_of_attempts(told):
    made, clock, reached = [], 1e9, 0
    for number, (pause, start, durations, again) in enumerate(told):
        clock += pause
        made.append(attempt(number + 1, 0 if again else reached, clock, start))
        reached = 0 if again else reached
        clock += start
        for seconds in durations:
            clock += seconds
            reached += 1
            made.append(step(reached, clock) | {"seconds": seconds / 2, "wait": seconds / 4})
    spent = buckets(parsed(made))
    assert sum(spent.values()) == pytest.approx(made[-1]["time"] - made[0]["started"], abs=1e-4)
    assert min(spent.values()) >= -1e-4
