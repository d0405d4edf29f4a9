import json
import random
import sys
from importlib.machinery import PathFinder

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from drivetrain.spec.affects import bits_digest, differences, settings_of
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.custom import Custom, build_custom, check_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load, shipped_names
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import KINDS, SECTIONS, imported
from drivetrain.spec.schema import recipe_schema
from drivetrain.spec.sections import _unsaid
from drivetrain.spec.show import STARTER, as_yaml
from drivetrain.spec.tree import RecipeMistakes


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_is_fine_and_round_trips(name):
    resolved = load(name)
    again = load(resolved.tree)
    assert again.recipe == resolved.recipe
    assert bits_digest(again.recipe) == bits_digest(resolved.recipe)


def test_the_starter_recipe_is_fine(tmp_path):
    (tmp_path / "new.yaml").write_text(STARTER)
    load(tmp_path / "new.yaml")


def test_json_is_a_recipe_too(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(load("quickstart").tree))
    assert load(tmp_path / "r.json").recipe == load("quickstart").recipe


def test_a_base_is_merged_below_and_lists_replace(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "base: quickstart\nname: mine\noptimizer: {lr: 1e-4}\ndata: {train: {sources: [{kind: text, path: x}]}}\n"
    )
    recipe = load(tmp_path / "r.yaml").recipe
    assert recipe.optimizer.lr == 1e-4
    assert recipe.optimizer.betas == (0.9, 0.95)
    assert [source.path for source in recipe.data.train.sources] == ["x"]


def test_recipes_that_build_on_each_other_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(RecipeMistakes, match="circle"):
        load(tmp_path / "a.yaml")


def test_switching_a_kind_drops_the_old_kinds_keys():
    assert load("quickstart", ["optimizer.kind=sgd"]).recipe.optimizer.lr == 1e-2
    recipe = load("quickstart", ["optimizer.momentum=0.9", "optimizer.kind=sgd"]).recipe
    assert recipe.optimizer.momentum == 0.9


def test_settings_that_go_with_their_kind_are_told_but_those_that_are_given_again():
    (note,) = load("quickstart", ["optimizer.kind=sgd", "optimizer.lr=0.1"]).notes
    dropped = note.partition(":")[0].split(", ")
    assert "optimizer.weight_decay" in dropped
    assert "optimizer.lr" not in dropped
    assert load("quickstart", ["optimizer={kind: sgd, lr: 0.1}"]).notes == []


def test_an_amount_in_another_unit_replaces_the_old_one():
    recipe = load("quickstart", ["budget.tokens=1.5M", "evaluate.every={samples: 10k}", "schedule.warmup=null"]).recipe
    assert recipe.budget.given == {"tokens": 1_500_000}
    assert recipe.evaluate.every.given == {"samples": 10_000}


