"""Metrics of a user's own and torchmetrics', of a task and of a recipe, in whole runs."""

import json

import pytest

from conftest import trace
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord, EvaluationRecord
from drivetrain.spec.exits import Exit
from drivetrain.spec.installed import installed_kinds
from drivetrain.spec.load import load

pytest.importorskip("torchmetrics")
pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

RECIPE = {
    "task": {"kind": "mine_metrics:Told"},
    "data": {
        "train": {"sources": [{"kind": "mine_metrics:Spots", "count": 96}]},
        "validation": {"spots": {"kind": "mine_metrics:Spots", "count": 37}},
    },
    "exact": True,
    "evaluate": {"every": {"steps": 3}, "batch": 4},
    "budget": {"steps": 12},
    "schedule": {"kind": "constant"},
}
NAMED = {
    "f1": {"kind": "torchmetrics.classification:BinaryF1Score"},
    "accuracy": {"kind": "torchmetrics:Accuracy", "task": "multiclass", "num_classes": 2, "average": "micro"},
    "right": {"kind": "mine_metrics:Right", "scale": 100.0},
}
PLATEAU = {"kind": "plateau", "metric": "spots/f1", "mode": "max", "every": {"steps": 3}, "patience": 1, "factor": 0.5}


@pytest.fixture
def metrics(place):
    place.add("points", "metrics")

    def write(kind="Told", **sections):
        evaluate = RECIPE["evaluate"] | sections.pop("evaluate", {})
        place.write(**{**RECIPE, "task": {"kind": f"mine_metrics:{kind}"}, "evaluate": evaluate, **sections})

    place.recipe = write
    return place


def scores(run):
    return [record.metrics for record in read(run / "ledger.jsonl") if isinstance(record, EvaluationRecord)]


def test_metrics_of_a_recipe_are_the_same_on_one_and_two_processes_and_after_any_stop(metrics):
    metrics.recipe(evaluate={"metrics": NAMED}, schedule=PLATEAU)
    assert metrics.train("one") == Exit.DONE, metrics.err
    assert metrics.train("two", "launch.processes=2", "--steps", 4) == Exit.STOPPED, metrics.err
    assert metrics.train("two", "launch.processes=1", "--steps", 3) == Exit.STOPPED, metrics.err
    assert metrics.train("two", "launch.processes=2") == Exit.DONE, metrics.err
    assert trace(metrics.folder / "two") == trace(metrics.folder / "one")
    told = scores(metrics.folder / "one")
    assert scores(metrics.folder / "two") == told
    assert len(told) == 4
    assert {"loss", "f1", "accuracy", "right"} == told[0]["spots"].keys()
    assert all(found["spots"]["right"] == pytest.approx(100 * found["spots"]["accuracy"]) for found in told)
    assert len({found["spots"]["f1"] for found in told}) > 1


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_task_fills_of_torchmetrics_is_merged_in_the_order_of_the_lanes(metrics, exact):
    metrics.recipe("Filling", exact=exact)
    assert metrics.train("one") == Exit.DONE, metrics.err
    assert metrics.train("two", "launch.processes=2") == Exit.DONE, metrics.err
    one, two = (scores(metrics.folder / name)[-1]["spots"] for name in ("one", "two"))
    assert one.keys() == {
        *("loss", "f1", "auroc", "pearson", "mean", "called", "accuracy", "both.f1", "both.auroc"),
    }
    if exact:
        assert two == one
    assert two == pytest.approx(one, abs=1e-5)
    assert (one["both.f1"], one["both.auroc"]) == (one["f1"], one["auroc"])
    assert one["mean"] == pytest.approx(one["loss"], abs=1e-6)
    assert one["called"] > one["mean"]
    assert metrics("evaluate", "one", "--json") == 0, metrics.err
    assert json.loads(metrics.out)["metrics"]["spots"] == pytest.approx(one, abs=1e-6)


def test_scores_of_a_recipes_metric_keep_the_best_and_end_a_run(metrics):
    falling = {"falling": {"kind": "mine_metrics:Falling"}, "split": {"kind": "mine_metrics:Split"}}
    metrics.recipe(
        evaluate={"metrics": falling},
        stop={"patience": {"metric": "spots/falling", "mode": "max", "evaluations": 2}},
        checkpoint={"keep_best": {"metric": "spots/split.share", "mode": "max"}},
    )
    assert metrics.train("run") == Exit.DONE, metrics.err
    told = scores(metrics.folder / "run")
    assert len(told) == 3
    assert told[0]["spots"]["split.count.all"] == 37
    assert told[0]["spots"]["falling"] > told[1]["spots"]["falling"] > told[2]["spots"]["falling"]


