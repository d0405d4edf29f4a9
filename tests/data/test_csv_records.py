import csv
import io
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data import csv_records
from drivetrain.data.csv_records import BadQuote, Quotes, chunks_of

FIELDS = st.text(st.sampled_from(list('ab,"\n\r\té')), max_size=6)


def ends_of(content, chunk):
    """Where records end, found chunk by chunk."""
    quotes, found, at = Quotes(b","), [], 0
    with patch.object(csv_records, "_CHUNK", chunk):
        for piece in chunks_of(io.BytesIO(content)):
            found += (quotes.record_ends(piece) + at).tolist()
            at += len(piece)
    quotes.finish()
    return found


@settings(max_examples=200)
@given(st.lists(st.lists(FIELDS, min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 9), st.booleans())
def test_records_end_where_the_csv_module_wrote_an_end(rows, chunk, all_quoted):
    text, ends = io.StringIO(), []
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL)
    for row in rows:
        writer.writerow(row)
        ends.append(len(text.getvalue().encode()) - 1)
    assert ends_of(text.getvalue().encode(), chunk) == ends


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_a_quote_in_a_field_that_begins_with_none_is_a_character(chunk):
    content = b'5" disc,x""y\n"a\nb","c""\n",7" and 9"\n"",""\n'
    assert [content[end + 1 :][:2] for end in ends_of(content, chunk)] == [b'"a', b'""', b""]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(
    ("content", "at", "why"),
    [(b'a,"b\nc,d\n', 2, "no end"), (b'a,"b"c\n', 4, "text follows"), (b'a,"b\nc,"d"\n', 7, "text follows")],
)
def test_a_quote_that_fits_nowhere_is_named(content, at, why, chunk):
    with pytest.raises(BadQuote, match=why) as refused:
        ends_of(content, chunk)
    assert refused.value.at == at


def test_files_without_a_quote_end_records_at_line_feeds():
    content = b"a,b\r\nc\n\nd"
    assert np.array_equal(Quotes(b",").record_ends(content), [4, 6, 7])
