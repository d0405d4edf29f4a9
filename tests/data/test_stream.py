"""Cursors, marks and lanes of streams, without a run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.blend import one_source
from drivetrain.data.deal import Deal, before_ends
from drivetrain.data.source import ENDLESS
from drivetrain.data.stream import Opener, StreamSource
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure


class Numbers:
    """Counts the items that were read of it, in all passes."""

    read = 0

    def __init__(self, count=1000, offset=0):
        self.at, self.count, self.offset = 0, count, offset

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            Numbers.read += 1
            yield self.at - 1 + self.offset


class Telling(Numbers):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def source(kind=Telling, **settings):
    return StreamSource(Opener(lambda: kind(**settings)), "numbers", 7, "")


def dealt(lanes, ends, batches):
    def items(start, lane, lanes):
        yield from ((lane, number) for number in range(start, ends[lane]))

    found = StreamSource(Opener(items, frozenset({"start", "lane", "lanes"})), "items", 7, "")
    found.deal(Deal(batches, lanes))
    return found


def read(stream, first, last):
    ids = np.arange(first, last)
    return stream.read(ids, ids)


@pytest.mark.parametrize("kind", [Numbers, Telling])
@given(places=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=8))
def test_any_place_can_be_read_in_any_order(kind, places):
    stream = source(kind)
    for first, count in places:
        assert read(stream, first, first + count) == list(range(first, first + count))


@given(position=st.integers(0, 400), before=st.integers(0, 400), then=st.integers(0, 100))
def test_marks_follow_from_the_position_alone_and_lead_back_to_it(position, before, then):
    straight, winding = source(), source()
    read(straight, 0, position + 1)
    read(winding, before, before + then + 1)
    read(winding, 0, position // 2 + 1)
    read(winding, position // 2, position + 1)
    marks = straight.marks(position)
    assert winding.marks(position) == marks
    gone_on = source()
    gone_on.resume(marks, position, [0], accepts_change=False)
    assert read(gone_on, position, position + 3) == [position, position + 1, position + 2]
    assert gone_on.marks(position) == marks
    assert gone_on.stream.notes == []


def test_a_resume_by_state_reads_little_again():
    marks = (begun := source()) and read(begun, 0, 900) and begun.marks(900)
    Numbers.read = 0
    gone_on = source()
    gone_on.resume(marks, 900, [0], accepts_change=False)
    read(gone_on, 900, 901)
    assert Numbers.read < 100


def test_a_stream_of_other_samples_is_noticed():
    begun = source()
    read(begun, 0, 100)
    other = source(offset=1)
    with pytest.raises(Failure, match="numbers does not repeat itself") as caught:
        other.resume(begun.marks(100), 100, [0], accepts_change=False)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    other = source(offset=1)
    other.resume(begun.marks(100), 100, [0], accepts_change=True)
    assert any("it does not repeat itself" in note for note in other.stream.notes)


def test_a_stream_that_has_become_shorter_is_noticed():
    begun = source(Numbers)
    read(begun, 0, 100)
    shorter = source(Numbers, count=20)
    shorter.resume(begun.marks(100), 100, [0], accepts_change=False)
    assert shorter.stream.notes == [
        "it has ended after 20 samples: it does not repeat itself, so samples may be missing or come twice"
    ]


@given(
    lanes=st.sampled_from([1, 2, 4]),
    ramp=st.booleans(),
    ends=st.lists(st.integers(0, 60), min_size=4, max_size=4),
)
def test_lanes_read_their_own_parts_each_to_its_end(lanes, ramp, ends):
    batches = Batches(8, (Change(3, 16),) if ramp else ())
    stream = dealt(lanes, ends, batches)
    found = []
    deal = Deal(batches, lanes) if lanes > 1 else None
    for step in range(1, 40):
        start, stop = batches.span(step)
        for rank in range(lanes):
            ids = np.arange(start, stop)[rank * (stop - start) // lanes : (rank + 1) * (stop - start) // lanes]
            there = stream.there(ids)
            found += stream.read(ids[there], ids[there])
            assert before_ends(ids, stream.found_ends, deal).tolist() == there.tolist()
    if lanes > 1:
        assert sorted(found) == [(lane, number) for lane in range(lanes) for number in range(ends[lane])]
    else:
        assert found == [(0, number) for number in range(ends[0])]


def test_a_blend_asks_each_stream_for_its_own():
    streams = [source(count=5), source(count=ENDLESS)]
    both = one_source(streams)
    ids = np.array([3, ENDLESS + 1, 4, 5, ENDLESS + 2])
    assert both.there(ids).tolist() == [True, True, True, False, True]
    streams[0].ends = {0: 4}
    assert both.left(ids).tolist() == [True, True, False, False, True]


def test_what_is_behind_the_end_cannot_be_read():
    with pytest.raises(Failure, match="numbers has no sample 5: it has ended"):
        read(source(count=5), 3, 7)


def test_the_first_samples_are_kept():
    held = source(count=9).first_samples(5)
    assert (len(held), read(held, 1, 3)) == (5, [1, 2])
    assert held.fingerprint == source(count=7).first_samples(5).fingerprint
    assert len(source(count=9).first_samples(100)) == 9


def test_what_could_not_be_read_is_no_end_when_it_is_asked_for_again():
    def torn():
        yield from range(12)
        raise ValueError("the tape is torn")

    stream = StreamSource(Opener(torn), "torn", 7, "")
    for _ in range(2):  # a generator that has raised gives no more, as one that has ended
        with pytest.raises(Failure, match="sample 12 cannot be read: ValueError: the tape is torn"):
            stream.there(np.arange(12, 16))
    assert stream.found_ends == {}


@pytest.mark.parametrize("kind", [Numbers, Telling])
def test_marks_are_the_same_after_going_back(kind):
    straight, winding = source(kind), source(kind)
    read(straight, 0, 450)
    read(winding, 0, 500)
    read(winding, 440, 450)
    assert winding.marks(450) == straight.marks(450)


@pytest.mark.parametrize("kind", [Numbers, Telling])
def test_a_change_that_was_accepted_is_so_from_then_on(kind):
    begun = source(kind)
    read(begun, 0, 100)
    other = source(kind, offset=1)
    other.resume(begun.marks(100), 100, [0], accepts_change=True)
    assert other.stream.notes
    gone_on = source(kind, offset=1)
    gone_on.resume(other.marks(100), 100, [0], accepts_change=False)
    assert gone_on.stream.notes == []
    assert read(gone_on, 100, 101) == [101]
