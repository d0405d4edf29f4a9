from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.board.filtering import LONGEST, Comparison, Junction, Negation, parse
from drivetrain.spec.exits import Exit, Failure

RUN = {
    "name": ["llama-9m", "Mine"],
    "state": "trains",
    "optimizer.lr": 3e-4,
    "optimizer.kind": "adamw",
    "tag": ["a", "b"],
    "step": 1000,
    "exact": True,
    "dogs/bits": 1.5,
    "code": None,
    "init": "nan",
    "seed": 10**400,
    "label": "1_000",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("optimizer.lr > 1e-4", True),
        ("optimizer.lr>=0.0003", True),
        ("optimizer.lr < 1e-4", False),
        ("optimizer.lr = 0.0003", True),
        ("optimizer.kind = AdamW", True),
        ("optimizer.kind != sgd", True),
        ("optimizer.kind > 3", False),
        ("llama", True),
        ("mine", True),
        ("vocoder", False),
        ("name ~ 9M and state = trains", True),
        ("tag = b", True),
        ("tag !~ c", True),
        ("tag != a", False),
        ("exact = true", True),
        ("code = 0", False),
        ("code != 0", True),
        ("nothing = 1 or step = 1000", True),
        ("not (state = done or step < 10)", True),
        ("not state = trains", False),
        ("state = trains and (step < 10 or dogs/bits <= 1.5)", True),
        ('"and" or state = "trains"', True),
        ("init = nan", True),
        ("init != NaN", False),
        ("seed > 1e300", True),
        ("label = 1000", False),
        ("label = 1_000", True),
        ('name = "lla\\"ma"', False),
    ],
)
def test_a_filter_holds_of_a_run_or_not(text, holds):
    assert parse(text).holds(RUN.get) is holds


def test_the_keys_that_are_asked_for_are_known():
    assert list(parse("a.b > 1 and not (c = 2 or word)").keys()) == ["a.b", "c", "name"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("step >", 7),
        ("step > 3 and", 13),
        ("(step = 1", 10),
        ("step = 1)", 9),
        ("= 3", 1),
        ('name = "open', 8),
        ("a b", 3),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, place):
    with pytest.raises(Failure) as found:
        parse(text)
    assert found.value.outcome.code == Exit.BAD_COMMAND
    assert f"at character {place}:" in found.value.outcome.cause


@given(st.text(max_size=LONGEST + 10) | st.text('()=<>!~ "andornot\\1.', max_size=LONGEST + 10))
def test_no_text_does_worse_than_being_refused(text):
    with suppress(Failure):
        parse(text).holds(RUN.get)


def test_depth_is_bounded():
    with pytest.raises(Failure):
        parse("(" * 100 + "a" + ")" * 100)
    with pytest.raises(Failure):
        parse("not " * 100 + "a")


TEXTS = st.text('ab.7 /"\\()=!~é\n', max_size=6)
COMPARISONS = st.builds(Comparison, TEXTS, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "~", "!~"]), TEXTS)


def _larger(parts):
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Negation, parts) | st.builds(Junction, st.sampled_from(["and", "or"]), several)


def _written(one):
    if isinstance(one, Comparison):
        return f"{_quoted(one.key)} {one.operator} {_quoted(one.value)}"
    if isinstance(one, Negation):
        return f"not ({_written(one.part)})"
    return f" {one.word} ".join(f"({_written(part)})" for part in one.parts)


def _quoted(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(st.recursive(COMPARISONS, _larger, max_leaves=6))
def test_any_filter_can_be_written_and_is_read_as_it_was_meant(one):
    text = _written(one)
    if len(text) <= LONGEST:
        assert parse(text) == one
