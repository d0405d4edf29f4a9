"""Keys of one table beside a plain reference in dicts: who is let in, who waits, who has to go."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain import Admit, Amount, Evict, Keyed
from drivetrain.engine.tables.keyed import KeyedTable
from drivetrain.engine.tables.keys import BUCKETS, COUNT, KEY, LAST, TAKEN, KeyIndex, bucket_of, edges_of, key_rows
from drivetrain.engine.tables.layout import lay_out_rows
from drivetrain.engine.tables.module import Table
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure

ROWS = 200
"""Two or three keys of a bucket have rows."""
STEP = 10
"""Samples of a step."""
BUCKET = dict(enumerate(bucket_of(torch.arange(1000)).tolist()))
FEW = [key for key, bucket in BUCKET.items() if bucket in (3, 40, 41)]
"""Keys of three buckets, many to each."""


def table_of(rows=ROWS, *, admit=1, waiting=None, **evict):
    rule = Evict(every=Amount(samples=3 * STEP), **evict) if evict else None
    return Table("t", rows, 4, keyed=Keyed(admit=Admit(count=admit, waiting=waiting), evict=rule))


def keyed_on(table, world, rank):
    """What a rank has of a table that is held by rows."""
    layout = lay_out_rows([table], ["row"], [0] * world)
    found = KeyedTable(table, next(iter(layout.of(rank)), None))
    found.lay_rule(Scale(Batches(STEP)))
    return found


def observe(keyed, counted, position):
    """A step that has seen these keys so often, as the owner of some of them."""
    edges = edges_of(keyed.table.rows)
    here = range(keyed.first, keyed.first + len(keyed.rows.edges) - 1)
    own = sorted(key for key in counted if BUCKET[key] in here)
    assert edges[keyed.first] == keyed.boxes["keys"].offset[0]
    seen = keyed.look_up(np.array(own, np.int64), np.array([counted[key] for key in own], np.int64))
    return keyed.observe(seen, position)


def known(keyed):
    """By key: how often it was seen, and when last."""
    return {line[KEY]: (line[COUNT], line[LAST]) for line in keyed.rows.array.tolist() if line[KEY] >= 0}


class Reference:
    """The rules of the page, one key after the other."""

    def __init__(self, table):
        self.keyed, self.rows, self.waiting = table.keyed, {}, {}
        self.room = np.diff(edges_of(table.rows)) - 1

    def free(self, bucket):
        return self.room[bucket] - sum(BUCKET[key] == bucket for key in self.rows)

    def step(self, counted, position, due):
        admit, evict = self.keyed.admit.count, self.keyed.evict
        for key in sorted(counted):
            if key in self.rows:
                self.rows[key] = self.rows[key][0] + counted[key], position
                continue
            count = self.waiting.pop(key, (0, 0))[0] + counted[key]
            into = self.rows if count >= admit and self.free(BUCKET[key]) > 0 else self.waiting
            into[key] = count, position
        if not due:
            return
        if evict.age:
            for lines in (self.rows, self.waiting):
                for key in [key for key, (_, last) in lines.items() if last < position - evict.age.samples]:
                    del lines[key]
        for bucket in range(BUCKETS):
            ripe = [k for k, (count, _) in self.waiting.items() if BUCKET[k] == bucket and count >= admit]
            if len(ripe) > self.free(bucket) and evict.least:
                both = self.rows | self.waiting
                all_keys = [*ripe, *[key for key in self.rows if BUCKET[key] == bucket]]
                for key in self.ordered(all_keys, both)[self.room[bucket] :]:
                    self.rows.pop(key, None)
            for key in self.ordered(ripe, self.waiting)[: self.free(bucket)]:
                self.rows[key] = self.waiting.pop(key)

    def ordered(self, keys, lines):
        def place(key):
            count, last = lines[key]
            first = (-count, -last) if self.keyed.evict.least != "recent" else (-last, -count)
            return (*first, key)

        return sorted(keys, key=place)


STEPS = st.lists(st.dictionaries(st.sampled_from(FEW), st.integers(1, 3), max_size=8), min_size=1, max_size=20)


@pytest.mark.parametrize("least", ["count", "recent"])
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, admit=st.integers(1, 3), age=st.sampled_from([None, 2 * STEP, 5 * STEP]), world=st.integers(1, 3))
def test_keys_come_and_go_as_in_the_reference_whoever_holds_their_buckets(steps, admit, age, world, least):
    table = table_of(admit=admit, waiting=40 * BUCKETS, age=age and Amount(samples=age), least=least)
    reference, ranks = Reference(table), [keyed_on(table, world, rank) for rank in range(world)]
    alone = keyed_on(table, 1, 0)
    for number, counted in enumerate(steps, 1):
        reference.step(counted, STEP * number, number % 3 == 0)
        for keyed in (alone, *ranks):
            observe(keyed, counted, STEP * number)
        assert known(alone) == reference.rows
        waiting = alone.waiting.array
        assert {line[KEY] for line in waiting.tolist() if line[KEY] >= 0} == reference.waiting.keys()
    assert torch.equal(torch.cat([keyed.rows.lines for keyed in ranks]), alone.rows.lines)
    assert torch.equal(torch.cat([keyed.waiting.lines for keyed in ranks]), alone.waiting.lines)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, cut=st.integers(0, 20))
def test_what_is_loaded_goes_on_as_what_has_never_stopped(steps, cut):
    """TorchRec's managed collision module forgets on a resume what it has counted: here no bit differs."""
    table = table_of(admit=2, waiting=130, age=Amount(samples=4 * STEP), least="count")
    whole, parts = keyed_on(table, 1, 0), keyed_on(table, 1, 0)
    for number, counted in enumerate(steps, 1):
        if number == cut:
            loaded = keyed_on(table, 1, 0)
            for kind, tensor in loaded.tensors.items():
                tensor.copy_(parts.tensors[kind])
            parts = loaded
        changes = [observe(keyed, counted, STEP * number) for keyed in (whole, parts)]
        assert [column.tolist() for column in changes[0]] == [column.tolist() for column in changes[1]]
    assert all(torch.equal(parts.tensors[kind], tensor) for kind, tensor in whole.tensors.items())


