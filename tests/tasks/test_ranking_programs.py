"""Exports of ranking: programs that score raw values as the run does, where there is no Drivetrain, and no pickle."""

import json
import logging
import os
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import drivetrain
from conftest import run_under_supervisor
from drivetrain.checkpoint.mapped import MappedTensors
from drivetrain.serving import Scorer
from drivetrain.serving.files import load_program, load_weights
from drivetrain.spec.exits import Exit

pytestmark = pytest.mark.xdist_group("programs")

FEATURES = {
    "user": {"buckets": 20, "table": "people"},
    "friend": {"buckets": 20, "table": "people"},
    "device": {"vocab": ["phone", "tablet"]},
    "age": {"lookup": "users", "boundaries": [25, 40]},
    "langs": {"lookup": "users", "hash": 9, "length": 2, "pooling": "mean"},
    "plan": {"column": "plans", "map_key": "device", "separator": ";", "hash": 9},
    "item": {"hash": 30},
    "tags": {"hash": 16, "length": 2, "pooling": "mean", "weights": "counts"},
    "words": {"hash": 16, "length": 3, "separator": " "},
    "both": {"cross": ["device", "item"], "hash": 50},
    "seat": {"cross": ["user", "device"], "keyed": {"rows": 1024, "evict": {"least": "count"}}},
    "marks": {"column": "tags", "keyed": {"rows": 128}, "length": 2, "pooling": "mean", "weights": "counts"},
    "price": {"normalize": "log1p", "default": 2.0},
    "place": {"normalize": {"mean": 1.0, "std": 3.0}, "width": 2},
}
OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.each = nn.Linear(4, 1)
        self.out = nn.Linear(shapes.width, 1)
        self.register_buffer("shift", torch.tensor([0.5]), persistent=False)
        self.double = torch.tensor([2.0])

    def forward(self, inputs):
        there = (inputs.ids["words"] >= 0).unsqueeze(-1)
        best = torch.where(there, self.each(inputs.embedded["words"]), -9.0).amax(1)
        embedded = {**inputs.embedded, "words": inputs.embedded["words"].sum(1)}
        numbers = [number.flatten(1) for number in (inputs.numbers["place"], inputs.numbers["price"].unsqueeze(1))]
        found = self.out(torch.cat([*embedded.values(), *numbers], 1)) + best * self.shift * self.double
        return {"click": found.squeeze(1)}