def test_every_value_knows_where_it_comes_from(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("base: quickstart\nname: mine\noptimizer:\n  lr: 1e-4\n")
    origins = {key: str(origin) for key, origin in load(path, ["seed=3"]).origins.items()}
    assert origins["optimizer.lr"] == f"{path}:4"
    assert origins["seed"] == "command line: seed=3"
    assert origins["optimizer.eps"] == "default"
    assert origins["data.train.sources[0].context"] == "derived: task.model.context"
    assert origins["batch.size"].endswith("quickstart.yaml:" + origins["batch.size"].rpartition(":")[2])
    shown = as_yaml(load(path).tree, load(path).origins)
    assert "lr: 0.0001" in shown
    assert f"# {path}:4" in shown


def test_an_empty_override_takes_away_what_was_there():
    assert load("quickstart", ["data.validation={}"]).recipe.data.validation == {}


def test_networks_may_have_optimizers_and_schedules_of_their_own():
    tree = load("quickstart").tree | {"optimizer": {"g": {"lr": 1.0}, "d": {"kind": "sgd"}}}
    recipe = load(tree | {"schedule": {"warmup": {"steps": 5}}}).recipe
    assert sorted(recipe.optimizer) == ["d", "g"]
    assert recipe.schedule.warmup.steps == 5


def test_the_digest_follows_the_bits_only():
    digest = bits_digest(load("quickstart").recipe)
    for same in (
        "name=x",
        "watch.tensorboard=true",
        "launch.processes=2",
        "checkpoint.keep=9",
        "evaluate.every.steps=7",
    ):
        assert bits_digest(load("quickstart", [same]).recipe) == digest
    for other in ("seed=1", "optimizer.lr=0.1", "batch.size=32", "lanes=4", "data.train.sources[0].path=x"):
        assert bits_digest(load("quickstart", [other]).recipe) != digest


def test_differences_name_path_values_and_what_they_affect():
    changed = differences(load("quickstart").recipe, load("quickstart", ["seed=1", "launch.processes=2"]).recipe)
    assert [(c.path, c.old, c.new, c.affects) for c in changed] == [
        ("seed", 0, 1, "bits"),
        ("launch.processes", 1, 2, "cost"),
    ]


def test_every_field_of_every_settings_class_declares_what_it_affects():
    seen = set()

    def visit(cls):
        if cls in seen:
            return
        seen.add(cls)
        settings_of(cls)

    for path in [*SECTIONS.values(), *(p for kinds in KINDS.values() for p in kinds.values())]:
        visit(imported(path))
    visit(Recipe)
    assert len(seen) > 12


def test_the_schema_describes_every_section():
    schema = recipe_schema()
    assert schema["properties"]["batch"]["properties"]["size"]["affects"] == "bits"
    kinds = [option["properties"]["kind"].get("const") for option in schema["properties"]["optimizer"]["anyOf"][:2]]
    assert kinds == ["adamw", "sgd"]


def test_the_schema_describes_settings_inside_lists():
    ramp = recipe_schema()["properties"]["batch"]["properties"]["ramp"]["items"]["properties"]
    assert ramp["size"]["description"] == "samples per optimizer step from there on"
    for unit in ("steps", "samples", "tokens"):
        assert any("pattern" in option for option in ramp["from"]["properties"][unit]["anyOf"])
    group = recipe_schema()["properties"]["optimizer"]["anyOf"][0]["properties"]["groups"]["items"]["properties"]
    kinds = group["schedule"]["anyOf"][0]["oneOf"]
    assert all("description" in field for kind in kinds for field in kind["properties"].values())


@given(st.integers(1, 10**6), st.integers(1, 512), st.integers(1, 4096))
def test_amounts_in_tokens_are_exact(tokens, batch, context):
    samples = Amount(tokens=tokens).samples_at(Scale(Batches(batch), context))
    assert (samples - 1) * context < tokens <= samples * context


def test_a_billion_tokens_at_512_times_256_are_7630_steps():
    samples = Amount(tokens=10**9).samples_at(Scale(Batches(512), 256))
    assert -(-samples // 512) == 7630


@given(st.integers(1, 50), st.integers(0, 500), st.integers(1, 50))
def test_due_is_once_for_each_multiple(unit, start, width):
    amount, scale = Amount(samples=unit), Scale(Batches(1))
    assert amount.multiples(start + width, start + width, scale) == (start + width) // unit


@pytest.mark.parametrize("missing", ["nowhere.yaml", "no_such_recipe", "quickstrat"])
def test_c10_a_recipe_that_is_not_there_is_66(missing):
    with pytest.raises(Failure) as caught:
        load(missing)
    assert caught.value.outcome.code == Exit.INPUT_MISSING


class Mine:
    def __init__(self, width: int, names: tuple[str, ...] = (), *, rate: float = 0.1):
        self.width, self.names, self.rate = width, names, rate

    def networks(self): ...

    def loss(self, nets, batch): ...


def custom(**settings):
    return Custom(section="task", kind=f"{__name__}:Mine", settings=settings)


def test_a_users_component_gets_its_arguments(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Mine=Mine))
    built = build_custom(custom(width=3, names=["a"], rate=1))
    assert (built.width, built.names, built.rate) == (3, ("a",), 1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"widht": 3}, "did you mean 'width'"), ({}, "needs 'width'"), ({"width": "x"}, "valid integer")],
)
def test_a_users_component_with_wrong_settings_is_a_recipe_mistake(monkeypatch, settings, words):
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Mine=Mine))
    with pytest.raises(Failure) as caught:
        build_custom(custom(**settings))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert words in caught.value.outcome.cause


