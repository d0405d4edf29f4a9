"""Ranking as a whole: recipes with mistakes, the models, and runs on any number of processes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import drivetrain
from conftest import run_under_supervisor, trace
from drivetrain.data.opening import open_source
from drivetrain.engine.tables.module import Embeddings
from drivetrain.ledger.derive import lineage, samples_used, steps
from drivetrain.ledger.ledger import read
from drivetrain.run.build import build_task
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes, dotted
from drivetrain.tasks.ranking.clicks import best_auc
from drivetrain.tasks.ranking.models import Inputs
from drivetrain.tasks.ranking.recipe import Clicks

TOWERS = {"kind": "two_tower", "user": ["user", "device"], "item": ["item", "tags", "price"], "hidden": [8], "size": 4}
OPTIONAL = {"click": {}, "buy": {"optional": True, "weight": 0.5}}


def recipe(**task):
    """A run of sixty steps that take milliseconds."""
    log = {"kind": "clicks", "samples": 600, "users": 20, "items": 10, "split": [0.8, 0.2, 0]}
    return {
        "name": "clicks",
        "task": {
            "kind": "ranking",
            "dim": 4,
            "features": {
                "user": {"buckets": 20},
                "item": {"buckets": 10},
                "device": {"hash": 8},
                "tags": {"hash": 16, "length": 2, "pooling": "mean"},
                "price": {"normalize": "log1p"},
            },
            "labels": {"click": {}},
            "model": {"kind": "deepfm", "hidden": [8]},
            **task,
        },
        "data": {
            "train": {"sources": [{**log, "part": "train"}]},
            "validation": {"clicks": {**log, "part": "validation"}},
        },
        "lanes": 4,
        "batch": {"size": 32, "micro": 8},
        "budget": {"steps": 60},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "evaluate": {"every": {"steps": 30}, "batch": 16},
        "checkpoint": {"every": {"steps": 30}},
        "launch": {"threads": 1},
    }


GROWING = {"admit": {"count": 2}, "evict": {"least": "count", "age": {"steps": 40}, "every": {"steps": 25}}}
KEYED = {
    "user": {"keyed": {"rows": 200, **GROWING}},
    "item": {"keyed": {"rows": 200}},
    "device": {"hash": 8},
    "tags": {"keyed": {"rows": 300, **GROWING}, "length": 2, "pooling": "mean"},
    "price": {"normalize": "log1p"},
}


def towers(**negatives):
    return {"model": {**TOWERS, "negatives": negatives}}


CHOICES = {
    "deepfm": {},
    "pareto": {
        "model": {"kind": "mmoe", "experts": 2, "expert": [8], "tower": [4]},
        "labels": {"click": {}, "buy": {"optional": True}},
        "weights": {"kind": "pareto", "least": {"buy": 0.1}},
    },
    "mmoe": {"model": {"kind": "mmoe", "experts": 2, "expert": [8], "tower": [4]}, "labels": OPTIONAL},
    "in_batch": towers(kind="in_batch", group=8),
    "uniform": towers(kind="uniform", count=3),
    "popularity": towers(kind="popularity", count=3),
    "keyed": {**towers(kind="uniform", count=3), "features": KEYED},
}


def train(given, run, *overrides):
    return drivetrain.train(given, overrides, run=run, progress=False)


def scores(run):
    return [record["metrics"] for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == "evaluation"]


def task_and_batch(given, count=6, folder=Path()):
    """The task, its network, and its first training samples. What is kept of files is kept in the folder."""
    resolved = load(given).recipe
    task = build_task(resolved)
    opened = open_source(resolved.data.train.sources[0], 0, folder / "sources.json")
    source = task.prepare(opened, "train")
    torch.manual_seed(0)
    networks = task.networks()
    networks["model"].embeddings.draw(0)
    return task, networks, task.collate(source.read(np.arange(count), np.arange(count)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"features.user": {"buckets": 20, "hash": 9}}, "task.features.user: takes exactly one of .* buckets and hash"),
        ({"features.user": {}}, "task.features.user: takes exactly one of .*, and has none"),
        ({"features.user": {"bucket": 20}}, "task.features.user.bucket: unknown key 'bucket'; did you mean 'buckets'"),
        ({"features.user": {"buckets": 20, "separator": ","}}, "give a length to read lists; leave separator out"),
        ({"features.price": {"normalize": "log1p", "dim": 8}}, "normalize embeds nothing; leave dim out"),
        ({"features.price": {"boundaries": [2, 1]}}, "boundaries ascend"),
        ({"features.user": {"vocab": ["a", "b", "a"]}}, "task.features.user: vocab has 'a' twice"),
        ({"features.both": {"cross": ["user", "item"]}}, "task.features.both: takes exactly one of"),
        ({"features.both": {"cross": ["user", "item"], "buckets": 9}}, "cross takes `hash`"),
        ({"features.a-b": {"buckets": 9}}, r"task.features.a-b: names are letters, digits and _"),
        (
            {
                "features.user": {"buckets": 20, "table": "t", "dim": 4},
                "features.item": {"buckets": 20, "table": "t", "dim": 8},
            },
            "task.features.user.dim: shares table 't' with 'item', whose dim is 8, not 4: give both the same",
        ),
        (
            {"features.user": {"buckets": 20, "table": "t"}, "features.item": {"buckets": 10, "table": "t"}},
            "task.features.user.buckets: shares table 't' with 'item', whose buckets is 10, not 20",
        ),
        ({"features.user": {"buckets": 20, "dim": 8}}, "task.features: deepfm multiplies .* 4 of device, 8 of user"),
        ({"features.tags": {"hash": 16, "length": 2, "pooling": "none"}}, "none is for models of your own"),
        (
            {"features.user": {"keyed": {"rows": 128, "evict": {"every": {"steps": 5}}}}},
            "task.features.user.keyed.evict: give age, least, or both",
        ),
        ({"features.user": {"keyed": {"rows": 100}}}, "task.features.user.keyed.rows: .*greater than or equal to 128"),
        (
            {
                "features.user": {"keyed": {"rows": 128}, "table": "t"},
                "features.item": {"keyed": {"rows": 256}, "table": "t"},
            },
            "task.features.user.keyed: shares table 't' with 'item'",
        ),
        (
            {"model": {"kind": "two_tower", "user": ["user"], "item": ["item"], "negatives": {"group": 1}}},
            "task.model.negatives: group is 1",
        ),
        ({"labels": {}}, "task.labels: deepfm needs a label, and has 0"),
        ({"model": {"kind": "mmoe"}}, "task.labels: mmoe needs 2 labels or more, and has 1"),
        ({"labels": {}, "model": {"kind": "wide:Wide"}}, "task.labels: a model of your own needs a label, and has 0"),
        ({"labels.row": {}}, "task.labels.row: predictions have the row's number by this name"),
        ({"weights": {"kind": "pareto"}}, "task.labels: weights needs 2 labels or more, and has 1"),
        (
            {"labels": OPTIONAL, "weights": {"least": {"click": 0.5, "buys": 0.1}}},
            "task.weights.least.buys: there is no such label; there are click, buy",
        ),
        ({"labels": OPTIONAL, "weights": {"least": {"click": 0.5, "buy": 0.6}}}, "all labels together weigh 1"),
        ({"labels": OPTIONAL, "weights": {}}, "task.labels.buy.weight: task.weights finds what a label weighs"),
        ({"model": {"kind": "mmo"}}, "task.model.kind: unknown kind 'mmo'; there are deepfm, mmoe, two_tower"),
        ({"labels.click": {"loss": "softmax"}}, "task.labels.click: classes goes with `loss: softmax`"),
        ({"labels.click": {"loss": "mse", "metrics": ["auc"]}}, "auc says nothing of mse; there are mae, mse, xauc"),
        ({"labels.click": {"metrics": ["grouped_auc"]}}, "task.labels.click.metrics: .* name it as task.group"),
        ({"model": {**TOWERS, "item": ["item", "tags"]}}, "task.features.price: two_tower: it is neither"),
        ({"model": {**TOWERS, "item": ["tags", "item", "price"]}}, "task.model.item: .*'tags' is no single id"),
        ({"model": {**TOWERS, "user": ["user", "item", "device"]}}, "'item' is named twice"),
        ({"model": {**TOWERS, "user": ["who"]}}, "task.model.user: there is no feature 'who'"),
        (
            towers(kind="in_batch", group=7),
            "task.model.negatives.group: groups of 7 samples would be torn: batch.size 32 is no multiple",
        ),
        (towers(kind="in_batch", group=16), r"torn: a lane's 8 samples \(batch.size / lanes\)"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_field_and_what_would_do(change, told):
    given = recipe()
    for path, value in change.items():
        *parents, last = path.split(".")
        place = given["task"]
        for name in parents:
            place = place[name]
        place[last] = value
    with pytest.raises(RecipeMistakes) as raised:
        load(given)
    found = [f"{dotted(mistake.path)}: {mistake.message}" for mistake in raised.value.mistakes]
    assert any(re.search(told, each) for each in found), found


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (CHOICES["keyed"], "task.features.user.keyed"),
        (CHOICES["pareto"], "task.weights"),
        (towers(kind="uniform"), "task.model.kind"),
        ({"dim": 6}, "task.dim"),
    ],
    ids=["keyed", "pareto", "towers", "dim"],
)
def test_what_tables_on_torchrec_cannot_do_is_a_mistake_of_the_recipe(change, path):
    asked = ["embeddings.backend=torchrec", "optimizer.clip=null"]
    load(recipe(), asked)
    with pytest.raises(RecipeMistakes) as raised:
        load(recipe(**change), asked)
    assert path in [dotted(mistake.path) for mistake in raised.value.mistakes], str(raised.value)


@pytest.mark.parametrize("choice", CHOICES)
def test_thirty_and_thirty_steps_are_sixty_bit_for_bit(choice, tmp_path):
    given = recipe(**CHOICES[choice])
    train(given, tmp_path / "straight")
    assert train(given, tmp_path / "halves", "stop.at=[30]").step == 30
    assert train(given, tmp_path / "halves", "data.train.workers=2").step == 60
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    assert scores(tmp_path / "halves") == scores(tmp_path / "straight")


@pytest.mark.parametrize("choice", ["mmoe", "in_batch", "uniform"])
def test_one_and_two_processes_have_the_same_bits_in_exact_mode(choice, tmp_path):
    given = recipe(**CHOICES[choice]) | {"exact": True, "budget": {"steps": 6}}
    given |= {"evaluate": {"every": {"steps": 3}, "batch": 16}}
    for processes in (1, 2):
        outcome = run_under_supervisor(given, tmp_path / str(processes), f"launch.processes={processes}")
        assert outcome.code == Exit.DONE
    assert trace(tmp_path / "1").losses == trace(tmp_path / "2").losses
    assert scores(tmp_path / "1") == scores(tmp_path / "2")
    used = [samples_used(lineage(read(tmp_path / world / "ledger.jsonl"))) for world in ("1", "2")]
    assert used[0] == used[1]


@pytest.mark.parametrize("choice", ["mmoe", "pareto", "in_batch", "uniform"])
def test_losses_do_not_depend_on_how_many_samples_are_computed_together(choice, tmp_path):
    losses = []
    for micro in (8, 16, 32):
        run = tmp_path / str(micro)
        train(recipe(**CHOICES[choice]), run, f"batch.micro={micro}", "budget.steps=5", "data.validation={}")
        losses.append([list(step["losses"].values()) for step in steps(read(run / "ledger.jsonl"))])
    for other in losses[1:]:
        assert np.array(other) == pytest.approx(np.array(losses[0]), rel=1e-5)


def test_a_deep_factorization_machine_multiplies_all_pairs_of_vectors():
    _, networks, batch = task_and_batch(recipe())
    model = networks["model"].model
    embedded = networks["model"].embeddings(batch["ids"])
    seen = []
    model.out.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(Inputs(embedded, batch["numbers"], batch["ids"]))
    vectors = list(embedded.values())
    pairs = sum(vectors[i] * vectors[j] for i in range(len(vectors)) for j in range(i))
    assert torch.allclose(seen[0][:, 8:12], pairs, atol=1e-7)


def test_there_is_one_module_of_tables_and_features_may_share_one():
    given = recipe()
    given["task"]["features"]["device"] = {"hash": 16, "table": "words"}
    given["task"]["features"]["tags"] |= {"table": "words"}
    _, networks, _ = task_and_batch(given)
    (found,) = [part for part in networks["model"].modules() if isinstance(part, Embeddings)]
    rows = {name: tuple(weight.shape) for name, weight in found.named_parameters()}
    assert rows == {"table_item": (11, 4), "table_user": (21, 4), "table_words": (17, 4)}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_order_in_which_features_are_written_changes_nothing(choice):
    given = recipe(**CHOICES[choice])
    turned = recipe(**CHOICES[choice])
    turned["task"]["features"] = dict(reversed(turned["task"]["features"].items()))
    turned["task"]["labels"] = dict(reversed(turned["task"]["labels"].items()))
    sums = []
    for each in (given, turned):
        task, networks, batch = task_and_batch(each, 8)
        sums.append({name: float(term.value.detach()) for name, term in task.loss(networks, batch).items()})
    assert sums[0] == sums[1]


def test_towers_pool_an_item_s_lists_as_the_user_s_are_pooled():
    """A candidate's vector is the same whether it stands alone or among others."""
    task, networks, alone = task_and_batch(recipe(**towers(kind="in_batch", group=8)))
    _, _, among = task_and_batch(recipe(**towers(kind="uniform", count=3)))
    first = task._outputs(networks, alone)
    second = task._outputs(networks, among)
    assert second["item"].shape == (6, 4, 4)
    assert torch.allclose(first["item"][:, 0], second["item"][:, 0], atol=1e-6)
    assert torch.equal(first["user"], second["user"])


