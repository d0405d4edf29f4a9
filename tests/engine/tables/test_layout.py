"""Rows are shared out once, whatever the tables."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.tables.layout import SMALL_BYTES, held_by_each, lay_out_everywhere, lay_out_rows
from drivetrain.engine.tables.module import BLOCK, Ids, Lookup, Table, initial_rows
from drivetrain.engine.tables.row_plan import RowPlanner

TABLES = st.lists(st.tuples(st.integers(1, 200), st.sampled_from(["auto", "table", "row"])), min_size=1, max_size=8)


@given(TABLES, st.integers(1, 5))
def test_each_row_of_each_table_lies_on_one_rank_at_a_place_of_its_own(asked, world):
    tables = [Table(f"t{place}", rows, 4) for place, (rows, _) in enumerate(asked)]
    layout = lay_out_rows(tables, [way for _, way in asked], [0] * world)
    for table in tables:
        rows = [range(s.start, s.stop) for s in layout.stretches if s.table == table.name]
        assert sorted(row for part in rows for row in part) == list(range(table.rows))
    for rank, filled in enumerate(layout.filled):
        places = [range(s.at, s.at + s.rows) for s in layout.of(rank)]
        assert sorted(place for part in places for place in part) == list(range(filled))


def test_a_table_above_a_ranks_share_is_held_by_rows_and_small_ones_balance():
    tables = [Table("large", 1000, 4), Table("a", 100, 4), Table("b", 90, 4), Table("c", 10, 4)]
    layout = lay_out_rows(tables, ["auto"] * 4, [0, 0])
    assert [s.owner for s in layout.stretches if s.table == "large"] == [0, 1]
    assert layout.filled == (600, 600)


def test_what_ranks_hold_already_counts():
    layout = lay_out_rows([Table("a", 10, 4)], ["table"], [5, 0])
    assert layout.of(1)[0].rows == 10


def test_each_rank_holds_small_tables_where_that_saves_a_message():
    small, large = Table("small", 9, 4), Table("large", SMALL_BYTES, 4)
    assert held_by_each({small: "auto"}, 2) == [small]
    assert held_by_each({small: "auto"}, 1) == []
    assert held_by_each({small: "auto", large: "auto"}, 2) == []
    assert held_by_each({small: "auto", large: "each"}, 2) == [small, large]
    assert held_by_each({small: "row", large: "each"}, 2) == [large]
    layout = lay_out_everywhere([small, large], 3)
    assert layout.filled == (9 + large.rows,) * 3
    assert [(s.table, s.start, s.stop, s.at) for s in layout.of(2)] == [("small", 0, 9, 0), ("large", 0, large.rows, 9)]


@given(st.sampled_from([torch.int32, torch.int64]), st.sampled_from(["table", "row"]))
def test_rows_beyond_32_bits_have_places_of_their_own(dtype, way):
    rows = (1 << 31) - 1
    tables = [Table(name, rows, 4) for name in "abc"]
    layout = lay_out_rows(tables, [way] * 3, [0, 0])
    ids = torch.tensor([0, 1, rows - 1], dtype=dtype)
    plan = RowPlanner(layout, [Lookup(name, name) for name in "abc"]).plan([Ids(dict.fromkeys("abc", ids))])
    wanted = []
    for stretch in layout.stretches:
        held = [row for row in ids.tolist() if stretch.start <= row < stretch.stop]
        wanted += [(stretch.owner, stretch.at + row - stretch.start) for row in held]
    assert plan.local.tolist() == [place for _, place in sorted(wanted)]
    assert plan.counts == [sum(owner == rank for owner, _ in wanted) for rank in (0, 1)]
    assert len(plan.addresses.unique()) == 9
    assert int(plan.addresses.max()) >= 3 * rows - 1


def test_rows_beyond_32_bits_begin_at_numbers_of_their_own():
    table = Table("a", 3 << 31, 2, bound=1.0)
    found = [initial_rows(table, 7, start, start + 2) for start in (0, 1 << 31, 1 << 32, (3 << 31) - 2)]
    assert len({tuple(rows.flatten().tolist()) for rows in found}) == 4
    around = initial_rows(table, 7, (1 << 32) - BLOCK, (1 << 32) + 2)
    assert torch.equal(around[-2:], found[2])