def test_state_that_others_have_put_back_is_found_again():
    keyed = keyed_on(table_of(), 1, 0)
    before = keyed.rows.lines.clone()
    first = observe(keyed, {FEW[0]: 1}, STEP)
    keyed.rows.lines.data.copy_(before)  # as a rollback does: torch counts no change
    keyed.forget()
    again = observe(keyed, {FEW[0]: 1}, STEP)
    assert (again.keys.tolist(), again.filled.tolist()) == ([FEW[0]], first.filled.tolist())


def test_of_keys_that_were_seen_alike_the_smaller_ones_have_rows():
    keyed = keyed_on(table_of(least="count"), 1, 0)
    smallest, *two = [key for key in FEW if BUCKET[key] == 3][:3]
    observe(keyed, dict.fromkeys(two, 1), STEP)
    observe(keyed, {smallest: 1}, 2 * STEP)
    changes = observe(keyed, dict.fromkeys([smallest, *two], 1), 3 * STEP)
    assert known(keyed) == dict.fromkeys([smallest, two[0]], (2, 3 * STEP))
    assert changes.freed.tolist() == changes.filled.tolist()


def test_a_key_has_a_row_from_the_step_on_that_follows_the_one_which_saw_it_often_enough():
    keyed = keyed_on(table_of(admit=3), 1, 0)
    key = FEW[0]
    assert not len(observe(keyed, {key: 2}, STEP).filled)
    assert keyed.look_up(np.array([key]), np.ones(1, np.int64)).lines.tolist() == [-1]
    changes = observe(keyed, {key: 1}, 2 * STEP)
    assert changes.keys.tolist() == [key]
    assert keyed.look_up(np.array([key]), np.ones(1, np.int64)).lines.tolist() == changes.filled.tolist()
    assert known(keyed) == {key: (3, 2 * STEP)}


