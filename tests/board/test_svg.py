"""Curves as one picture: well-formed whatever names say, with every extreme inside and what is void faint."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.board.svg import COLOURS, DASHES, Line, picture
from drivetrain.board.zoom import OPENS, VOID, Curve

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def curve(low, high=None, mean=None, flags=None, x=None):
    low = np.asarray(low, "f4")
    high = low if high is None else np.asarray(high, "f4")
    mean = low / 2 + high / 2 if mean is None else np.asarray(mean, "f4")
    flags = np.zeros(len(low), "u1") if flags is None else np.asarray(flags, "u1")
    x = np.arange(len(low), dtype="f8") if x is None else np.asarray(x, "f8")
    return Curve(x, low, high, mean, flags, exact=bool((low == high).all()))


def line_of(made, place=0, last=1.0):
    return Line(place, made, last)


def drawn(charts, heads=(), by="step"):
    return ElementTree.fromstring(picture(charts, heads, by))


def places(element):
    return np.array([part.split(",") for part in element.get("points").split()], dtype="f8")


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40))
def test_every_extreme_is_within_its_chart(bands):
    low, high = np.min(bands, axis=1), np.max(bands, axis=1)
    root = drawn({"train/loss": [line_of(curve(low, high))]})
    width, height = float(root.get("width")), float(root.get("height"))
    shapes = [*root.iter(f"{SVG}polygon"), *root.iter(f"{SVG}polyline")]
    assert shapes
    for shape in shapes:
        at = places(shape)
        assert np.isfinite(at).all()
        assert (at >= 0).all()
        assert (at[:, 0] <= width).all()
        assert (at[:, 1] <= height).all()


def test_a_spike_of_one_step_among_thousands_reaches_the_top():
    low, high = np.ones(300), np.ones(300)
    high[123] = 50.0
    root = drawn({"train/loss": [line_of(curve(low, high, mean=np.ones(300)))]})
    (band,) = root.iter(f"{SVG}polygon")
    (line,) = root.iter(f"{SVG}polyline")
    assert places(band)[:, 1].min() == 24.0
    assert places(line)[:, 1].min() > 100
    assert band.get("stroke")


def test_what_was_made_again_or_rolled_back_is_a_faint_stroke_of_its_own_and_the_rest_is_one_line():
    flags = [0, 0, VOID, VOID, OPENS, 0]
    root = drawn({"train/loss": [line_of(curve(np.arange(6.0), flags=flags))]})
    lines = [(len(places(line)), line.get("opacity")) for line in root.iter(f"{SVG}polyline")]
    assert lines == [(2, ".35"), (4, None)]


def test_a_flat_line_fills_no_chart():
    values = np.float32(0.1) + np.array([0, 1e-8, 0, 1e-8], "f4")
    root = drawn({"train/loss": [line_of(curve(values))]})
    (line,) = root.iter(f"{SVG}polyline")
    assert np.ptp(places(line)[:, 1]) < 2


def test_a_value_that_stands_alone_is_a_dot():
    root = drawn({"dogs/bits": [line_of(curve([2.5]))]})
    (dot,) = root.iter(f"{SVG}polyline")
    assert len(places(dot)) == 2
    assert dot.get("stroke-linecap") == "round"
    assert float(dot.get("stroke-width")) > 3


def test_above_a_chart_stand_the_newest_values_of_some_runs():
    few = drawn({"train/loss": [line_of(curve([9.0, 8.0]), place, float(place)) for place in range(4)]})
    assert "0, 1, 2, 3" in "".join(few.itertext())
    many = drawn({"train/loss": [line_of(curve([9.0, 8.0]), place, float(place)) for place in range(40)]})
    assert "0, 1, 2, 3, …" in "".join(many.itertext())


def test_a_chart_without_values_says_so():
    root = drawn({"dogs/bits": []})
    assert "no values yet" in [text.text for text in root.iter(f"{SVG}text")]


def test_56_runs_look_different():
    lines = [line_of(curve([1.0, 2.0]), place) for place in range(len(COLOURS) * len(DASHES))]
    root = drawn({"train/loss": lines})
    looks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in root.iter(f"{SVG}polyline")}
    assert len(looks) == len(lines) == 56


@pytest.mark.parametrize(
    "text", ["</title><script>x</script>", '"><image href="http://e/"/>', "&amp;\x1b[31m\x00", "\u202e"]
)
def test_names_that_look_like_markup_are_text(text):
    root = drawn({text: [line_of(curve([1.0]))]}, [text], by=text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "rect", "path", "text", "tspan", "g", "polyline", "polygon")
    }
    assert "\x1b" not in "".join(root.itertext())


@given(st.text(max_size=30))
def test_any_text_makes_a_picture_that_parses(text):
    drawn({text: [line_of(curve([1.0]))]}, [text], by=text)
