"""What `drivetrain recipe` prints."""

import json

import pytest

from drivetrain.cli.main import run
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.load import load, shipped_names


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("flags", [("--json",), (), ("--origin",)], ids=["json", "yaml", "origin"])
def test_the_recipe_that_show_prints_is_a_recipe_with_the_same_digest(name, flags, tmp_path, capsys):
    assert run(["recipe", "show", name, *flags]) == 0
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    assert run(["recipe", "check", str(again)]) == 0
    capsys.readouterr()
    assert bits_digest(load(again).recipe) == bits_digest(load(name).recipe)
    assert load(again).tree == load(name).tree


def test_with_origins_the_json_has_them_beside_the_recipe(capsys):
    assert run(["recipe", "show", "quickstart", "--json", "--origin"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recipe"] == load("quickstart").tree
    assert told["origins"]["optimizer.lr"]
