"""Columns as arrays: what each kind of feature and label makes of values, and what is told of those that are none."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from drivetrain.data.columns import BadColumn, BadValue, Columns, Ragged
from drivetrain.data.hashing import hash_strings, rows_of
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import batch_of
from drivetrain.tasks.ranking.features import FeatureEncoder, table_of
from drivetrain.tasks.ranking.recipe import Feature, KeyedRows, Label, Ranking, Standard
from drivetrain.tasks.ranking.vocabularies import vocabularies


def encoder(labelled=True, **settings):
    settings = {"labels": {}, **settings}
    return FeatureEncoder(Ranking(**settings), {}, labelled=labelled)


def encoded(feature, labelled=True, **columns):
    return encoder(labelled, features={"x": feature}).encode(pa.table(columns))


def hashed(values, size):
    return (rows_of(hash_strings(pa.array(values)), size) + 1).tolist()


def test_whole_numbers_are_rows_behind_that_of_null():
    assert encoded(Feature(buckets=5), x=[0, 4, None])["ids.x"].tolist() == [1, 5, 0]
    assert encoded(Feature(buckets=5), x=["0", "4", None])["ids.x"].tolist() == [1, 5, 0]


@pytest.mark.parametrize(
    ("feature", "values", "row", "why"),
    [
        (Feature(buckets=5), [1, 5, 9], 1, r"5 is no id from 0 to 4 \(buckets: 5\)"),
        (Feature(buckets=5), [1, None, -1], 2, "-1 is no id"),
        (Feature(buckets=5), ["1", "two"], 1, "'two' is no whole number"),
        (Feature(normalize="identity"), [1.0, float("inf")], 1, "inf is no finite number"),
        (Feature(normalize="identity"), ["1", "x"], 1, "'x' is no number"),
        (Feature(normalize="log1p"), [0.0, -1.0], 1, "log1p takes numbers above -1, not -1"),
        (Feature(normalize="identity", width=2), [[1.0, 2.0], [3.0]], 1, "has 1 numbers, not 2"),
        (Feature(buckets=5, length=3), [[1, 2], [], [3, 5]], 2, "5 is no id"),
    ],
)
def test_a_value_that_is_none_is_told_with_its_row_and_column(feature, values, row, why):
    with pytest.raises(BadValue, match=why) as raised:
        encoded(feature, x=values)
    assert (raised.value.row, raised.value.column) == (row, "x")


def test_a_hash_is_the_same_of_a_dictionary_and_of_plain_text():
    values = ["b", None, "a", "b"]
    plain = encoded(Feature(hash=50), x=values)["ids.x"]
    assert plain.tolist() == [*hashed(["b"], 50), 0, *hashed(["a", "b"], 50)]
    dictionary = pa.array(values).dictionary_encode()
    assert np.array_equal(encoded(Feature(hash=50), x=dictionary)["ids.x"], plain)
    assert encoded(Feature(hash=50), x=pa.array([None, None], pa.string()).dictionary_encode())["ids.x"].tolist() == [
        0,
        0,
    ]


def test_keys_are_63_bits_of_the_hash_and_null_has_one_of_its_own():
    values = ["a", None, "b", "a"]
    found = encoded(Feature(keyed=KeyedRows(rows=128)), x=values)["ids.x"]
    hashes = hash_strings(pa.array(["a", "b"])) >> np.uint64(1)
    assert found.tolist() == [int(hashes[0]), 0, int(hashes[1]), int(hashes[0])]
    coded = encoded(Feature(keyed=KeyedRows(rows=128)), x=pa.array(values).dictionary_encode())["ids.x"]
    assert coded.tolist() == found.tolist()
    lists = encoded(Feature(keyed=KeyedRows(rows=128), length=2), x=[["a", "b", "c"], []])["ids.x"]
    assert lists.values.tolist() == [int(hashes[0]), int(hashes[1])]


def test_keys_are_crossed():
    both = Feature(keyed=KeyedRows(rows=128), cross=("x", "y"))
    found = encoded(both, x=["a", "b", None, "a"], y=["c", "c", None, "c"])["ids.x"].tolist()
    assert found[2] == 0
    assert found[0] == found[3] != found[1]
    assert min(found[0], found[1]) > 1 << 40


def test_when_a_key_gets_a_row_is_no_matter_of_data():
    few, many = (encoder(features={"x": Feature(keyed=KeyedRows(rows=rows))}) for rows in (128, 256))
    assert few.digest == many.digest
    assert few.digest != encoder(features={"x": Feature(hash=128)}).digest


def test_a_vocabulary_has_a_row_for_each_of_its_values_and_one_for_all_others(tmp_path):
    (tmp_path / "words").write_text("red\r\ngreen\nblue\n")
    for vocab in (str(tmp_path / "words"), ("red", "green", "blue")):
        found = encoded(Feature(vocab=vocab), x=["blue", "pink", None, "red"])
        assert found["ids.x"].tolist() == [4, 1, 0, 2]


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (None, Exit.INPUT_MISSING, "no vocabulary"),
        (b"", Exit.BAD_DATA, "has no line"),
        (b"a\nb\na\n", Exit.BAD_DATA, "words:3: 'a' is in line 1 already"),
        (b"\xff", Exit.BAD_DATA, "no UTF-8"),
    ],
)
def test_a_vocabulary_that_cannot_be_one_is_told(tmp_path, content, code, told):
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match=told) as raised:
        encoder(features={"x": Feature(vocab=str(path))})
    assert raised.value.outcome.code == code


def test_boundaries_make_ids_of_numbers():
    feature = Feature(boundaries=(18.0, 25.0))
    assert encoded(feature, x=[17.9, 18.0, 24.0, 25.0, None, float("nan")])["ids.x"].tolist() == [1, 2, 2, 3, 0, 0]


def test_numbers_are_normalized_and_what_is_missing_has_the_default():
    found = encoded(Feature(normalize=Standard(mean=10.0, std=2.0), default=10.0), x=[12.0, None])
    assert found["numbers.x"].tolist() == [1.0, 0.0]
    assert found["numbers.x"].dtype == np.float32
    assert encoded(Feature(normalize="log1p"), x=[0.0, np.e - 1])["numbers.x"] == pytest.approx([0, 1])
    wide = encoded(Feature(normalize="identity", width=2, default=-1.0), x=[[1.0, None], None])
    assert wide["numbers.x"].tolist() == [[1.0, -1.0], [-1.0, -1.0]]


def test_columns_are_crossed_in_their_order_and_null_is_a_value():
    feature = Feature(cross=("a", "b"), hash=1000)
    found = encoded(feature, a=["x", "y", "x", None, None], b=["y", "x", "y", "y", None])["ids.x"]
    assert found[0] == found[2] != found[1]
    assert found[3] not in (0, found[0])
    assert found[4] == 0


def test_lists_are_cut_to_their_length_and_empty_ones_have_no_id():
    feature = Feature(hash=9, length=2)
    rows = dict(zip("abc", hashed(["a", "b", "c"], 9), strict=True))
    found = encoded(feature, x=[["a", "b", "c"], [], None, ["c"]])["ids.x"]
    assert found.offsets.tolist() == [0, 2, 2, 2, 3]
    assert found.values.tolist() == [rows["a"], rows["b"], rows["c"]]
    split = encoded(Feature(hash=9, length=2, separator="|"), x=["a|b|c", "", None, "c"])["ids.x"]
    assert np.array_equal(split.values, found.values)
    assert np.array_equal(split.offsets, found.offsets)


def test_ids_have_weights_of_their_own():
    feature = Feature(hash=9, length=2, weights="w")
    found = encoded(feature, x=[["a", "b", "c"], []], w=[[1.0, 0.5, 9.0], []])
    assert found["id_weights.x"].values.tolist() == [1.0, 0.5]
    with pytest.raises(BadValue, match="has 1 weights for 2 ids of x"):
        encoded(feature, x=[["a", "b"]], w=[[1.0]])


@pytest.mark.parametrize(
    ("feature", "values", "why"),
    [
        (Feature(hash=9, length=2), [[["a"]]], "which are no text"),
        (Feature(hash=9, length=2), [[{"a": 1}]], "which are no text"),
        (Feature(hash=9, length=2), [[1.5]], "double, which cannot be read as string"),
        (Feature(normalize="identity"), [["a"]], "which are no number"),
    ],
)
def test_lists_of_what_a_feature_cannot_be_are_told_with_their_column(feature, values, why):
    with pytest.raises(BadColumn, match=f"column 'x' has values of .*{why}"):
        encoded(feature, x=values)


def test_bytes_in_lists_are_texts_or_told_with_their_row():
    feature = Feature(hash=9, length=2)
    assert encoded(feature, x=[[b"a"], [b"b"]])["ids.x"].values.tolist() == hashed(["a", "b"], 9)
    with pytest.raises(BadValue, match="row 1: column 'x'"):
        encoded(feature, x=[[b"a"], [b"\xff"]])


def test_a_column_without_a_name_is_one():
    assert encoder(features={"x": Feature(hash=9, column="")}).columns == {"": "string"}
    assert encoder(features={}, labels={"y": Label(column="")}).columns == {"": "number"}


def test_text_without_a_separator_is_no_list():
    with pytest.raises(Failure, match="give the feature a separator"):
        encoded(Feature(hash=9, length=2), x=["a b"])


@pytest.mark.parametrize(
    ("label", "values", "wanted"),
    [
        (Label(), [0, 1], [0, 1]),
        (Label(at_least=4.0), [3, 4, 5], [0, 1, 1]),
        (Label(loss="softmax", classes=3), [2, 0], [2, 0]),
        (Label(loss="mse"), [1.5, -2.0], [1.5, -2.0]),
        (Label(optional=True), [1, None], [1, np.nan]),
    ],
)
def test_labels_are_what_their_loss_learns(label, values, wanted):
    made = encoder(features={"x": Feature(buckets=2)}, labels={"y": label})
    found = made.encode(pa.table({"x": [0] * len(values), "y": pa.array(values, pa.float64())}))["labels.y"]
    assert np.array_equal(found, np.array(wanted, np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("label", "value", "why"),
    [
        (Label(), 2, "2 is neither 0 nor 1; at_least makes yes or no"),
        (Label(), None, "has no value; `optional: true`"),
        (Label(loss="softmax", classes=3), 3, "3 is no class from 0 to 2"),
        (Label(loss="softmax", classes=3), 0.5, "0.5 is no class"),
    ],
)
def test_a_label_that_its_loss_cannot_learn_is_told(label, value, why):
    made = encoder(features={"x": Feature(buckets=2)}, labels={"y": label})
    with pytest.raises(BadValue, match=why) as raised:
        made.encode(pa.table({"x": [0, 0], "y": pa.array([0, value], pa.float64())}))
    assert raised.value.row == 1


def test_samples_have_weights_and_groups():
    made = encoder(features={"x": Feature(buckets=2)}, sample_weight="w", group="x")
    found = made.encode(pa.table({"x": ["0", "1", "1"], "w": [1.0, 0.0, 2.5]}))
    assert found["sample_weights"].tolist() == [1.0, 0.0, 2.5]
    groups = found["groups"]
    assert groups[1] == groups[2] != groups[0]
    assert (groups.astype(np.float64).astype(np.int64) == groups).all()
    with pytest.raises(BadValue, match="-1 is no weight"):
        made.encode(pa.table({"x": ["0"], "w": [-1.0]}))


def test_a_column_that_is_read_in_two_ways_comes_as_text():
    made = encoder(features={"x": Feature(buckets=9), "y": Feature(hash=9, column="x")})
    assert made.columns == {"x": "string"}
    found = made.encode(pa.table({"x": ["3", "4"]}))
    assert found["ids.x"].tolist() == [4, 5]
    assert found["ids.y"].tolist() == hashed(["3", "4"], 9)
    with pytest.raises(Failure, match="as lists and as single values"):
        encoder(features={"x": Feature(buckets=9), "y": Feature(hash=9, column="x", length=2)})


def test_columns_say_how_they_are_read():
    made = encoder(
        features={
            "a": Feature(buckets=2),
            "b": Feature(normalize="identity"),
            "c": Feature(hash=2, length=2, weights="w"),
            "d": Feature(cross=("e", "f"), hash=4),
        },
        labels={"y": Label(column="label")},
    )
    assert made.columns == {
        "a": "integer", "b": "number", "c": "list", "w": "list", "e": "string", "f": "string", "label": "number",
    }  # fmt: skip


def test_predictions_are_made_of_the_same_arrays_without_labels():
    settings = {"features": {"x": Feature(hash=9)}, "labels": {"y": Label()}, "sample_weight": "w"}
    trained, predicted = encoder(**settings), encoder(labelled=False, **settings)
    table = pa.table({"x": ["a", "b"], "y": [0, 1], "w": [1, 1]})
    assert predicted.columns == {"x": "string"}
    found = predicted.encode(table.select(["x"]))
    assert found.keys() == {"ids.x"}
    assert np.array_equal(found["ids.x"], trained.encode(table)["ids.x"])


def test_the_digest_follows_what_decides_the_arrays_and_nothing_else(tmp_path):
    (tmp_path / "words").write_text("a\n")
    vocab = str(tmp_path / "words")
    first = encoder(features={"x": Feature(vocab=vocab)}).digest
    assert encoder(features={"x": Feature(vocab=vocab, dim=3, table="t")}).digest == first
    assert encoder(features={"x": Feature(vocab=vocab, column="z")}).digest != first
    (tmp_path / "words").write_text("a\nb\n")
    assert encoder(features={"x": Feature(vocab=vocab)}).digest != first


def test_an_encoder_can_be_sent_to_another_process():
    made = encoder(features={"x": Feature(hash=9)})
    again = pickle.loads(pickle.dumps(made))
    table = pa.table({"x": ["a"]})
    assert np.array_equal(made.encode(table)["ids.x"], again.encode(table)["ids.x"])
    assert again.digest == made.digest


def test_tables_have_a_row_for_each_value_and_for_null():
    features = {
        "a": Feature(buckets=5, dim=3),
        "b": Feature(hash=7),
        "c": Feature(vocab=("x", "y"), table="shared"),
        "d": Feature(boundaries=(1.0, 2.0)),
    }
    settings, words = Ranking(features=features, dim=4), vocabularies(features)
    tables = [table_of(settings, name, words.get(name, ())) for name in features]
    assert [(table.name, table.rows, table.dim) for table in tables] == [
        ("a", 6, 3), ("b", 8, 4), ("shared", 4, 4), ("d", 4, 4),
    ]  # fmt: skip


def test_a_batch_pads_lists_and_counts_candidates():
    arrays = {
        "row": np.arange(2),
        "ids.a": np.array([3, 4]),
        "ids.b": Ragged(np.array([5, 6, 7]), np.array([0, 1, 3])),
        "id_weights.b": Ragged(np.array([1, 2, 3], np.float32), np.array([0, 1, 3])),
        "ids.c": np.array([1, 2, 3, 4]),
        "ids.d": Ragged(np.array([9, 8, 7]), np.array([0, 2, 2, 3, 3])),
        "numbers.e": np.array([1, 2, 3, 4], np.float32),
    }
    batch = batch_of(Columns(arrays), candidates=("c", "d", "e"))
    assert batch["ids"]["a"].tolist() == [3, 4]
    assert batch["ids"]["b"].tolist() == [[5, -1], [6, 7]]
    assert batch["id_weights"]["b"].tolist() == [[1, 0], [2, 3]]
    assert batch["ids"]["c"].tolist() == [[1, 2], [3, 4]]
    assert batch["ids"]["d"].tolist() == [[9, 8, -1, -1], [7, -1, -1, -1]]
    assert batch["numbers"]["e"].tolist() == [[1, 2], [3, 4]]


def test_a_batch_of_empty_lists_has_one_place_for_none():
    arrays = {"row": np.arange(2), "ids.b": Ragged(np.array([], np.int64), np.array([0, 0, 0]))}
    assert batch_of(Columns(arrays))["ids"]["b"].tolist() == [[-1], [-1]]