"""
SIDES = {
    "user": ["user", "friend", "device", "age", "langs", "plan", "seat"],
    "item": ["item", "tags", "marks", "words", "price", "place"],
}
MODELS = {
    "deepfm": {"model": {"kind": "deepfm", "hidden": [8]}, "labels": {"click": {}}},
    "mmoe": {
        "model": {"kind": "mmoe", "experts": 2, "expert": [8], "tower": [4]},
        "labels": {"click": {}, "stars": {"loss": "softmax", "classes": 3}, "spent": {"loss": "mse"}},
    },
    "two_tower": {"model": {"kind": "two_tower", **SIDES, "hidden": [8], "size": 4}, "labels": {"click": {}}},
    "own": {"model": {"kind": "own_of_programs:Own"}, "labels": {"click": {}}},
}


def log(count, seed=0):
    """Columns with nulls, empty lists, and values that others do not have."""
    random = np.random.default_rng(seed)

    def maybe(values):
        return [None if missing else value for value, missing in zip(values, random.random(count) < 0.2, strict=True)]

    def drawn(most):
        return random.integers(0, most, count).tolist()

    lengths = drawn(4)
    return {
        "user": maybe(drawn(20)),
        "friend": maybe(drawn(20)),
        "device": maybe(["phone", "tablet", f"tv {seed}"][kind] for kind in drawn(3)),
        "plans": maybe(["phone:a;tablet:b", "tablet:c", ""][kind] for kind in drawn(3)),
        "item": maybe(f"i{number + 1000 * seed}" for number in drawn(40)),
        "tags": [[f"t{tag}" for tag in range(length)] for length in lengths],
        "counts": [[0.5 + tag for tag in range(length)] for length in lengths],
        "words": maybe(" ".join("abcdefgh"[:length]) for length in drawn(5)),
        "price": maybe(random.random(count).round(2).tolist()),
        "place": maybe(random.random((count, 2)).round(2).tolist()),
        "click": drawn(2),
        "stars": drawn(3),
        "spent": random.random(count).tolist(),
    }


def recipe(folder, name):
    features = {key: dict(feature) for key, feature in FEATURES.items()}
    if name == "own":
        features["words"]["pooling"] = "none"
    if name == "two_tower":
        del features["both"]
    task = {
        "kind": "ranking",
        "dim": 4,
        "features": features,
        "lookups": {"users": {"path": str(folder / "users.parquet"), "key": "id", "by": "user"}},
        **MODELS[name],
    }
    if name == "two_tower":
        task["model"]["negatives"] = {"kind": "in_batch", "group": 8}
    return {
        "name": name,
        "task": task,
        "data": {"train": {"sources": [{"kind": "columns", "path": str(folder / "log.parquet")}]}},
        "lanes": 1,
        "batch": {"size": 32, "micro": 8},
        "budget": {"steps": 3},
        "embeddings": {"optimizer": {"kind": "adam", "lr": 0.1}},
        "launch": {"threads": 1},
        "device": "cpu",
    }


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """torch tells each step of a trace to who listens, as pytest does: it takes ten times as long."""
    logger = logging.getLogger("torch.__trace")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs and exports of all models, a new file, and what the runs say of its rows."""
    folder = tmp_path_factory.mktemp("programs")
    parquet.write_table(pa.table(log(96)), folder / "log.parquet")
    parquet.write_table(pa.table(log(50, seed=1)), folder / "new.parquet")
    users = {
        "id": list(range(15)),
        "age": [20 + 3 * n for n in range(15)],
        "langs": [["en", f"l{n}"] for n in range(15)],
    }
    parquet.write_table(pa.table(users), folder / "users.parquet")
    (folder / "own_of_programs.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    for name in MODELS:
        drivetrain.train(recipe(folder, name), run=folder / name, progress=False)
        drivetrain.export(folder / name, folder / "exports" / name)
        drivetrain.predict(folder / name, str(folder / "new.parquet"), folder / f"{name}.parquet")
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("own_of_programs", None)


def said(place, name):
    """What a run predicts of the new file, by output."""
    table = parquet.read_table(place / f"{name}.parquet").drop_columns("row")
    return {column: np.array(table.column(column).to_pylist()) for column in table.column_names}


def first(rows, count):
    return {name: values[:count] for name, values in rows.items()}


@pytest.mark.parametrize("name", ["deepfm", "mmoe", "own"])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_a_program_says_of_raw_values_what_the_run_says(place, name, count):
    found = Scorer(place / "exports" / name)(first(log(50, seed=1), count))
    wanted = said(place, name)
    assert found.keys() == wanted.keys() == MODELS[name]["labels"].keys()
    for label, scores in found.items():
        assert scores.shape == wanted[label][:count].shape
        assert np.abs(scores - wanted[label][:count]).max(initial=0) <= 1e-6


@pytest.mark.parametrize("count", [0, 1, 50])
def test_the_product_of_the_towers_vectors_is_the_score(place, count):
    rows = first(log(50, seed=1), count)
    users = Scorer(place / "exports" / "two_tower" / "user")
    items = Scorer(place / "exports" / "two_tower" / "item")
    assert users.columns == ("device", "friend", "plans", "user")
    assert items.columns == ("counts", "item", "place", "price", "tags", "words")
    wanted = said(place, "two_tower")
    user, item = users(rows)["user"], items(rows)["item"]
    for one, name in ((user, "user"), (item, "item"), ((user * item).sum(-1), "score")):
        assert np.abs(one - wanted[name][:count]).max(initial=0) <= 1e-6


def test_a_tower_has_no_weight_of_the_other(place):
    folder = place / "exports" / "two_tower"
    users, items = (load_weights(folder / side / "model.safetensors").keys() for side in ("user", "item"))
    assert "embeddings.table_people" in users
    assert "lookups.users.keys" in users
    assert "embeddings.table_item" in items
    assert not users & items


def test_keys_that_a_run_has_seen_have_rows_of_their_own_in_its_export_and_others_share_one(place):
    score = Scorer(place / "exports" / "deepfm")
    seen, new = set(zip(*(log(96)[name] for name in ("user", "device")), strict=True)), log(50, seed=1)
    known = [pair in seen for pair in zip(new["user"], new["device"], strict=True)]
    assert 0 < sum(known) < 50
    weights = load_weights(place / "exports" / "deepfm" / "model.safetensors")
    keys = weights["embeddings.keys_seat"][:, 0]
    asked = torch.from_numpy(score.encoded(new)["ids.seat"])
    assert torch.isin(asked, keys).tolist() == known
    assert torch.equal(weights["sorted.keys_seat"], keys[weights["sorted.rows_seat"]])


def test_lists_without_any_id_are_scored(place):
    rows = first(log(50, seed=1), 3) | {"tags": [[], [], []], "counts": [None, [], []], "words": ["", None, ""]}
    parquet.write_table(pa.table(rows), place / "empty.parquet")
    for name in ("deepfm", "own"):
        to = place / f"empty-{name}.parquet"
        drivetrain.predict(place / name, str(place / "empty.parquet"), to)
        wanted = parquet.read_table(to).column("click").to_numpy()
        assert np.abs(Scorer(place / "exports" / name)(rows)["click"] - wanted).max() <= 1e-6


ALONE = """
import json
import sys
import torch

def hook(event, arguments):
    foreign = event == "import" and arguments[0].partition(".")[0] in ("drivetrain", "pyarrow", "safetensors")
    if foreign or event.startswith("pickle."):
        raise RuntimeError(f"{event}: {arguments}")

sys.addaudithook(hook)
folder, rows = sys.argv[1:]
sys.path.insert(0, folder + "/deepfm")
from serving import Scorer

with open(rows) as file:
    rows = json.load(file)
found = {}
for name in ("deepfm", "own", "two_tower/item"):
    for output, values in Scorer(folder + "/" + name)(rows).items():
        found[name] = values.tolist()
print(json.dumps(found))
"""


@pytest.mark.cold
def test_scores_need_torch_alone_and_no_pickle(place):
    (place / "rows.json").write_text(json.dumps(log(50, seed=1)))
    asked = [sys.executable, "-c", ALONE, str(place / "exports"), str(place / "rows.json")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(asked, capture_output=True, text=True, cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("deepfm", "own"):
        assert np.abs(np.array(found[name]) - said(place, name)["click"]).max() <= 1e-6
    assert np.abs(np.array(found["two_tower/item"]) - said(place, "two_tower")["item"]).max() <= 1e-6


def test_weights_lie_beside_a_graph_that_has_none(place):
    from safetensors.torch import load_file

    folder = place / "exports" / "deepfm"
    weights, theirs = load_weights(folder / "model.safetensors"), load_file(folder / "model.safetensors")
    assert list(weights) == sorted(theirs)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights.items())
    assert (folder / "model.pt2").stat().st_size < 200_000
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        whole = b"".join(archive.read(part) for part in archive.namelist())
    assert str(place).encode() not in whole
    assert b"/drivetrain/" not in whole, "names of files on this machine"


def test_an_archive_that_torch_would_unpickle_is_refused(place, tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1

    program = torch.export.export(Net(), (torch.ones(2),))
    torch.export.save(program, tmp_path / "inputs.pt2")
    with pytest.raises(ValueError, match=r"sample_inputs/model.pt' is a pickle, which is not read"):
        load_program(tmp_path / "inputs.pt2")
    good = place / "exports" / "own" / "model.pt2"
    for change, told in (
        (lambda name, data: (name.replace("tensor_0", "custom_obj_0"), data), "has no part .*custom_obj_0"),
        (lambda name, data: (name, data.replace(b'"use_pickle": false', b'"use_pickle": true')), "is a pickle"),
        (lambda name, data: (name, data.replace(b'"tensor_0"', b'"opaque_0"')), "is a pickle"),
        (lambda name, data: (name, data.replace(b"Symbol('s", b"exit('s")), "that is code"),
        (lambda name, data: (name, data.replace(b'"guards_code": ["', b'"guards_code": ["exit() or ')), "that is code"),
        (lambda name, data: (name, data.replace(b'{"name": "', b'{"name": "x=exit(), ')), "that is code"),
    ):
        with zipfile.ZipFile(good) as archive, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
            for name in archive.namelist():
                bad.writestr(*change(name, archive.read(name)))
        with pytest.raises(ValueError, match=told):
            load_program(tmp_path / "bad.pt2")


def test_an_export_of_another_version_is_refused(place, tmp_path):
    spec = json.loads((place / "exports" / "deepfm" / "features.json").read_text())
    (tmp_path / "features.json").write_text(json.dumps(spec | {"hash": {"function": "other", "seed": 0}}))
    with pytest.raises(ValueError, match="written for another version"):
        Scorer(tmp_path)


BRANCHING = """
from torch import nn

class Branching(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.out = nn.Linear(shapes.width, 1)

    def forward(self, inputs):
        found = inputs.numbers["price"] * self.out.bias
        return {"click": found if found.sum() > 0 else -found}
"""


def test_a_model_that_torch_cannot_trace_is_told_with_its_place(place, tmp_path, monkeypatch):
    (tmp_path / "branching_of_programs.py").write_text(BRANCHING)
    monkeypatch.syspath_prepend(tmp_path)
    given = recipe(place, "deepfm")
    given["task"]["model"] = {"kind": "branching_of_programs:Branching"}
    drivetrain.train(given, run=tmp_path / "run", progress=False)
    with pytest.raises(drivetrain.Failure, match=r"torch.export cannot make a program of the model: .*\.py:9"):
        drivetrain.export(tmp_path / "run", tmp_path / "out")
    sys.modules.pop("branching_of_programs", None)


@pytest.mark.usefixtures("forked", "importable")
def test_tables_of_several_processes_are_exported_whole(place):
    run = place / "two"
    given = recipe(place, "deepfm") | {"lanes": 2}
    given["embeddings"]["hold"] = {"^(item|seat)$": "row"}
    assert run_under_supervisor(given, run, "launch.processes=2").code == Exit.DONE
    drivetrain.export(run, place / "exports" / "two")
    drivetrain.predict(run, str(place / "new.parquet"), place / "two.parquet")
    found = Scorer(place / "exports" / "two")(log(50, seed=1))["click"]
    assert np.abs(found - said(place, "two")["click"]).max() <= 1e-6


def test_a_run_whose_weights_are_bf16_is_served_in_fp32(place):
    given = recipe(place, "deepfm") | {"precision": "bf16", "parameters": {"dtype": "bf16"}}
    drivetrain.train(given, run=place / "half", progress=False)
    drivetrain.export(place / "half", place / "exports" / "half")
    drivetrain.predict(place / "half", str(place / "new.parquet"), place / "half.parquet")
    score = Scorer(place / "exports" / "half")
    weights = load_weights(place / "exports" / "half" / "model.safetensors")
    assert torch.bfloat16 not in {tensor.dtype for tensor in weights.values()}
    # The run's own passes are bf16.
    assert np.abs(score(log(50, seed=1))["click"] - said(place, "half")["click"]).max() <= 1e-2


def test_an_export_reads_nothing_of_what_moves_its_tables(place, monkeypatch):
    read = []
    plain = MappedTensors.__init__

    def noted(self, *given):
        plain(self, *given)
        read.extend(self.tensors)

    monkeypatch.setattr(MappedTensors, "__init__", noted)
    drivetrain.export(place / "deepfm", place / "exports" / "again")
    assert "networks/model/embeddings.table_item" in read
    assert {name.partition("/")[0] for name in read} == {"networks"}


@pytest.mark.parametrize("name", ["deepfm", "own"])
def test_another_run_begins_at_an_export(place, tmp_path, name):
    given = recipe(place, name) | {"init": {"from": str(place / "exports" / name)}, "seed": 1}
    still = ["budget.steps=1", "optimizer.lr=0.0", "embeddings.optimizer={kind: sgd, lr: 0.0}"]
    drivetrain.train(given, still, run=tmp_path / "run", progress=False)
    drivetrain.predict(tmp_path / "run", str(place / "new.parquet"), tmp_path / "said.parquet")
    assert parquet.read_table(tmp_path / "said.parquet").equals(parquet.read_table(place / f"{name}.parquet"))
