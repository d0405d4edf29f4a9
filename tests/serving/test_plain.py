"""Plain values and Arrow's: features that a service makes are those that training made."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.serving.arrays import BadValue, Ragged
from drivetrain.serving.features import FeatureSpec, encoded
from drivetrain.serving.plain import PlainColumns
from drivetrain.tasks.ranking.features import FeatureEncoder
from drivetrain.tasks.ranking.recipe import Feature, Ranking, Standard

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WHOLE = st.integers(-9, 9)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
FEATURES = {
    "hashed": Feature(column="text", hash=50),
    "worded": Feature(column="text", vocab=("a", "b", "é", "")),
    "counted": Feature(column="whole", hash=9),
    "bucket": Feature(column="natural", buckets=10),
    "stretch": Feature(column="float", boundaries=(-1.0, 0.0, 2.5)),
    "plain": Feature(column="float", normalize="identity", default=3.0),
    "log": Feature(column="natural", normalize="log1p"),
    "standard": Feature(column="whole", normalize=Standard(mean=0.5, std=2.0)),
    "crossed": Feature(cross=("text", "whole", "natural"), hash=77),
    "tags": Feature(column="texts", hash=50, length=2),
    "known": Feature(column="texts", vocab=("a", "b"), length=3),
    "weighted": Feature(column="naturals", buckets=10, length=2, weights="floats"),
    "wide": Feature(column="pair", normalize="identity", width=2),
}


def either(values):
    return st.one_of(st.none(), values)


@st.composite
def tables(draw):
    """Columns of as many rows as each other, those of lists and of their weights alike."""
    count = draw(st.integers(0, 6))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    lengths = column(st.integers(0, 4))
    naturals = [draw(st.lists(either(st.integers(0, 9)), min_size=length, max_size=length)) for length in lengths]
    weights = [draw(st.lists(FLOATS, min_size=length, max_size=length)) for length in lengths]
    return {
        "text": column(either(st.one_of(st.sampled_from(["a", "b", "é", ""]), TEXTS))),
        "whole": column(either(WHOLE)),
        "natural": column(either(st.integers(0, 9))),
        "float": column(either(FLOATS)),
        "texts": column(either(st.lists(either(st.sampled_from(["a", "b", "c", ""])), max_size=4))),
        "naturals": naturals,
        "floats": weights,
        "pair": column(either(st.tuples(FLOATS, FLOATS).map(list))),
    }


TYPES = {
    "text": pa.string(),
    "whole": pa.int64(),
    "natural": pa.int64(),
    "float": pa.float64(),
    "texts": pa.list_(pa.string()),
    "naturals": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
    "pair": pa.list_(pa.float64()),
}
ENCODER = FeatureEncoder(Ranking(features=FEATURES, labels={}), {}, labelled=False)
SPECS = {name: FeatureSpec.from_json(json.loads(json.dumps(spec.to_json()))) for name, spec in ENCODER.specs.items()}


def served(rows, specs=SPECS, nulls=()):
    wanted = {column for spec in specs.values() for column in spec.wanted()}
    return encoded(specs, PlainColumns(rows, wanted, nulls))


def require_same(found, other):
    assert found.keys() == other.keys()
    for key, column in found.items():
        pairs = zip(column, other[key], strict=True) if isinstance(column, Ragged) else [(column, other[key])]
        for one, another in pairs:
            assert one.dtype == another.dtype, key
            assert np.array_equal(one, another), key


@given(tables())
def test_a_service_makes_the_features_that_training_made(rows):
    arrow = pa.table({name: pa.array(values, TYPES[name]) for name, values in rows.items()})
    require_same(served(rows), ENCODER.encode(arrow))


@given(st.lists(either(st.sampled_from(["a", "b", "x|y", "||", ""])), max_size=5))
def test_texts_are_cut_into_lists_as_in_training(texts):
    features = {"x": Feature(hash=50, length=3, separator="|")}
    encoder = FeatureEncoder(Ranking(features=features, labels={}), {}, labelled=False)
    require_same(served({"x": texts}, encoder.specs), encoder.encode(pa.table({"x": pa.array(texts, pa.string())})))


MAPS = {
    "ids": Feature(column="m", map_key="k", separator="|", hash=50),
    "numbers": Feature(column="m", map_key="k", separator="|", normalize="identity", default=-1.0),
    "buckets": Feature(column="m", map_key="k", separator="|", buckets=90),
}


@given(st.lists(st.tuples(either(st.sampled_from(["", "a:1", "b:2|a:30", "c:4", ":5"])), either(TEXTS | st.just("a")))))
def test_the_value_of_a_maps_key_is_the_same_in_a_service(rows):
    encoder = FeatureEncoder(Ranking(features=MAPS, labels={}), {}, labelled=False)
    columns = {"m": [row[0] for row in rows], "k": [row[1] for row in rows]}
    arrow = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    require_same(served(columns, encoder.specs), encoder.encode(arrow))


def test_a_map_gives_the_value_of_its_key_and_nothing_where_it_has_none():
    encoder = FeatureEncoder(Ranking(features=MAPS, labels={}), {}, labelled=False)
    rows = {"m": ["a:1|b:2", "a:1", None, "x:9:9", "a:1"], "k": ["b", "b", "a", "y", None]}
    assert encoder.columns == {"m": "string", "k": "string"}
    found = encoder.encode(pa.table(rows))
    assert found["numbers.numbers"].tolist() == [2.0, -1.0, -1.0, -1.0, -1.0]
    assert found["ids.buckets"].tolist() == [3, 0, 0, 0, 0]
    for text, why in (("a:1|b", "is no map"), ("a:1|a:2", "has the key 'a' twice")):
        rows = {"m": ["a:1", text], "k": ["a", "a"]}
        for read in (lambda rows: served(rows, encoder.specs), lambda rows: encoder.encode(pa.table(rows))):
            with pytest.raises(BadValue, match=why) as raised:
                read(rows)
            assert (raised.value.row, raised.value.column) == (1, "m")


@pytest.mark.parametrize(
    "settings",
    [{}, {"separator": ":"}, {"separator": "|", "length": 2}, {"separator": "|", "normalize": "log1p", "width": 2}],
)
def test_a_map_has_a_separator_and_single_values(settings):
    settings = {"column": "m", "map_key": "k", **settings}
    if "normalize" not in settings:
        settings["hash"] = 9
    with pytest.raises(ValueError, match="map_key"):
        Feature(**settings)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, None], pa.bool_()),
        ([1, -5, None], pa.int32()),
        ([datetime.date(2024, 2, 29), None], pa.date32()),
    ],
)
def test_what_has_one_spelling_is_hashed_by_it(values, kind):
    spec = {"x": FeatureSpec(columns=("x",), hash=1000)}
    features = {"x": Feature(hash=1000)}
    encoder = FeatureEncoder(Ranking(features=features, labels={}), {}, labelled=False)
    require_same(served({"x": values}, spec), encoder.encode(pa.table({"x": pa.array(values, kind)})))


def test_numpys_columns_are_read_like_pythons():
    specs = {"b": FeatureSpec(columns=("n",), buckets=9), "n": FeatureSpec(columns=("n",), normalize="identity")}
    lists = {"l": FeatureSpec(columns=("l",), buckets=9, length=2)}
    require_same(served({"n": np.array([1, 2])}, specs), served({"n": [1, 2]}, specs))
    require_same(served({"l": [np.array([1, 2]), np.array([], int)]}, lists), served({"l": [[1, 2], []]}, lists))


def test_texts_that_stood_for_no_value_in_training_do_so_in_a_service():
    spec = {"x": FeatureSpec(columns=("x",), hash=1000)}
    assert served({"x": ["", "NA", "a"]}, spec, nulls=("", "NA"))["ids.x"].tolist()[:2] == [0, 0]
    assert 0 not in served({"x": ["", "NA", "a"]}, spec)["ids.x"]


@pytest.mark.parametrize(
    ("spec", "values", "row", "why"),
    [
        ({"buckets": 5}, [1, 5, 9], 1, r"5 is no id from 0 to 4 \(buckets: 5\)"),
        ({"buckets": 5}, [1, "two"], 1, "'two' is no whole number"),
        ({"buckets": 5}, [1, 2.5], 1, "2.5 is no whole number"),
        ({"buckets": 5}, [float("nan")], 0, "nan is no whole number"),
        ({"buckets": 5}, [1 << 70], 0, "is no whole number"),
        ({"normalize": "identity"}, [1.0, float("inf")], 1, "inf is no finite number"),
        ({"buckets": 5}, ["1", "9" * 5000], 1, "is no whole number"),
        ({"normalize": "identity"}, [1.0, 10**400], 1, "inf is no finite number"),
        ({"normalize": "identity"}, [1.0, np.complex64(1)], 1, "is no number"),
        ({"normalize": "identity"}, [1.0, 1e39], 1, r"1e\+39 is beyond the numbers of float32"),
        ({"hash": 9}, ["a", "\ud800"], 1, r"'\\ud800' is no text of Unicode"),
        ({"normalize": "identity"}, ["1", "x"], 1, "'x' is no number"),
        ({"normalize": "identity"}, [[1.0]], 0, r"\[1.0\] is no number"),
        ({"normalize": "log1p"}, [0.0, -1.0], 1, "log1p takes numbers above -1, not -1"),
        ({"hash": 9}, ["a", 0.5], 1, "0.5 is no text: of a float there are many spellings"),
        ({"hash": 9, "length": 2}, [["a"], "b"], 1, "'b' is no list, and the feature has no separator"),
        ({"hash": 9, "length": 2}, [["a"], 3], 1, "3 is no list"),
        ({"buckets": 5, "length": 3}, [[1, 2], [], [3, 5]], 2, "5 is no id"),
        ({"normalize": "identity", "width": 2}, [[1, 2], [3]], 1, "has 1 numbers, not 2"),
    ],
)
def test_a_value_that_is_none_is_told_with_its_row_and_column(spec, values, row, why):
    with pytest.raises(BadValue, match=why) as raised:
        served({"x": values}, {"f": FeatureSpec(columns=("x",), **spec)})
    assert (raised.value.row, raised.value.column) == (row, "x")


def test_columns_that_are_missing_or_of_other_lengths_are_told():
    specs = {"a": FeatureSpec(columns=("a",), hash=5), "b": FeatureSpec(columns=("b",), hash=5)}
    with pytest.raises(ValueError, match="no column 'b'; there are a, c"):
        served({"a": ["x"], "c": ["y"]}, specs)
    with pytest.raises(ValueError, match="different lengths"):
        served({"a": ["x"], "b": []}, specs)


@pytest.mark.parametrize(
    "given_",
    ["u1", b"u1", 7, None, {"u1"}, {"u1": 1}, np.array(7), iter(["u1"])],
    ids=lambda given: type(given).__name__,
)
def test_a_single_value_in_a_columns_place_is_told_with_its_column(given_):
    features = {"user": Feature(hash=9)}
    encoder = FeatureEncoder(Ranking(features=features, labels={}), {}, labelled=False)
    with pytest.raises(ValueError, match=r"column 'user' is .*, no list of values"):
        served({"user": given_}, encoder.specs)


@pytest.mark.parametrize("rows", [[{"user": "u1"}], "user", None], ids=str)
def test_rows_that_are_no_mapping_are_told(rows):
    with pytest.raises(ValueError, match="give a dict of lists"):
        PlainColumns(rows, ["user"], ())
