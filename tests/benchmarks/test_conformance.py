"""The judge of the conformance harness, on witness files whose truth is known."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given
from judge import Coverage, Ended, Shape, attempts, bits, coverage, history, repeated, tally

SHAPE = Shape(steps=3, samples=12, epochs=2)


def ids(step):
    """Four samples a step, each sample once in three steps."""
    return [(step - 1) % 3 * 4 + n for n in range(4)]


def start(pid, world, first, last):
    """The lines of one start; its ranks take turns, and share each step's samples."""
    share = 4 // world
    for rank in range(world):
        yield f"{pid + rank} {rank} start"
    for step in range(first, last + 1):
        for rank in range(world):
            yield f"{pid + rank} {rank} saw {' '.join(map(str, ids(step)[rank * share : (rank + 1) * share]))}"
        for rank in range(world):
            yield f"{pid + rank} {rank} step {step}"


def witness(*starts):
    return "\n".join(line for lines in starts for line in lines) + "\n"


def judged(text):
    return coverage(history(attempts(text)), SHAPE)


@given(
    stops=st.lists(st.integers(1, 6), max_size=5),
    back=st.integers(0, 3),
    worlds=st.lists(st.sampled_from([1, 2]), min_size=1),
)
def test_a_run_that_goes_on_from_any_step_it_reached_has_used_each_sample_once(stops, back, worlds):
    starts, reached = [], 0
    for index, stop in enumerate([*stops, 6]):
        begin = min(6, max(1, reached + 1 - back))
        reached = max(stop, begin)
        starts.append(start(100 * index, worlds[index % len(worlds)], begin, reached))
    assert judged(witness(*starts)) == Coverage(lost=0, doubled=0)


def test_samples_that_are_left_out_and_used_twice_are_counted():
    text = witness(start(1, 1, 1, 2)) + "1 0 saw 4 5 6 7\n1 0 step 3\n" + witness(start(2, 1, 4, 6))
    assert judged(text) == Coverage(lost=4, doubled=4)


def test_a_run_that_skips_steps_has_lost_their_samples():
    assert judged(witness(start(1, 2, 1, 2), start(5, 2, 4, 6))).lost == 4


def test_a_rank_killed_before_its_note_of_a_step_that_others_made_has_taken_part():
    text = "1 0 start\n2 1 start\n1 0 saw 0 1\n2 1 saw 2 3\n1 0 step 1\n"
    assert history(attempts(text)) == {1: Counter([0, 1, 2, 3])}


def test_samples_of_a_step_that_nobody_finished_do_not_count():
    assert history(attempts("1 0 start\n1 0 saw 0 1 2 3\n")) == {}


def test_starts_are_told_apart_where_processes_are_added():
    found = attempts(witness(start(1, 1, 1, 2), reversed_ranks(start(7, 2, 3, 4))))
    assert [(attempt.first, attempt.last, len(attempt.pids)) for attempt in found] == [(1, 2, 1), (3, 4, 2)]


def reversed_ranks(lines):
    """The second rank may be the first to say that it is there."""
    first, second, *rest = lines
    return [second, first, *rest]


def test_steps_made_again_are_those_between_the_checkpoint_and_the_end():
    assert repeated(attempts(witness(start(1, 1, 1, 5), start(2, 1, 3, 4), start(3, 1, 5, 6)))) == [3, 0]


def ended(text="", code=0, sha256="a", finite=True):
    return Ended(code, sha256, finite, text)


def full(pid=1, mix=lambda step: step):
    """A whole run of the harness's own shape: 60 steps of 16 samples."""
    lines = [f"{pid} 0 start"]
    for step in range(1, 61):
        first = (mix(step) - 1) % 30 * 16
        lines += [f"{pid} 0 saw {' '.join(map(str, range(first, first + 16)))}", f"{pid} 0 step {step}"]
    return "\n".join(lines) + "\n"


def test_the_verdict_is_the_worst_that_is_true():
    expected = ended(full())
    assert bits(ended(full()), expected) == "same bits"
    assert bits(ended(full(), sha256="b"), expected) == "other bits, same samples"
    assert (
        bits(ended(full(mix=lambda s: 61 - s), sha256="b"), expected) == "other bits, each sample once, another order"
    )
    assert bits(ended(full(mix=lambda s: max(s, 2)), sha256="b"), expected) == "**16 samples lost, 16 doubled**"
    assert bits(ended(full(), sha256="b", finite=False), expected) == "**weights are NaN**"
    assert bits(ended(code=1), expected) == "does not go on: exit 1"
    assert bits(ended(code=None), expected) == "**hangs**"


def test_a_tally_has_the_most_frequent_first():
    assert tally(["same bits", "other bits", "same bits"]) == "2 of 3: same bits; 1 of 3: other bits"
