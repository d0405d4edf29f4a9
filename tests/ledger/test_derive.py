import pytest

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
        {"kind": "exit", "time": 113.5, "code": 0, "cause": "done"},
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
    assert spent["lost work"] == pytest.approx(0.9)
    assert spent["step"] == pytest.approx(4 * 0.9)
    assert spent["between attempts"] == pytest.approx(4.0)
    assert spent["commit"] == pytest.approx(1.0)
    assert spent["start"] == pytest.approx(2.0)
    assert spent["other"] == pytest.approx(0.5)
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
