"""Protobuf's text format: what is read, where it stands, and what is no such text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.prototext import Message, NotProtoTextError, read_message


def plain(text):
    """Names and written values, messages as lists."""

    def of(message):
        found = []
        for field in message.fields:
            value = of(field.value) if isinstance(field.value, Message) else field.value.written
            found.append((field.name, value))
        return found

    return of(read_message(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a: 1", [("a", "1")]),
        ("a: -1.5e3 b: 0x1F c: 2.f", [("a", "-1.5e3"), ("b", "0x1F"), ("c", "2.f")]),
        ("a: -inf b: nan c: ENUM_1", [("a", "-inf"), ("b", "nan"), ("c", "ENUM_1")]),
        ('a: "x" \'y\' # end\n"z"', [("a", "xyz")]),
        (r'a: "\x1d\003\n\"\u00e9\U0001F600"', [("a", '\x1d\x03\n"é😀')]),
        ("a { b: 1 } a: { b: 2 }", [("a", [("b", "1")]), ("a", [("b", "2")])]),
        ("a < b < > >", [("a", [("b", [])])]),
        ("a: [1, 2] a: 3", [("a", "1"), ("a", "2"), ("a", "3")]),
        ("a [{b: 1}, {b: 2}]", [("a", [("b", "1")]), ("a", [("b", "2")])]),
        ("a: [] b: 1, c: 2; d: 3", [("b", "1"), ("c", "2"), ("d", "3")]),
        ("[a.b/c.D]: 1", [("[a.b/c.D]", "1")]),
    ],
)
def test_fields_come_in_their_order(text, expected):
    assert plain(text) == expected


def test_every_value_knows_its_line():
    message = read_message('a: 1\n\nb {\n  c: [2,\n  3]\n  d: "x"\n "y"\n}\n')
    (a, b) = message.fields
    assert (a.line, b.line, b.value.line) == (1, 3, 3)
    assert [(field.line, field.value.line) for field in b.value.fields] == [(4, 4), (5, 5), (6, 6)]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\nb {\nc: 2", 2, "never closed with '}'"),
        ("a: 1 }", 1, "expected a field's name, not '}'"),
        ("a\n3", 2, "expected ':' after a, not '3'"),
        ("a {\nb: }", 2, "expected a value, not '}'"),
        ('a: 1\nb: "x', 2, "a string does not end in its line"),
        ("a: 1\n@", 2, "'@' means nothing here"),
        ("a: [1 2]", 1, "expected ',' or ']', not '2'"),
        ("a: [1,", 1, "never closed with ']'"),
        ("a:", 1, "expected a value, not the end"),
        ("a: 1\n" + "b {" * 70, 2, "nested deeper than 64 levels"),
        (r'a: "\xff"', 1, "no UTF-8 text"),
        (r'a: "\U00110000"', 1, "is no character"),
        ("a < b: 1 }", 1, "expected a field's name, not '}'"),
    ],
)
def test_what_is_no_message_is_told_with_its_line(text, line, told):
    with pytest.raises(NotProtoTextError, match=r".*") as raised:
        read_message(text)
    assert raised.value.line == line
    assert told in str(raised.value)


@given(st.text())
def test_any_text_is_a_message_or_is_told_as_none(text):
    lines = []
    try:
        read_message(text)
    except NotProtoTextError as error:
        lines.append(error.line)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_text_stands_for_itself(text):
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert plain(f'a: "{quoted}"') == [("a", text)]
