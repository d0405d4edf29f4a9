import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.opening import open_source
from drivetrain.data.recipe import Table
from drivetrain.data.rows import place_of
from drivetrain.spec.exits import Exit, Failure


def opened(path, **options):
    return open_source(Table(path=str(path), **options), 0, path.parent / "digests.json")


def rows_of(source):
    ids = np.arange(len(source))
    return source.read(ids, ids)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.text('ab,"\n', max_size=9)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_the_csv_module_writes_is_read_in_any_order(tmp_path_factory, values):
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *values])
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    source = pickle.loads(pickle.dumps(opened(path)))
    ids = np.arange(len(source))[::-1]
    assert [tuple(row.values()) for row in source.read(ids, ids)] == values[::-1]


def test_quotes_are_characters_where_the_recipe_says_so(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text('a\tb\n"one\ttwo\n\nthree\t"four"\n')
    assert rows_of(opened(path, quotes=False)) == [{"a": '"one', "b": "two"}, {"a": "three", "b": '"four"'}]


def test_only_a_line_feed_ends_a_line_and_a_mark_of_utf8_is_no_text(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_bytes("\ufeffa\tb\r\n1\u2028\x0b\t2\r\n3\t4".encode())
    assert rows_of(opened(path, quotes=False)) == [{"a": "1\u2028\x0b", "b": "2"}, {"a": "3", "b": "4"}]


def test_columns_without_a_first_line_are_named_by_the_recipe(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,x\n2,y\n")
    source = opened(path, header=("n", "text"), columns=("text",))
    assert rows_of(source) == [{"text": "x"}, {"text": "y"}]
    assert place_of(source, 1) == f"{path}:2"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (b"a,b\n1,2\n3\n4,5\n", 3, "1 fields"),
        (b"a,b\n1,2\n1,2,3\n", 3, "3 fields"),
        (b'a,b\n1,"2\n3,4\n', 2, "unexpected end"),
        (b"a,b\n1,\xff\n3,4\n", 2, "utf-8"),
    ],
)
def test_d04_a_bad_row_is_named_or_left_out_and_told(text, line, why, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(text)
    with pytest.raises(Failure) as refused:
        opened(path)
    assert refused.value.outcome.code is Exit.BAD_DATA
    assert f"{path}:{line}" in refused.value.outcome.cause
    assert why in refused.value.outcome.cause
    if b'"' not in text:  # an open quote takes all that follows
        source = opened(path, malformed="skip")
        assert len(source) == text.count(b"\n") - 2
        assert source.notes == (f"1 malformed rows of {path} are left out, at line {line}",)


@pytest.mark.parametrize("text", ["a,a\n1,2\n", "\n\n", "a,b\n"])
def test_files_without_columns_or_rows_are_refused(text, tmp_path):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(Failure) as refused:
        opened(tmp_path / "rows.csv")
    assert refused.value.outcome.code is Exit.BAD_DATA


def test_a_part_keeps_the_place_of_its_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(50)))
    part = opened(path, part="validation", split=(0.5, 0.5, 0))
    for number, row in enumerate(rows_of(part)):
        assert place_of(part, number) == f"{path}:{int(row['n']) + 2}"
