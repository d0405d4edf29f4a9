import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.ledger.derive import attempts, buckets, curve, goodput, lineage, samples_used, scores, steps


def attempt(number, begin, started, start=1.0):
    return {
        "kind": "attempt",
        "attempt": number,
        "from_step": begin,
        "world": 1,
        "started": started,
        "time": started + start,
        "startup": {"import": start},
        "budget": {"steps": 9, "samples": 72},
    }


def step(number, at, value=0.0):
    return {
        "kind": "step",
        "step": number,
        "time": at,
        "start": 8 * number - 8,
        "stop": 8 * number,
        "samples": "f",
        "losses": {"loss": value},
        "seconds": 0.9,
        "wait": 0.1,
    }


def killed_and_resumed():
    """Three steps from 100 s on, a commit after the second, killed; again from 110 s on: the third and a fourth."""
    return [
        attempt(1, 0, 100.0),
        step(1, 102.0, 5.0),
        step(2, 103.0, 4.0),
        {"kind": "commit", "step": 2, "time": 103.5, "seconds": 0.5},
        {"kind": "evaluation", "step": 2, "time": 104.5, "seconds": 1.0, "metrics": {"v": {"loss": 4.5}}},
        step(3, 105.5, 9.0),
        {"kind": "commit", "step": 3, "time": 106.0, "seconds": 0.5},
        attempt(2, 2, 110.0),
        step(3, 112.0, 3.0),
        step(4, 113.0, 2.0),
        {"kind": "exit", "time": 113.5, "code": 0, "cause": "done", "seconds": {"start": 1.0, "commit": 0.25}},
    ]


def test_the_lineage_leaves_out_what_was_made_again():
    history = lineage(killed_and_resumed())
    assert curve(history, "loss") == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0)]
    assert [r["step"] for r in history if r["kind"] == "commit"] == [2]
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
    records = killed_and_resumed()
    records.insert(7, {"kind": "repair", "time": 110.5, "bytes": 9})
    assert buckets(records) == buckets(killed_and_resumed())
    assert attempts(records)[0].ended == 106.0


def test_the_first_entry_of_a_cut_off_start_is_an_attempt():
    (only,) = attempts([attempt(1, 0, 100.0)])
    assert (only.to_step, only.code, only.ended) == (0, None, 101.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 10), st.lists(st.floats(0, 5), max_size=9), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_buckets_add_up_whatever_the_clock_and_the_order_of_attempts(told):
    records, clock, reached = [], 1e9, 0
    for number, (pause, start, durations, again) in enumerate(told):
        clock += pause
        records.append(attempt(number + 1, 0 if again else reached, clock, start))
        reached = 0 if again else reached
        clock += start
        for seconds in durations:
            clock += seconds
            reached += 1
            records.append(step(reached, clock) | {"seconds": seconds / 2, "wait": seconds / 4})
    spent = buckets(records)
    assert sum(spent.values()) == pytest.approx(records[-1]["time"] - records[0]["started"], abs=1e-4)
    assert min(spent.values()) >= -1e-4
