"""Rows are shared out once, whatever the tables."""

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engine.tables.layout import SMALL_BYTES, held_by_each, lay_out_everywhere, lay_out_rows
from drivetrain.engine.tables.module import Table

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
