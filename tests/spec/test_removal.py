"""`null` takes an entry by name out of the recipe below, and is a value everywhere else."""

import pytest
import yaml

from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes

SOURCE = {"kind": "adversarial:Ring", "size": 16}
BASE = {
    "name": "removal",
    "batch": {"size": 8},
    "budget": {"steps": 4},
    "task": {"kind": "adversarial:Gan"},
    "data": {
        "train": {"sources": [SOURCE]},
        "validation": {"dogs": SOURCE, "cats": SOURCE},
        "test": {"final": SOURCE},
    },
    "evaluate": {"every": {"steps": 5}},
    "networks": {"generator": {"start": 2}, "judge": {"freeze": False}},
    "optimizer": {"generator": {"lr": 1e-3}, "judge": {"lr": 1e-4}},
    "schedule": {"generator": {"kind": "cosine", "warmup": {"steps": 2}}, "judge": {"kind": "constant"}},
    "launch": {"targets": {"big": {"kind": "slurm"}, "small": {"kind": "local"}}},
}


@pytest.fixture
def over(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def load_over(upper, *overrides):
        (tmp_path / "upper.yaml").write_text(yaml.safe_dump({"base": "base.yaml"} | upper))
        return load(tmp_path / "upper.yaml", overrides).tree

    return load_over


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("data.validation.dogs", {"cats"}),
        ("data.test.final", set()),
        ("networks.judge", {"generator"}),
        ("optimizer.judge", {"generator"}),
        ("schedule.generator", {"judge"}),
        ("launch.targets.big", {"small"}),
    ],
)
@pytest.mark.parametrize("by", ["file", "command line"])
def test_null_takes_an_entry_by_name_out(over, path, left, by):
    upper: dict = {}
    overrides = []
    if by == "file":
        part = upper
        *above, last = path.split(".")
        for key in above:
            part = part.setdefault(key, {})
        part[last] = None
    else:
        overrides.append(f"{path}=null")
    tree = over(upper, *overrides)
    for key in path.split(".")[:-1]:
        tree = tree[key]
    assert tree.keys() == left


def test_an_entry_that_is_taken_out_may_be_given_anew_above(over, tmp_path):
    over({"data": {"validation": {"dogs": None}}})
    other = SOURCE | {"size": 8}
    (tmp_path / "top.yaml").write_text(yaml.safe_dump({"base": "upper.yaml", "data": {"validation": {"dogs": other}}}))
    assert load(tmp_path / "top.yaml").tree["data"]["validation"]["dogs"]["size"] == 8


def test_null_for_what_is_not_there_is_still_a_mistake(over):
    with pytest.raises(RecipeMistakes, match=r"data\.validation\.dgos"):
        over({"data": {"validation": {"dgos": None}}})


def test_null_stays_a_value_where_keys_are_settings(over):
    tree = over({"evaluate": {"every": None}, "schedule": {"generator": {"warmup": None}}})
    assert tree["evaluate"]["every"] is None
    assert tree["schedule"]["generator"]["warmup"] is None