def test_keys_without_a_row_share_the_first_one_of_their_bucket_which_nobody_gets():
    keyed = keyed_on(table_of(), 2, 1)
    key = FEW[-1]
    bucket = BUCKET[key]
    assert bucket >= BUCKETS // 2
    shared = keyed.defaults(keyed.look_up(np.array([key]), np.ones(1, np.int64)))
    assert shared.tolist() == [edges_of(ROWS)[bucket] - edges_of(ROWS)[BUCKETS // 2]]
    assert keyed.rows.array[shared, KEY].tolist() == [TAKEN]


def test_more_keys_than_may_wait_are_forgotten_those_seen_longest_ago_first():
    keyed = keyed_on(table_of(admit=9, waiting=4 * BUCKETS), 1, 0)
    of_bucket = [key for key in FEW if BUCKET[key] == 3][:6]
    for number, key in enumerate(of_bucket, 1):
        observe(keyed, {key: 1}, STEP * number)
    left = [line[KEY] for line in keyed.waiting.array.tolist() if line[KEY] >= 0]
    assert of_bucket[0] not in left
    assert set(of_bucket[-2:]) <= set(left)
    assert len(left) <= 4


def test_a_full_bucket_that_nobody_has_to_leave_is_told_with_table_and_bucket():
    keyed = keyed_on(table_of(), 2, 1)
    bucket = BUCKET[FEW[-1]]
    own = [key for key in FEW if BUCKET[key] == bucket]
    with pytest.raises(Failure, match=rf"table 't': bucket {bucket} of 64 is full, it has [12] keys") as caught:
        observe(keyed, dict.fromkeys(own, 1), STEP)
    assert caught.value.outcome.code is Exit.BAD_RECIPE


def test_keys_that_are_all_too_young_to_go_are_told_when_it_is_time():
    keyed = keyed_on(table_of(age=Amount(samples=50 * STEP)), 1, 0)
    own = dict.fromkeys([key for key in FEW if BUCKET[key] == 3], 1)
    for number in (1, 2):
        observe(keyed, own, STEP * number)
    with pytest.raises(Failure, match=r"bucket 3 of 64 is full.*seen within the last 500 samples"):
        observe(keyed, own, STEP * 3)


def test_an_amount_that_means_nothing_along_a_run_is_told_with_its_table():
    with pytest.raises(Failure, match=r"table 't': keyed\.evict: an amount in tokens") as caught:
        keyed_on(table_of(age=Amount(tokens=9)), 1, 0)
    assert caught.value.outcome.code is Exit.BAD_RECIPE


def test_yesterdays_keys_are_as_old_as_they_were():
    keyed = keyed_on(table_of(age=Amount(samples=2 * STEP)), 1, 0)
    observe(keyed, {FEW[0]: 1}, STEP)
    observe(keyed, {FEW[1]: 4}, 2 * STEP)
    keyed.begin()
    assert known(keyed) == {FEW[0]: (1, -STEP), FEW[1]: (4, 0)}
    observe(keyed, {}, 3 * STEP)
    assert not known(keyed)


@pytest.mark.parametrize("world", [1, 2, 3, 64])
def test_a_table_is_cut_between_buckets(world):
    layout = lay_out_rows([table_of(201)], ["row"], [0] * world)
    assert {stretch.start for stretch in layout.stretches} <= set(edges_of(201).tolist())
    assert sum(stretch.rows for stretch in layout.stretches) == 201


def test_fewer_buckets_than_ranks_are_refused_by_rows():
    with pytest.raises(Failure, match=r"64 buckets of keys, too few for 65 processes") as caught:
        lay_out_rows([table_of()], ["row"], [0] * 65)
    assert caught.value.outcome.code is Exit.BAD_RECIPE
    assert len(lay_out_rows([table_of()], ["auto"], [0] * 65).stretches) == 1


def test_a_table_has_room_for_a_key_in_each_bucket():
    with pytest.raises(Failure, match="has 127 rows, and its keys are divided among 64 buckets"):
        table_of(127)


@given(st.lists(st.integers(0, (1 << 63) - 1), unique=True, max_size=300), st.integers(0, 99))
def test_an_index_finds_each_key_and_no_other(keys, seed):
    lines = np.full(400, -1, np.int64)
    index = KeyIndex(lines)
    places = np.random.default_rng(seed).permutation(400)[: len(keys)]
    lines[places] = keys
    index.add(places)
    gone = places[::3]
    lines[gone] = -1
    asked = np.array([*keys, 12345], np.int64)
    wanted = [-1 if place in gone else place for place in places] + ([-1] if 12345 not in keys else [])
    assert index.find(asked)[: len(wanted)].tolist() == wanted


def test_initial_numbers_follow_from_seed_table_and_key():
    keys = np.array([5, 1 << 62, -3])
    drawn = key_rows(keys, "t", 0.5, 64, 7)
    assert drawn.shape == (3, 64)
    assert torch.equal(key_rows(keys[::-1].copy(), "t", 0.5, 64, 7), drawn.flip(0))
    assert not torch.equal(key_rows(keys, "u", 0.5, 64, 7), drawn)
    assert not torch.equal(key_rows(keys, "t", 0.5, 64, 8), drawn)
    many = key_rows(np.arange(5000), "t", 0.5, 8, 0)
    assert float(many.abs().max()) <= 0.5
    assert float(many.mean()) == pytest.approx(0, abs=0.01)
    assert float(many.std()) == pytest.approx(12**-0.5, rel=0.02)
    assert len(many.flatten().unique()) > 39_000


def test_buckets_are_even_of_keys_that_follow_each_other_and_of_large_ones():
    for keys in (torch.arange(64_000), torch.arange(64_000) << 40):
        sizes = torch.bincount(bucket_of(keys), minlength=BUCKETS)
        assert int(sizes.min()) > 850
        assert int(sizes.max()) < 1150
