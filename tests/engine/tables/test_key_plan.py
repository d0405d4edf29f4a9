"""Plans of keys: each once, by owner, table and key, with how often it occurs."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain import Keyed
from drivetrain.engine.tables.key_plan import KeyPlanner
from drivetrain.engine.tables.keys import BUCKETS, bucket_of
from drivetrain.engine.tables.layout import lay_out_rows
from drivetrain.engine.tables.module import Ids, Lookup, Table

TABLES = (Table("a", 128, 2, keyed=Keyed()), Table("b", 640, 2, keyed=Keyed()))
LOOKUPS = (Lookup("one", "b"), Lookup("list", "a", "none"), Lookup("again", "b", "mean"))
KEYS = st.integers(0, 9) | st.integers(0, (1 << 63) - 1)
MICROS = st.lists(st.lists(st.tuples(KEYS, KEYS, st.just(-1) | KEYS), min_size=1, max_size=6), max_size=4)


@given(MICROS, st.integers(1, 3), st.sampled_from(["row", "table"]))
def test_a_plan_has_each_key_once_with_its_owner_and_count(micros, world, way):
    layout = lay_out_rows(TABLES, [way, way], [0] * world)
    asked, wanted = [], Counter()
    for samples in micros:
        one, listed, again = (torch.tensor(column) for column in zip(*samples, strict=True))
        asked.append(Ids({"one": one, "list": listed[:, None], "again": again[:, None]}))
        wanted.update((1, key) for key in [*one.tolist(), *again[again >= 0].tolist()])
        wanted.update((0, key) for key in listed.tolist())
    plan = KeyPlanner(layout, LOOKUPS).plan(asked)
    assert {(table, key): count for key, table, count in plan.local.tolist()} == wanted
    assert len(plan.local) == len(wanted)
    owners = torch.arange(world).repeat_interleave(torch.tensor(plan.counts))
    places = [(owner, table, key) for owner, (key, table, _) in zip(owners.tolist(), plan.local.tolist(), strict=True)]
    assert places == sorted(places)
    for owner, table, key in places:
        edge = TABLES[table].rows * int(bucket_of(torch.tensor(key))) // BUCKETS
        (held,) = [s for s in layout.stretches if s.table == TABLES[table].name and s.start <= edge < s.stop]
        assert held.owner == owner
    for micro, samples in zip(plan.micros, micros, strict=True):
        assert plan.local[micro.places[: len(samples)], 0].tolist() == [key for key, _, _ in samples]
