"""JSON with the line of every key: what is read, what is refused, and where."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.importing.json_text import NotJsonError, json_tree, line_of
from drivetrain.spec.tree import to_data

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = st.recursive(
    SCALARS | TEXTS, lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXTS, part, max_size=4)
)


def read(text):
    mistakes = []
    return json_tree(text, "x.json", mistakes), [str(mistake) for mistake in mistakes]


@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.sampled_from([None, 0, 1, 4, "\t"]), st.booleans())
def test_what_python_writes_is_read_as_the_same(data, indent, ascii_):
    tree, mistakes = read(json.dumps(data, indent=indent, ensure_ascii=ascii_))
    assert mistakes == []
    assert to_data(tree) == data


@given(st.dictionaries(TEXTS, st.integers(0, 9), min_size=1, max_size=9))
def test_every_key_has_its_line(data):
    tree, _ = read(json.dumps(data, indent=1))
    assert [line_of(tree, (key,)) for key in data] == list(range(2, len(data) + 2))


def test_a_key_that_is_not_there_has_the_line_of_what_it_would_be_in():
    tree, _ = read('{\n"a": {\n\n\n"b": 1\n}\n}')
    assert [line_of(tree, path) for path in [("a", "b"), ("a", "c"), ("a", "b", "c"), ("z",)]] == [5, 2, 5, 1]


def test_comments_and_last_commas_are_no_mistake():
    text = '{ // one\n"a": [1, 2,], /* two\n lines */ "b": "// no comment", # three\n"c": {},\n}'
    tree, mistakes = read(text)
    assert (to_data(tree), mistakes) == ({"a": [1, 2], "b": "// no comment", "c": {}}, [])
    assert line_of(tree, ("b",)) == 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "expected a value, not the end"),
        ("[1]", 1, "no JSON object"),
        ('{"a": 1\n"b": 2}', 2, "expected ',' or '}'"),
        ('{"a": 1 "b": 2}', 1, "expected ',' or '}'"),
        ('{\n"a" 1}', 2, "expected ':' after 'a'"),
        ("{\n'a': 1}", 2, "expected a key in quotes"),
        ('{"a": 1}\n}', 2, "there is more after its end"),
        ('{"a":\nCONFIG_SIZE}', 2, "expected a value, not 'CONFIG_SIZE'"),
        ('{"a": NaN}', 1, "expected a value, not 'NaN'"),
        ('{"a": 010}', 1, "expected a value, not '010'"),
        ('{"a": "x\n"}', 1, "does not end in its line"),
        ('{"a": "\\x"}', 1, "is no string"),
        ('{"a": [1,,2]}', 1, "expected a value, not ','"),
        ('{"a":' * 100, 1, "nested deeper than 64 levels"),
        ("[" * 10**6, 1, "nested deeper than 64 levels"),
        ('{"a": /* ' + "x" * 10**6, 1, "expected a value"),
        ('{"a' + "b" * 10**6, 1, "does not end in its line"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(text, line, words):
    with pytest.raises(NotJsonError, match=words.replace("[", r"\[")) as told:
        read(text)
    assert told.value.line == line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1,\n"a": 2}', "x.json:2: a: is given twice; the first is in line 1"),
        ('{"a":\n{"b": 1, "b": 1}}', "x.json:2: a.b: is given twice; the first is in line 2"),
        ('{\n"a": 1e999}', "x.json:2: a: must be a finite number (got inf)"),
        ('{"a": ' + "9" * 10**5 + "}", "x.json:1: a: is a number beyond 64 bits"),
        ('{"a": "\\u0000"}', "x.json:1: a: text with a NUL character is refused"),
        ('{"a": "\\ud800"}', "x.json:1: a: is not valid Unicode"),
    ],
)
def test_values_that_no_recipe_could_hold_are_told_with_their_lines(text, told):
    assert read(text)[1] == [told]