def test_sample_weights_multiply_losses_and_are_no_divisor():
    given = recipe(sample_weight="price")
    task, networks, batch = task_and_batch(given)
    weights = batch["sample_weights"]
    logits = networks["model"](batch["ids"], batch["id_weights"], batch["numbers"])["click"]
    each = nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"]["click"], reduction="none")
    loss = task.loss(networks, batch)["loss"]
    assert float(loss.value.detach()) == pytest.approx(float((weights * each).sum().detach()), rel=1e-6)
    assert loss.over == "samples"


def test_what_was_not_clicked_has_no_say_in_what_is_bought():
    task, networks, batch = task_and_batch(recipe(**CHOICES["mmoe"]), 40)
    clicked = int(batch["labels"]["click"].sum())
    assert task.counts(batch) == {"buy_labels": clicked}
    assert 0 < clicked < 40
    assert task.loss(networks, batch)["buy"].over == "buy_labels"
    assert task.loss(networks, batch)["buy"].weight == 0.5


@pytest.mark.parametrize("features", [{}, {"features": KEYED}], ids=["rows", "keys"])
def test_a_run_predicts_what_its_labels_are(features, tmp_path):
    train(recipe(**CHOICES["mmoe"], **features), tmp_path / "run", "budget.steps=2")
    to = tmp_path / "said.jsonl"
    assert drivetrain.predict(tmp_path / "run", "clicks", to) == len(to.read_text().splitlines())
    first = json.loads(to.read_text().splitlines()[0])
    assert first.keys() == {"row", "click", "buy"}
    assert 0 < first["click"] < 1