def test_a_wrong_argument_from_the_command_line_is_told_with_its_words(tmp_path):
    (tmp_path / "mine_with_width.py").write_text(
        "class Mine:\n    networks = loss = None\n    def __init__(self, width: int):\n        pass\n"
    )
    (tmp_path / "r.yaml").write_text("base: quickstart\ntask: {kind: 'mine_with_width:Mine', width: 3}\n")
    contexts = ["data.train.sources[0].context=16", "data.validation[*].context=16"]
    check_custom(load(tmp_path / "r.yaml", contexts).recipe.task)
    with pytest.raises(Failure) as caught:
        check_custom(load(tmp_path / "r.yaml", [*contexts, "task.width=x"]).recipe.task)
    assert caught.value.outcome.cause.startswith(
        "command line: task.width=x: task.width: mine_with_width:Mine: width: "
    )


@pytest.mark.parametrize(("kind", "words"), [("nowhere:Thing", "no module"), ("json:Thing", "has no 'Thing'")])
def test_a_users_component_that_is_not_there_is_a_recipe_mistake(kind, words):
    with pytest.raises(Failure) as caught:
        build_custom(Custom(section="task", kind=kind))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert words in caught.value.outcome.cause


def test_a_recipes_folder_stands_behind_pythons_own_modules_and_before_what_is_installed(tmp_path, monkeypatch):
    for name in ("random", "typer", "own_of_this_test"):
        (tmp_path / f"{name}.py").write_text("class Task:\n    networks = loss = None\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    build_custom(Custom(section="task", kind="own_of_this_test:Task", folder=str(tmp_path)))
    places = {name: PathFinder.find_spec(name).origin for name in ("random", "typer")}
    assert places["random"] == random.__file__
    assert places["typer"] == str(tmp_path / "typer.py")


@pytest.mark.parametrize("path", sorted({*SECTIONS.values(), *KINDS["optimizer"].values(), *KINDS["launch"].values()}))
def test_a_section_of_which_nothing_is_said_is_what_its_checked_defaults_are(path):
    cls = imported(path)
    try:
        checked = TypeAdapter(cls).validate_json("{}", strict=True)
    except ValidationError:
        checked = None
    assert _unsaid(cls) == checked


@pytest.mark.parametrize(("text", "tokens"), [("1.5B", 1_500_000_000), ("500M", 500_000_000), ("0.25M", 250_000)])
def test_galore_trainer_3_amounts_may_have_a_point_and_a_unit(text, tokens):
    recipe = load("llama-60m", [f"budget={{tokens: {text}}}", "schedule.warmup=null"]).recipe
    assert recipe.budget.tokens == tokens


def test_a_folder_that_is_called_as_a_shipped_recipe_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glue").mkdir()
    assert load("glue").recipe.name == "glue"


def test_a_folder_whose_ledger_came_from_a_mirror_says_how_to_go_on(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(Failure, match="is a folder, but no run directory"):
        load(tmp_path / "run")
    (tmp_path / "run" / "ledger.jsonl").write_text("")
    with pytest.raises(Failure, match="not its recipe, which a mirror does not keep") as caught:
        load(tmp_path / "run")
    assert caught.value.outcome.code is Exit.INPUT_MISSING
    assert f"drivetrain train RECIPE --run {tmp_path / 'run'}, with --override" in caught.value.outcome.hint