@pytest.mark.parametrize(
    ("task", "named", "words"),
    [
        ("Unwritten", NAMED, "the task Unwritten has no evaluate, which evaluate.metrics.f1"),
        ("Silent", NAMED, "evaluate of the task Silent returns nothing, and evaluate.metrics.f1"),
        ("Bare", NAMED, "returns a Tensor and no tuple"),
        ("Told", {"loss": NAMED["f1"]}, "evaluate.metrics.loss: the task has a metric of this name"),
        (
            "Logits",
            {"f1": NAMED["f1"]},
            "f1 (torchmetrics.classification:BinaryF1Score) does not take",
        ),
        ("Hidden", {}, "the metric 'hidden', an Unmergeable, holds nothing that processes could merge"),
        (
            "Logits",
            {"each": {"kind": "torchmetrics.classification:MulticlassF1Score", "num_classes": 2, "average": None}},
            "the metric 'each' comes to a Tensor of shape [2], which is no single number",
        ),
    ],
)
def test_a_metric_that_cannot_be_had_is_78_before_the_first_step(metrics, task, named, words):
    metrics.recipe(task, evaluate={"metrics": named})
    assert metrics.train("run") == Exit.BAD_RECIPE
    assert words in metrics.err
    assert not (metrics.folder / "run" / "checkpoints").exists()


def test_a_metric_that_no_task_and_no_recipe_has_is_told_with_those_that_there_are(metrics):
    metrics.recipe(evaluate={"metrics": NAMED}, stop={"patience": {"metric": "spots/f2"}})
    assert metrics.train("run") == Exit.BAD_RECIPE
    assert "no metric 'f2'" in metrics.err
    assert "loss, f1, accuracy, right" in metrics.err


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"kind": "os:system"}, Exit.SECURITY, "a metric is a class that has update, and compute, add_state or state"),
        ({"kind": "mine_metrics:Unmergeable"}, Exit.SECURITY, "is no metric"),
        ({"kind": "mine_metrics:Right", "scael": 1.0}, Exit.BAD_RECIPE, "did you mean 'scale'"),
        ({"kind": "mine_metrics:Right", "scale": "x"}, Exit.BAD_RECIPE, "scale: Input should be a valid number"),
        ({"scale": 1.0}, Exit.BAD_RECIPE, "needs a kind: package.module:Name"),
        (3, Exit.BAD_RECIPE, "is a mapping with a kind"),
    ],
)
def test_what_is_no_metric_is_refused_by_recipe_check_with_its_place(metrics, settings, code, words):
    metrics.recipe(evaluate={"metrics": {"own": settings}})
    for command in (("recipe", "check", "own.json"), ("train", "own.json", "--run", "run")):
        assert metrics(*command) == code
        assert words in metrics.err
        assert "own.json" in metrics.err


def test_a_metric_makes_another_run_only_where_rates_follow_scores(metrics):
    def digest(**sections):
        metrics.recipe(**sections)
        assert metrics("recipe", "check", "own.json", "--json") == 0, metrics.err
        return json.loads(metrics.out)["digest"]

    named, more = {"f1": NAMED["f1"]}, {"f1": NAMED["f1"], "right": NAMED["right"]}
    assert digest(evaluate={"metrics": named}) == digest(evaluate={"metrics": more}) == digest()
    following = digest(evaluate={"metrics": named}, schedule=PLATEAU)
    assert following != digest(evaluate={"metrics": more}, schedule=PLATEAU)


def test_the_code_of_a_metric_counts_as_the_metric_does_and_diff_tells_it(metrics):
    (metrics.folder / "apart.py").write_text("from mine_metrics import Right\n\n\nclass Apart(Right):\n    pass\n")
    apart = {"apart": {"kind": "apart:Apart"}, "f1": NAMED["f1"]}
    for name, schedule, affects in (("still", RECIPE["schedule"], "cost"), ("following", PLATEAU, "bits")):
        metrics.recipe(evaluate={"metrics": apart}, schedule=schedule)
        assert metrics.train(name, "--steps", 1) == Exit.STOPPED, metrics.err
        (attempt,) = [one for one in read(metrics.folder / name / "ledger.jsonl") if isinstance(one, AttemptRecord)]
        assert attempt.user_code.files["apart.py"].affects == affects
    assert metrics.train("other", "--steps", 1, "evaluate.metrics.apart.scale=2.0") == Exit.STOPPED, metrics.err
    assert metrics("diff", "following", "other", "--no-data") == 0, metrics.err
    assert "evaluate.metrics.apart.scale" in metrics.out


def test_a_package_adds_a_metric_and_kinds_and_schema_have_it(metrics, monkeypatch):
    folder = metrics.folder / "adds_metrics-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: adds-metrics\nVersion: 1.5\n")
    (folder / "entry_points.txt").write_text("[drivetrain.metrics]\nright = mine_metrics:Right\n")
    monkeypatch.syspath_prepend(str(metrics.folder))
    installed_kinds.cache_clear()
    try:
        metrics.recipe(evaluate={"metrics": {"own": {"kind": "right", "scale": 10.0}}})
        tree = load(metrics.folder / "own.json").tree
        assert tree["evaluate"]["metrics"] == {"own": {"kind": "mine_metrics:Right", "scale": 10.0}}
        assert load(tree).tree == tree
        assert metrics("recipe", "kinds", "metric") == 0
        assert "right" in metrics.out
        assert "package.module:Name" in metrics.out
    finally:
        installed_kinds.cache_clear()
    assert metrics("recipe", "schema", "evaluate") == 0
    own = json.loads(metrics.out)["properties"]["metrics"]["additionalProperties"]
    assert own["required"] == ["kind"]
