from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.board.filtering import LONGEST, parse
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
