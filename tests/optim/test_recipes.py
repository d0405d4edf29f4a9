import pytest

from drivetrain.optim.recipe import Muon, WarmupStableDecay
from drivetrain.spec.load import load
from drivetrain.spec.registry import KINDS
from drivetrain.spec.schema import recipe_schema
from drivetrain.spec.tree import RecipeMistakes

NEEDED = {
    "cosine_restarts": "period: {steps: 100}",
    "wsd": "decay: {steps: 100}",
    "inverse_sqrt": "warmup: {steps: 10}",
    "exponential": "rate: 0.9, every: {epochs: 1}",
    "plateau": "metric: stdlib/loss, every: {steps: 50}",
    "steps": "milestones: [{at: {steps: 500}, factor: 0.1}]",
}


@pytest.mark.parametrize("kind", KINDS["optimizer"])
def test_every_kind_of_optimizer_is_read_and_written(kind):
    resolved = load("quickstart", [f"optimizer={{kind: {kind}}}"])
    assert resolved.recipe.optimizer.kind == kind
    assert load(resolved.tree).recipe == resolved.recipe


@pytest.mark.parametrize("kind", KINDS["schedule"])
def test_every_kind_of_schedule_is_read_and_written_for_networks_and_for_groups(kind):
    text = f"{{kind: {kind}, {NEEDED.get(kind, '')}}}"
    resolved = load("quickstart", [f"schedule={text}", f"optimizer.groups=[{{match: embed, schedule: {text}}}]"])
    assert resolved.recipe.schedule.kind == kind
    assert resolved.recipe.optimizer.groups[0].schedule.kind == kind
    assert load(resolved.tree).recipe == resolved.recipe


def test_amounts_are_written_as_everywhere():
    recipe = load(
        "quickstart",
        [
            "optimizer={kind: muon, weight_decay_schedule: {kind: cosine, end: 0.1, length: {tokens: 1.5M}}}",
            "schedule={kind: wsd, decay: {tokens: 100k}, length: {tokens: 1M}, shape: sqrt}",
            "budget={tokens: 2M}",
        ],
    ).recipe
    assert isinstance(recipe.optimizer, Muon)
    assert isinstance(recipe.schedule, WarmupStableDecay)
    assert recipe.optimizer.weight_decay_schedule.length.tokens == 1_500_000
    assert (recipe.schedule.decay.tokens, recipe.schedule.length.tokens) == (100_000, 1_000_000)


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        (["schedule={warmup: {steps: 1000}}"], "schedule.warmup", "1000 steps in a budget of 1000"),
        (
            ["schedule={kind: linear, warmup: {steps: 50}, length: {steps: 50}}"],
            "schedule.warmup",
            "in a length of 50",
        ),
        (
            ["schedule={kind: wsd, warmup: {steps: 500}, decay: {steps: 501}}"],
            "schedule.decay",
            "500 and a decay of 501 steps in a budget of 1000",
        ),
        (
            ["optimizer.groups=[{match: embed, schedule: {kind: constant, warmup: {steps: 1001}}}]"],
            "optimizer.groups[0].schedule.warmup",
            "1001 steps in a budget of 1000",
        ),
        (["schedule={kind: wsd, shape: exponential, decay: {steps: 5}}"], "schedule", "floor above zero"),
        (["schedule={kind: steps, milestones: []}"], "schedule.milestones", "at least 1 item"),
        (["schedule={kind: cosine_restarts, period: {steps: 0}}"], "schedule.period.steps", "greater than or equal"),
        (["optimizer={kind: adafactor, beta2_decay: 0.8}"], "optimizer.beta2_decay", "less than or equal to 0"),
        (
            ["optimizer.groups=[{match: embed, schedule: {kind: slow}}]"],
            "optimizer.groups[0].schedule",
            "'cosine_restarts'",
        ),
        (["optimizer.weight_decay_schedule={kind: linear, end: -1}"], "end", "greater than or equal to 0"),
    ],
)
def test_mistakes_are_told_with_their_place(overrides, path, words):
    with pytest.raises(RecipeMistakes) as caught:
        load("quickstart", overrides)
    assert any(path in str(mistake) and words in str(mistake) for mistake in caught.value.mistakes), str(caught.value)


def test_a_schedule_with_its_own_length_may_outlast_the_budget():
    overrides = ["schedule={kind: linear, warmup: {steps: 50}, length: {steps: 500}}", "budget.steps=20"]
    assert load("quickstart", overrides).recipe.schedule.length.steps == 500


def test_the_schema_describes_every_kind():
    options = recipe_schema()["properties"]["schedule"]["anyOf"]
    kinds = {option["properties"]["kind"].get("const"): option for option in options if "properties" in option}
    assert set(kinds) == {*KINDS["schedule"], None}  # one's own has any path
    assert {"warmup", "every"} <= kinds[None]["properties"].keys()
    assert kinds["cosine_restarts"]["properties"]["period"]["affects"] == "bits"
    assert set(kinds["cosine_restarts"]["required"]) == {"kind", "period"}
