"""Training of a ranking model with tables of its own, with all that goes with it in one run, stopped and not."""

import gzip
import json
import math

import pytest
import torch

import drivetrain
from conftest import run_under_supervisor, tensors, trace
from drivetrain.data.opening import open_source
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from tasks.test_ranking_task import recipe

pytestmark = [pytest.mark.xdist_group("meshes"), pytest.mark.timeout(300)]

PEAK, ROWS = 0.02, 0.1


def of_kind(run, kind):
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


def everything(**more):
    """Eighty steps with schedules of layers and rows, accumulation, averaged layers, training scores, statistics, a
    profile, the best commit, and patience that lasts."""
    return recipe() | {
        "exact": True,
        "batch": {"size": 32, "micro": 4},
        "budget": {"steps": 80},
        "optimizer": {"kind": "adamw", "lr": PEAK},
        "schedule": {
            "kind": "cosine_restarts",
            "period": {"steps": 10},
            "multiplier": 3,
            "warmup": {"steps": 5},
            "warmup_from": 0.5,
            "read_at": "step_start",
        },
        "embeddings": {
            "optimizer": {"kind": "adagrad", "lr": ROWS},
            "schedule": {"kind": "exponential", "rate": 0.5, "every": {"epochs": 2}, "read_at": "epoch_start"},
            "groups": [{"match": "^user$", "optimizer": {"kind": "sgd", "lr": 0.3}, "schedule": {"kind": "constant"}}],
        },
        "evaluate": {"every": {"steps": 20}, "batch": 16, "training": {"every": {"steps": 4}, "decay": 0.8}},
        "checkpoint": {
            "every": {"steps": 20},
            "keep": 1,
            "keep_best": {"metric": "clicks/auc", "mode": "max"},
        },
        "stop": {"patience": {"metric": "clicks/auc", "mode": "max", "evaluations": 9}},
        "average": {"decay": 0.9, "evaluate": False},
        "statistics": {"every": {"steps": 20}, "gradients": False, "histograms": True},
        **more,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Eighty steps without a stop."""
    run = tmp_path_factory.mktemp("whole") / "run"
    drivetrain.train(everything(profile={"start": 7, "steps": 2}), run=run, progress=False)
    return run


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Forty and forty steps, the second ones with worker processes; nobody looks on."""
    run = tmp_path_factory.mktemp("halves") / "run"
    assert drivetrain.train(everything(), ["stop.at=[40]"], run=run, progress=False).step == 40
    assert drivetrain.train(everything(), ["data.train.workers=2"], run=run, progress=False).step == 80
    return run


def test_forty_and_forty_steps_are_eighty_with_all_rates_and_scores(whole, halves):
    assert trace(halves) == trace(whole)  # weights, rows, their state, losses, norms, rates, samples
    for kind, fields in (("evaluation", ["metrics"]), ("training", ["step", "metrics", "means"])):
        found, wanted = of_kind(halves, kind), of_kind(whole, kind)
        assert [[each[name] for name in fields] for each in found] == [[e[name] for name in fields] for e in wanted]


def test_layers_and_rows_follow_the_closed_forms_of_their_schedules(whole, tmp_path):
    rates = [record["lr"] for record in steps(lineage(read(whole / "ledger.jsonl")))]
    assert [set(each) for each in rates] == [{"model", "model/device", "model/user"}] * 80
    (source,) = load(everything()).recipe.data.train.sources
    epoch = len(open_source(source, 0, tmp_path / "sources.json"))

    def cosine(t):
        if t < 5:
            return 0.5 + 0.1 * t
        t, length = t - 5, 10
        while t >= length:
            t, length = t - length, 3 * length
        return (1 + math.cos(math.pi * t / length)) / 2

    assert [each["model"] for each in rates] == pytest.approx([PEAK * cosine(t) for t in range(80)])
    wanted = [ROWS * 0.5 ** (32 * t // epoch * 0.5) for t in range(80)]
    assert [each["model/device"] for each in rates] == pytest.approx(wanted)
    assert {each["model/user"] for each in rates} == {0.3}


def test_training_samples_are_scored_before_they_are_learned_from(whole):
    """Without dropout their loss is the step's own, and the running means are a function of the scores."""
    scored, made = of_kind(whole, "training"), {each["step"]: each for each in of_kind(whole, "step")}
    assert [each["step"] for each in scored] == list(range(4, 81, 4))
    total = weight = 0.0
    for each in scored:
        step = made[each["step"]]
        assert each["position"] == step["start"]
        assert each["metrics"]["loss"] == pytest.approx(step["losses"]["loss"], rel=1e-6)
        total, weight = 0.8 * total + each["metrics"]["auc"], 0.8 * weight + 1
        assert each["means"]["auc"] == total / weight


@pytest.mark.usefixtures("forked", "importable")
def test_two_and_three_processes_come_to_the_same_bits_and_scores(whole, tmp_path):
    """Three cannot be exact: they score what stands still, by what goes by order, as one process does."""
    still = {"optimizer": {"kind": "sgd", "lr": 0.0}, "embeddings": {"optimizer": {"kind": "sgd", "lr": 0.0}}}
    third = everything(exact=False, lanes=6, batch={"size": 24, "micro": 4}, **still)
    for name, given, asked in (
        ("2", everything(), 2),
        ("1 of 3", third, 1),
        ("3", third, 3),
    ):
        outcome = run_under_supervisor(given, tmp_path / name, f"launch.processes={asked}", most_steps=20)
        assert outcome.code is Exit.STOPPED, outcome.cause
    exact = [[e["metrics"] for e in scored(run)] for run in (whole, tmp_path / "2")]
    assert exact[0] == exact[1]
    assert len(exact[1]) == 6  # five of training, one of validation
    still = [[_auc(e["metrics"]) for e in scored(tmp_path / run)] for run in ("1 of 3", "3")]
    assert still[0] == still[1]
    losses = [[e["losses"] for e in of_kind(run, "step")[:20]] for run in (whole, tmp_path / "2")]
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("forked", "importable")
def test_a_last_step_with_samples_for_one_rank_only_is_scored_on_both(tmp_path):
    """Rows lie on both: the rank without samples makes passes of no weight."""
    alone = {"training": {"every": {"steps": 1}}}
    ragged = everything(exact=False, schedule={"kind": "constant"}, budget={"samples": 70}, evaluate=alone)
    for asked in (1, 2):
        outcome = run_under_supervisor(ragged, tmp_path / str(asked), f"launch.processes={asked}")
        assert outcome.code is Exit.DONE, outcome.cause
    found = [[e["metrics"] for e in of_kind(tmp_path / run, "training")] for run in ("1", "2")]
    assert len(found[0]) == 3
    for one, two in zip(*found, strict=True):
        assert one == pytest.approx(two, rel=1e-4, nan_ok=True)


def scored(run):
    return [e for kind in ("training", "evaluation") for e in of_kind(run, kind) if e["step"] <= 20]


def _auc(metrics):
    return metrics.get("clicks", metrics)["auc"]


def test_a_run_is_looked_at_and_no_bit_of_it_is_another(whole):
    """The profile has the steps by name; histograms have as many numbers as the layers, of which there is an average.
    That none of it changes a bit is seen beside the halves, which have no profile."""
    (file,) = (whole / "profile").glob("*.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]}
    assert {"step 7", "step 8"} <= names
    told, found = of_kind(whole, "statistics"), tensors(whole)
    assert [each["step"] for each in told] == [20, 40, 60, 80]
    layers = [name for name in found if name.startswith("networks/model/model.")]
    counted = {sum(each["histograms"]["model"]["weights"]["counts"]) for each in told}
    assert counted == {sum(found[name].numel() for name in layers)}
    averaged = [name for name in found if name.startswith("averages/")]
    assert [name.partition("/")[2] for name in averaged] == [name.partition("/")[2] for name in layers]


def test_the_best_commit_by_auc_is_kept(whole):
    found = {each["step"]: each["metrics"]["clicks"]["auc"] for each in of_kind(whole, "evaluation")}
    kept = {int(path.name[5:]) for path in (whole / "checkpoints").glob("step-*")}
    assert kept == {80, max(found, key=found.get)}


def test_a_run_that_gets_no_better_is_done_early_and_stays_so(tmp_path):
    patient = {"patience": {"metric": "clicks/auc", "mode": "max", "evaluations": 1, "change": 1.0}}
    given = everything(stop=patient)
    assert drivetrain.train(given, run=tmp_path / "run", progress=False).step == 40
    assert drivetrain.train(given, run=tmp_path / "run", progress=False).step == 40
    assert [each["step"] for each in of_kind(tmp_path / "run", "evaluation")] == [20, 40]


def short(**more):
    """Six steps of plain gradient descent."""
    sgd = {"kind": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    embeddings = {"optimizer": {"kind": "sgd", "lr": 0.5}}
    given = recipe() | {"budget": {"steps": 6}, "optimizer": sgd, "embeddings": embeddings, **more}
    return given | {"data": {"train": given["data"]["train"]}, "evaluate": {}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Six steps in fp32."""
    run = tmp_path_factory.mktemp("plain") / "run"
    drivetrain.train(short(), run=run, progress=False)
    return tensors(run)


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        ({"batch": {"size": 32, "micro": 32}}, 1e-6),
        ({"precision": "bf16"}, 2e-2),
        ({"precision": "fp16", "scaling": {"start": 1024}}, 2e-3),
        ({"precision": "fp16", "scaling": {"start": 1}}, 2e-3),
    ],
    ids=["one micro-batch", "bf16", "fp16 times 1024", "fp16"],
)
def test_neither_micro_batches_nor_precision_nor_loss_scales_change_what_moves(change, apart, plain, tmp_path):
    """Layers and rows alike: a scale that reached rows would be 1024 times as much."""
    drivetrain.train(short(**change), run=tmp_path / "run", progress=False)
    found = tensors(tmp_path / "run")
    for name, tensor in plain.items():
        if name.startswith("networks/"):
            assert torch.allclose(found[name], tensor, atol=apart, rtol=0), name


def test_a_rename_map_says_what_became_of_every_tensor(whole, tmp_path):
    """A feature that was called otherwise, one that is left out, one that is new."""
    tuned = everything()
    features = tuned["task"]["features"]
    features["thing"] = {**features.pop("item"), "column": "item"}
    features["hour"] = {"hash": 12, "column": "price"}
    layers = {"model.deep.0": None, "model.out": None}  # another feature gives them another shape
    renamed = {"embeddings.table_item": "embeddings.table_thing"}
    init = {"from": str(whole), "map": renamed, "fresh": ["table_hour", "deep", "out"]}
    with pytest.raises(
        drivetrain.Failure, match=r"deep\.0\.weight is \(8, 17\).*, the network has \(8, 21\)"
    ) as raised:
        drivetrain.train(tuned | {"init": init}, run=tmp_path / "strict", progress=False)
    assert raised.value.outcome.code is Exit.INCOMPATIBLE
    init["map"] = renamed | layers
    with pytest.raises(drivetrain.Failure, match=r"table_hour") as raised:
        drivetrain.train(tuned | {"init": {**init, "fresh": ["deep", "out"]}}, run=tmp_path / "strict", progress=False)
    assert raised.value.outcome.code is Exit.INCOMPATIBLE
    drivetrain.train(tuned | {"init": init}, ["stop.at=[1]"], run=tmp_path / "run", progress=False)
    (told,) = of_kind(tmp_path / "run", "initial")
    assert [list(pair) for pair in told["renamed"]] == [["model/embeddings.table_item", "model/embeddings.table_thing"]]
    assert "model/embeddings.table_hour" in told["fresh"]
    assert "model/model.out.linear.weight" in told["left_out"]