def test_towers_predict_vectors_whose_product_is_the_score():
    task, networks, batch = task_and_batch(recipe(**towers(kind="in_batch", group=8)))
    for row in task.predict(networks, batch):
        assert np.dot(row["user"], row["item"]) == pytest.approx(row["score"], abs=1e-6)
        assert np.linalg.norm(row["user"]) == pytest.approx(1, abs=1e-6)


def test_the_best_commit_is_kept_by_auc_and_by_grouped_auc(tmp_path):
    given = recipe(labels={"click": {"metrics": ["auc", "grouped_auc"]}}, group="user")
    for metric in ("auc", "grouped_auc"):
        given["checkpoint"] = {
            "every": {"steps": 20},
            "keep": 1,
            "keep_best": {"metric": f"clicks/{metric}", "mode": "max"},
        }
        given["evaluate"]["every"] = {"steps": 20}
        train(given, tmp_path / metric)
        found = [each["clicks"][metric] for each in scores(tmp_path / metric)]
        kept = {int(path.name[5:]) for path in (tmp_path / metric / "checkpoints").glob("step-*")}
        assert {60, 20 * (1 + int(np.argmax(found)))} <= kept


def test_another_number_of_rows_is_another_run_and_no_start_for_fine_tuning(tmp_path):
    train(recipe(), tmp_path / "run", "budget.steps=2", "data.validation={}")
    with pytest.raises(drivetrain.Failure) as raised:
        train(recipe(), tmp_path / "run", "budget.steps=4", "task.features.item.buckets=11", "data.validation={}")
    assert raised.value.outcome.code == Exit.INCOMPATIBLE
    tuned = ["task.features.item.buckets=11", f"init={{from: {tmp_path / 'run'}}}"]
    with pytest.raises(drivetrain.Failure, match=r"embeddings\.table_item"):
        train(recipe(), tmp_path / "tuned", *tuned)


