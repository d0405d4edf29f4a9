"""The edit JSON of TorchEasyRec: its whole grammar, and what failed there or did nothing without a word."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelines
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.easyrec.edits import edit
from drivetrain.spec.importing.easyrec.schema import ROOT
from drivetrain.spec.importing.easyrec.tree import Binder, Node
from drivetrain.spec.prototext import read_message

RATE = "train_config.dense_optimizer.adam_optimizer.lr"
DENSE = "train_config.dense_optimizer"
EXPONENTIAL = f"{DENSE}.exponential_decay_learning_rate"


def root():
    mistakes = []
    found = Binder("p.config", mistakes).node(read_message(pipelines.SMALL), ROOT)
    assert mistakes == []
    return found


def at(node, path):
    """The value at a path of names and places: a scalar, a list of them, or a message."""
    for part in path.split("."):
        name, _, place = part.partition("[")
        values = node.fields.get(name, [])
        node = values[int(place[:-1])] if place else (values[0] if values else None)
        if node is None:
            return None
    return node if isinstance(node, Node) else node.value


def edited(edits):
    found = root()
    edit(found, edits if isinstance(edits, str) else json.dumps(edits))
    return found


@pytest.mark.parametrize(
    ("edits", "path", "value"),
    [
        ({"train_config.num_epochs": 5}, "train_config.num_epochs", 5),
        ({"train_config.num_epochs": "5"}, "train_config.num_epochs", 5),
        ({"train_config.num_epochs": "1e3"}, "train_config.num_epochs", 1000),
        ({"train_config.num_epochs": 1e3}, "train_config.num_epochs", 1000),
        ({RATE: "1e-2"}, RATE, 0.01),
        ({RATE: 1}, RATE, 1.0),
        ({"model_dir": "elsewhere"}, "model_dir", "elsewhere"),
        ({"model_dir": 7}, "model_dir", "7"),
        ({"model_dir": "a;b"}, "model_dir", "a;b"),
        ({"data_config.shuffle": True}, "data_config.shuffle", True),
        ({"data_config.shuffle": "True"}, "data_config.shuffle", True),
        ({"data_config.shuffle": 1}, "data_config.shuffle", True),
        ({"data_config.shuffle": "false"}, "data_config.shuffle", False),
        ({"data_config.fg_mode": "FG_NONE"}, "data_config.fg_mode", "FG_NONE"),
        ({"data_config.fg_mode": 2}, "data_config.fg_mode", "FG_NORMAL"),
        ({"feature_configs[0].id_feature.embedding_dim": 4}, "feature_configs[0].id_feature.embedding_dim", 4),
        ({"feature_configs[-2].id_feature.embedding_dim": 4}, "feature_configs[1].id_feature.embedding_dim", 4),
        ({"feature_configs[0:2].id_feature.embedding_dim": 4}, "feature_configs[1].id_feature.embedding_dim", 4),
        ({"feature_configs[:2].id_feature.embedding_dim": 4}, "feature_configs[0].id_feature.embedding_dim", 4),
        (
            {"feature_configs[id_feature.feature_name=item].id_feature.embedding_dim": 4},
            "feature_configs[1].id_feature.embedding_dim",
            4,
        ),
        (
            {"feature_configs[id_feature.embedding_dim>=8].id_feature.embedding_dim": 4},
            "feature_configs[1].id_feature.embedding_dim",
            4,
        ),
        (
            {"feature_configs[id_feature.num_buckets<50].id_feature.embedding_dim": 4},
            "feature_configs[0].id_feature.embedding_dim",
            4,
        ),
        ({"model_config.feature_groups[0].group_name": "x"}, "model_config.feature_groups[0].group_name", "x"),
        (
            {"model_config.feature_groups[0].feature_names[1]": "x"},
            "model_config.feature_groups[0].feature_names[1]",
            "x",
        ),
        ({"train_config.grad_clipping.max_gradient": 2}, "train_config.grad_clipping.max_gradient", 2.0),
        ({EXPONENTIAL: "{decay_size: 5}"}, f"{EXPONENTIAL}.decay_size", 5),
        ({EXPONENTIAL: "decay_size: 5"}, f"{EXPONENTIAL}.decay_size", 5),
        ({EXPONENTIAL: {"decay_size": 5}}, f"{EXPONENTIAL}.decay_size", 5),
        (
            {"feature_configs[1]": {"id_feature": {"featureName": "x"}}},
            "feature_configs[1].id_feature.feature_name",
            "x",
        ),
    ],
)
def test_an_edit_sets_a_value(edits, path, value):
    assert at(edited(edits), path) == value


@pytest.mark.parametrize(
    ("given_", "expected"),
    [([4, 5, 6], [4, 5, 6]), ("[4,5,6]", [4, 5, 6]), ("7", [7]), (8, [8]), ([], []), ("[]", [])],
)
def test_a_list_is_set_as_a_whole(given_, expected):
    found = edited({"model_config.deepfm.deep.hidden_units": given_})
    assert found.node("model_config").node("deepfm").node("deep").values("hidden_units") == expected


def test_a_list_of_messages_is_set_as_a_whole():
    for given_ in ([{"auc": {}}, {"xauc": {}}], "[{auc {}}, {xauc {}}]"):
        metrics = edited({"model_config.metrics": given_}).node("model_config").nodes("metrics")
        assert [each.chosen("metric") for each in metrics] == ["auc", "xauc"]


def test_all_that_match_are_edited():
    found = edited({"feature_configs[id_feature.embedding_dim=8].id_feature.embedding_dim": 16})
    dims = [each.node("id_feature").value("embedding_dim") for each in found.nodes("feature_configs")[:2]]
    assert dims == [16, 16]


@pytest.mark.parametrize(
    "edits",
    [
        {f"train_config.num_epochs;{RATE}": "3;0.5"},
        {f"train_config.num_epochs; {RATE}": "3; 0.5"},
        {f"train_config.num_epochs;{RATE}": [3, 0.5]},
        {"train_config.num_epochs": 3, RATE: 0.5},
    ],
)
def test_several_keys_have_as_many_values(edits):
    found = edited(edits)
    assert (at(found, "train_config.num_epochs"), at(found, RATE)) == (3, 0.5)


def test_semicolons_in_brackets_and_messages_split_nothing():
    key = "feature_configs[id_feature.feature_name=item].id_feature;model_dir"
    found = edited({key: "{feature_name: 'a;b'; num_buckets: 3};x"})
    assert at(found, "feature_configs[1].id_feature.feature_name") == "a;b"
    assert at(found, "model_dir") == "x"


def test_a_whole_message_takes_the_place_of_another_one_of_its_group():
    found = edited({EXPONENTIAL: {"decay_size": 5}})
    assert (
        found.node("train_config").node("dense_optimizer").chosen("learning_rate") == "exponential_decay_learning_rate"
    )
    assert not found.node("train_config").node("dense_optimizer").has("constant_learning_rate")


def test_a_later_edit_sees_an_earlier_one():
    edits = {
        "feature_configs[id_feature.feature_name=item].id_feature.feature_name": "thing",
        "feature_configs[id_feature.feature_name=thing].id_feature.embedding_dim": 2,
    }
    assert at(edited(edits), "feature_configs[1].id_feature.embedding_dim") == 2


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ({"feature_configs[id_feature.feature_name=nobody].id_feature.embedding_dim": 1}, "matches none of its 3"),
        ({"feature_configs[5:9].id_feature.embedding_dim": 1}, "matches none of its 3"),
        ({"feature_configs[3].id_feature.embedding_dim": 1}, "there are 3"),
        ({"feature_configs[:].id_feature.embedding_dim": 1}, "it is a raw_feature, not a id_feature"),
        ({f"{EXPONENTIAL}.decay_size": 5}, "it is a constant_learning_rate"),
        ({"feature_configs.id_feature.embedding_dim": 1}, "say which, as feature_configs[0], [1:3] or [:]"),
        ({"a;b": "1;2;3"}, "2 keys and 3 values"),
        ({"train_config.num_epochs;model_dir": "1"}, "2 keys and 1 values"),
        ({"train_config.num_epochs;model_dir": 1}, "2 keys take a text"),
        ({"train_config.num_epochs": None}, "null takes nothing away"),
        ({"train_config.num_epochs": "many"}, "is a number (uint32), not many"),
        ({"train_config.num_epochs": 1.5}, "is a whole number"),
        ({"train_config.num_epochs": {"x": 1}}, "has no fields or items"),
        ({"data_config.shuffle": "yes"}, "is true or false, not yes"),
        ({"data_config.fg_mode": "FG_DOG"}, "did you mean 'FG_DAG'"),
        ({"train_config.num_epoch": 1}, "has no field 'num_epoch'; did you mean 'num_epochs'"),
        ({"train_config.num_epochs.x": 1}, "num_epochs is a uint32, which has no fields"),
        ({"train_config[0].num_epochs": 1}, "is one message, not several"),
        ({"train_config.num_epochs[0]": 1}, "num_epochs has one value"),
        ({EXPONENTIAL: {"decay": 5}}, "exponential_decay_learning_rate.decay: "),
        ({EXPONENTIAL: "decay_size 5"}, "is no text of a message"),
        ({EXPONENTIAL: 5}, "is a message: give an object, or its text"),
        ({"feature_configs[id_feature=1].id_feature.embedding_dim": 1}, "is a message: compare one of its fields"),
        ({"feature_configs[id_feature.bogus=1].id_feature.embedding_dim": 1}, "has no field 'bogus'"),
        ({"feature_configs[id_feature.embedding_dim>a].id_feature.embedding_dim": 1}, "is a number"),
        ({"feature_configs[x].id_feature.embedding_dim": 1}, "is no index, no slice and no condition"),
        ({"model_config.deepfm.deep.hidden_units[hidden_units>3]": 1}, "has values without fields"),
        ({"train_config..num_epochs": 1}, "is no name"),
        ({RATE: "nan"}, "is a finite number"),
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ('{"model_dir": "a", "model_dir": "b"}', "is given twice"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(edits, told):
    with pytest.raises(Failure) as raised:
        edited(edits)
    assert raised.value.outcome.code == Exit.BAD_COMMAND
    assert told in raised.value.outcome.cause


@given(st.text(), st.one_of(st.none(), st.text(), st.integers(), st.floats(allow_nan=False), st.lists(st.integers())))
def test_any_edit_fits_or_is_told_not_to(key, value):
    failure = pipelines.failure_of(lambda: edited({key: value}))
    assert failure is None or failure.outcome.code == Exit.BAD_COMMAND
