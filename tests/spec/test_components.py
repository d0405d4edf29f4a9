"""What shipped kinds declare: a check that asks for something nobody declares any more would never find a mistake."""

import pytest

from drivetrain.spec import components
from drivetrain.spec.amount import Amount
from drivetrain.spec.registry import KINDS, imported
from drivetrain.tasks.ranking.recipe import Feature

ARGUMENTS = {
    "text": {"path": "x"},
    "tokens": {"path": "x"},
    "documents": {"path": "x"},
    "jsonl": {"path": "x"},
    "parquet": {"path": "x"},
    "datasets": {"path": "x"},
    "table": {"path": "x"},
    "classification": {"model": "m", "texts": ("a",)},
    "ranking": {"features": {"a": Feature(hash=9)}},
    "galore": {"lr": 1e-3},
    "adamw": {"lr": 1e-3},
    "wsd": {"decay": Amount(steps=2)},
    "plateau": {"metric": "a/loss", "every": Amount(steps=2)},
}
DECLARED = {
    ("task", "language_model"): {
        "CountsTokens",
        "KeepsDocuments",
        "SplitsLayers",
        "HasBlocks",
        "SharesPositions",
        "FindsMistakes",
        "Derives",
    },
    ("task", "classification"): {"Derives"},
    ("task", "speech"): {"ReadsKinds", "Derives"},
    ("task", "vocoder"): {"ReadsKinds", "Derives"},
    ("task", "enhancer"): {"ReadsKinds", "LoadsNetworks", "Derives"},
    ("task", "ranking"): {"ReadsKinds", "Nests", "FindsMistakes"},
    ("source", "text"): {"GivesTokens", "ReadsPart"},
    ("source", "tokens"): {"GivesTokens", "ReadsPart"},
    ("source", "documents"): {"GivesTokens", "ReadsPart"},
    ("source", "jsonl"): {"ReadsPart"},
    ("source", "parquet"): {"ReadsPart"},
    ("source", "datasets"): {"ReadsPart"},
    ("source", "table"): {"ReadsPart"},
    ("source", "glue"): {"ReadsPart"},
    ("source", "harmonics"): set(),
    ("optimizer", "adamw"): {"MovesLayers", "MovesParts"},
    ("optimizer", "galore"): {"MovesLayers", "MovesParts", "ProjectsGradients"},
    ("schedule", "constant"): {"WarmsUp"},
    ("schedule", "cosine"): {"WarmsUp", "HasLength"},
    ("schedule", "wsd"): {"WarmsUp", "HasLength", "Decays"},
    ("schedule", "plateau"): {"WarmsUp", "ReadsScores", "FollowsScore"},
}
ASKED = {
    "task": {
        *("ReadsKinds", "LoadsNetworks", "CountsTokens", "KeepsDocuments", "SplitsLayers", "Derives"),
        *("Nests", "FindsMistakes", "HasBlocks", "SharesPositions"),
    },
    "source": {"GivesTokens", "ReadsPart"},
    "optimizer": {"MovesLayers", "MovesParts", "ProjectsGradients"},
    "schedule": {"WarmsUp", "HasLength", "Decays", "ReadsScores", "FollowsScore"},
}
PROTOCOLS = {name: found for name, found in vars(components).items() if getattr(found, "_is_runtime_protocol", False)}


@pytest.mark.parametrize(("section", "kind"), DECLARED)
def test_a_kind_declares_what_a_recipe_is_checked_for(section, kind):
    settings = imported(KINDS[section][kind])(**ARGUMENTS.get(kind, {}))
    assert {name for name in ASKED[section] if isinstance(settings, PROTOCOLS[name])} == DECLARED[section, kind]


def test_every_protocol_has_a_kind():
    assert set().union(*DECLARED.values()) == set().union(*ASKED.values()) == PROTOCOLS.keys()


@pytest.mark.parametrize("kind", ["jsonl", "datasets", "text", "tokens"])
def test_another_cut_is_another(kind):
    make = imported(KINDS["source"][kind])
    other = {"holdout": 0.5} if kind == "text" else {"split": (0.5, 0.25, 0.25)}
    assert make(path="x", part="train").cut_by() == make(path="y", part="validation").cut_by()
    assert make(path="x").cut_by() != make(path="x", **other).cut_by()