OWN = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self, shapes, factor: float = 1.0):
        super().__init__()
        self.factor = factor
        self.out = nn.Linear(shapes.width, 1)

    def forward(self, inputs):
        parts = [*inputs.embedded.values(), inputs.numbers["price"].unsqueeze(-1)]
        logits = self.out(torch.cat(parts, dim=1)).squeeze(1) * self.factor
        return {"click": logits} if self.factor else {"clicks": logits}
"""


def test_a_module_of_one_s_own_is_trained_over_the_same_features(tmp_path):
    (tmp_path / "wide.py").write_text(OWN)
    given = recipe(model={"kind": "wide:Wide", "factor": 2.0})
    (tmp_path / "r.yaml").write_text(json.dumps(given))
    result = train(tmp_path / "r.yaml", tmp_path / "run")
    assert result.metrics["clicks"]["auc"] > 0.5
    with pytest.raises(drivetrain.Failure, match=r"the model gives .*clicks.*, and the labels are click"):
        train(tmp_path / "r.yaml", tmp_path / "other", "task.model.factor=0.0")


SHAPED = """
import torch
from torch import nn

class Shaped(nn.Module):
    def __init__(self, shapes, outputs: int, classes: bool = False):
        super().__init__()
        self.out, self.classes = nn.Linear(shapes.width, outputs), classes

    def forward(self, inputs):
        logits = self.out(torch.cat([*inputs.embedded.values(), inputs.numbers["price"].unsqueeze(-1)], dim=1))
        return {"click": logits.argmax(1) if self.classes else logits}

