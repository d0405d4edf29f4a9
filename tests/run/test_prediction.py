"""What a run says of samples: of a set, and of a file that it has never seen."""

import json

import pytest

import drivetrain
from drivetrain.run import prediction
from drivetrain.spec.exits import Exit, Failure

TASK = """
import torch
from torch import nn
from drivetrain import Task

class Flowers(Task):
    def networks(self):
        return {"model": nn.Linear(2, 2)}
    def collate(self, rows):
        return {name: torch.tensor([row.get(name, -1) for row in rows]) for name in ("x", "label")}
    def loss(self, nets, batch):
        return nn.functional.cross_entropy(nets["model"](batch["x"]), batch["label"])
    def predict(self, nets, batch):
        logits = nets["model"](batch["x"])
        return [{"label": int(row.argmax()), "logits": row.tolist()} for row in logits]
"""


def rows(path, numbers, **more):
    lines = [json.dumps({"x": [n / 50, 1 - n / 50], **({} if more else {"label": n % 2})}) for n in numbers]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers_of_this_test.py").write_text(TASK)
    rows(tmp_path / "flowers.jsonl", range(50))
    split = {"kind": "jsonl", "path": "flowers.jsonl", "split": [0.8, 0.2, 0]}
    recipe = {
        "name": "flowers",
        "task": {"kind": "flowers_of_this_test:Flowers"},
        "data": {
            "train": {"sources": [split | {"part": "train"}]},
            "validation": {"held": split | {"part": "validation"}},
        },
        "batch": {"size": 8},
        "budget": {"steps": 3},
        "launch": {"threads": 1},
        "device": "cpu",
    }
    (tmp_path / "flowers.json").write_text(json.dumps(recipe))
    return drivetrain.train("flowers.json", run="run", progress=False).run


def test_a_new_file_is_read_as_the_recipe_reads_its_own(run, tmp_path):
    rows(tmp_path / "new.jsonl", range(30), unlabelled=True)
    assert drivetrain.predict("run", "new.jsonl", "said.jsonl") == 30
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    network = drivetrain.Result.load("run").networks()["model"]
    import torch

    own = torch.tensor([[n / 50, 1 - n / 50] for n in range(30)])
    assert [row["label"] for row in said] == network(own).argmax(1).tolist()
    held = drivetrain.predict("run", "held", "held.csv")
    assert (tmp_path / "held.csv").read_text().splitlines()[0] == "label"
    assert len((tmp_path / "held.csv").read_text().splitlines()) == held + 1
    assert (tmp_path / "said.jsonl").stat().st_mode & 0o777 == 0o600


def test_what_is_neither_a_set_nor_a_file_is_66(run):
    with pytest.raises(Failure, match=r"no set 'nowhere\.jsonl'") as caught:
        drivetrain.predict("run", "nowhere.jsonl", "said.jsonl")
    assert caught.value.outcome.code is Exit.INPUT_MISSING


def test_it_is_written_as_it_comes_and_is_there_only_whole(run, tmp_path, monkeypatch):
    seen = []

    def broken(file, predicted, suffix):
        for row in predicted:
            file.write(json.dumps(row))
            file.flush()
            seen.append([path.name for path in tmp_path.glob(".said.jsonl.*")])
            if len(seen) == 3:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction, "_write", broken)
    with pytest.raises(Failure, match="cannot be written"):
        drivetrain.predict("run", "held", "said.jsonl")
    assert all(seen)
    assert not list(tmp_path.glob("*said*"))