class Empty(nn.Module):
    def __init__(self, shapes):
        super().__init__()
"""


@pytest.mark.parametrize(
    ("model", "label", "told"),
    [
        # Beside labels of [samples] it would become [samples, samples], for mse in silence.
        ({"outputs": 1}, {"loss": "mse"}, r"gives \[8, 1\] for click, and its loss takes \[8\]"),
        ({"outputs": 1}, {}, r"gives \[8, 1\] for click, and its loss takes \[8\]"),
        ({"outputs": 4}, {"loss": "softmax", "classes": 3}, r"gives \[8, 4\] for click, and its loss takes \[8, 3\]"),
        ({"outputs": 3, "classes": True}, {}, "gives int64 for click, and its loss takes floating-point numbers"),
    ],
)
def test_what_a_module_of_one_s_own_gives_of_another_shape_is_told_with_its_place(model, label, told, tmp_path):
    (tmp_path / "shaped.py").write_text(SHAPED)
    given = recipe(model={"kind": "shaped:Shaped", **model}, labels={"click": label})
    (tmp_path / "r.yaml").write_text(json.dumps(given))
    with pytest.raises(drivetrain.Failure, match=rf"{told}, at .*shaped\.py:10") as raised:
        train(tmp_path / "r.yaml", tmp_path / "run")
    assert raised.value.outcome.where["class"] == "own code"


def test_a_module_of_one_s_own_without_a_forward_is_told_before_anything_starts(tmp_path):
    (tmp_path / "shaped.py").write_text(SHAPED)
    (tmp_path / "r.yaml").write_text(json.dumps(recipe(model={"kind": "shaped:Empty"})))
    with pytest.raises(drivetrain.Failure, match="Empty has no forward of its own") as raised:
        train(tmp_path / "r.yaml", tmp_path / "run")
    assert raised.value.outcome.code == Exit.BAD_RECIPE


def test_a_label_that_no_part_of_a_network_can_be_called_by_is_told():
    given = recipe()
    given["task"]["labels"]["type"] = {"column": "click"}
    with pytest.raises(drivetrain.Failure, match=r"task\.labels\.type: torch's modules have an attribute 'type'"):
        task_and_batch(given)


ROWS = "who,what,text,clicked\n" + "".join(f"{n % 9},{n % 5},a|b{n % 3},{n % 2}\n" for n in range(64))


def from_csv(folder, rows=ROWS, **features):
    (folder / "log.csv").write_text(rows)
    given = recipe(
        features={
            "who": {"buckets": 9},
            "what": {"hash": 9},
            "text": {"hash": 9, "separator": "|", "length": 3},
            "pair": {"cross": ["who", "what"], "hash": 50},
            **features,
        },
        labels={"clicked": {}},
    )
    given["data"] = {"train": {"sources": [{"kind": "columns", "path": str(folder / "log.csv")}]}}
    return given


def test_a_csv_file_is_trained_on_and_a_new_one_without_labels_is_predicted(tmp_path):
    train(from_csv(tmp_path), tmp_path / "run")
    (tmp_path / "new.csv").write_text("who,what,text\n1,2,a\n,,\n")
    assert drivetrain.predict(tmp_path / "run", str(tmp_path / "new.csv"), tmp_path / "said.csv") == 2


def test_towers_read_files_from_block_to_block_also_with_drawn_items(tmp_path):
    given = from_csv(tmp_path)
    del given["task"]["features"]["pair"]
    model = {
        "kind": "two_tower",
        "user": ["who"],
        "item": ["what", "text"],
        "negatives": {"kind": "uniform", "count": 2},
    }
    given["task"]["model"] = model
    train(given, tmp_path / "straight")
    assert train(given, tmp_path / "halves", "stop.at=[30]").step == 30
    assert train(given, tmp_path / "halves", "data.train.workers=1").step == 60
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    (attempt,) = [record for record in read(tmp_path / "straight" / "ledger.jsonl") if record["kind"] == "attempt"]
    assert attempt["order"]["lanes"] == 4


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (ROWS.replace("\n8,", "\n9,", 1), r"log.csv:10: column 'who': 9 is no id from 0 to 8 \(buckets: 9\)"),
        (ROWS.replace("clicked", "click"), "has no column 'clicked'; did you mean 'click'"),
        (ROWS + "1,1,a,2\n", "log.csv:66: column 'clicked': 2 is neither 0 nor 1"),
        (ROWS + "1,1,a,\n", "log.csv:66: column 'clicked': has no value"),
    ],
)
def test_a_bad_row_ends_the_run_with_its_line(rows, told, tmp_path):
    with pytest.raises(drivetrain.Failure, match=told) as raised:
        train(from_csv(tmp_path, rows), tmp_path / "run")
    assert raised.value.outcome.code == Exit.BAD_DATA


def test_the_same_log_is_computed_whoever_reads_it_and_knows_its_best_auc():
    settings = Clicks(samples=500, users=20, items=10)
    opened = open_source(settings, 0, Path())
    rows = opened.read(np.arange(500), np.arange(500))
    assert opened.read(np.array([7]), np.array([0])) == rows[7:8]
    assert {row["click"] for row in rows} == {0, 1}
    assert all((row["buy"] is None) == (row["click"] == 0) for row in rows)
    assert 0.7 < best_auc(settings) < 0.95
    with pytest.raises(drivetrain.Failure, match="has no column 'prize'; did you mean 'price'"):
        task_and_batch(recipe(features={"prize": {"normalize": "log1p"}, "user": {"buckets": 20}}))


USERS = "id,age,langs\n" + "".join(f"{n},{20 + n},en|l{n}\n" for n in range(8))


def with_users(folder, users=USERS):
    (folder / "users.csv").write_text(users)
    given = from_csv(
        folder,
        age={"lookup": "users", "boundaries": [22, 25]},
        langs={"lookup": "users", "hash": 9, "separator": "|", "length": 3},
        years={"lookup": "users", "column": "age", "normalize": "identity", "default": 7.0},
    )
    given["task"]["lookups"] = {"users": {"path": str(folder / "users.csv"), "key": "id", "by": "who"}}
    return given


def test_what_is_known_of_users_is_found_by_their_key(tmp_path):
    _, _, batch = task_and_batch(with_users(tmp_path), 10, tmp_path)
    assert batch["ids"]["age"].tolist() == [1, 1, 2, 2, 2, 3, 3, 3, 0, 1]
    assert batch["numbers"]["years"].tolist() == [20, 21, 22, 23, 24, 25, 26, 27, 7, 20]
    langs = batch["ids"]["langs"]
    assert langs[8].tolist() == [-1, -1]
    assert (langs[:8, 0] == langs[0, 0]).all()
    assert langs[9].tolist() == langs[0].tolist()
    train(with_users(tmp_path), tmp_path / "run", "budget.steps=2")
    (tmp_path / "new.csv").write_text("who,what,text\n1,2,a\n,,\n")
    assert drivetrain.predict(tmp_path / "run", str(tmp_path / "new.csv"), tmp_path / "said.csv") == 2


@pytest.mark.parametrize(
    ("users", "told"),
    [
        (USERS + "3,30,x\n", "users.csv: the key of row 9 is that of an earlier one"),
        (USERS + ",30,x\n", "users.csv:10: column 'id': the key has no value"),
        (USERS + "9,old,x\n", "users.csv:10: column 'age'"),
        (USERS.replace("id,", "who,"), "users.csv has no column 'id'"),
    ],
)
def test_a_bad_row_of_a_table_that_is_looked_up_is_told(users, told, tmp_path):
    with pytest.raises(drivetrain.Failure, match=told) as raised:
        task_and_batch(with_users(tmp_path, users), 6, tmp_path)
    assert raised.value.outcome.code == Exit.BAD_DATA


def test_a_run_is_not_resumed_where_what_is_known_of_users_has_changed(tmp_path):
    train(with_users(tmp_path), tmp_path / "run", "stop.at=[30]")
    with pytest.raises(drivetrain.Failure) as raised:
        train(with_users(tmp_path, USERS.replace("27", "28")), tmp_path / "run")
    assert raised.value.outcome.code == Exit.INCOMPATIBLE


def test_a_lookup_that_is_not_there_or_not_used_is_a_mistake(tmp_path):
    given = with_users(tmp_path)
    given["task"]["lookups"] = {"people": given["task"]["lookups"]["users"]}
    with pytest.raises(RecipeMistakes, match=r"no such table in task\.lookups: there is people") as raised:
        load(given)
    assert ("task", "lookups", "people") in [mistake.path for mistake in raised.value.mistakes]
