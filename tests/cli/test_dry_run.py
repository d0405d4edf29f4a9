"""`drivetrain train --steps 0`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import own_tables
from conftest import trace
from drivetrain.cli.dry_run import _lines


@pytest.fixture
def recipe(tiny, tmp_path):
    tiny["data"]["test"] = {"held": tiny["data"]["validation"]["dogs"]}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return str(path)


def rehearse(recipe, tmp_path, *arguments):
    """A dry run; it leaves nothing behind, neither in the run directory nor among temporary files but a traceback."""
    (temporary := tmp_path / "temporary").mkdir(exist_ok=True)
    dry = ["train", recipe, "--steps", "0", "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", *dry, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert not (tmp_path / "run").exists()
    left = [path.name for path in temporary.iterdir()]
    assert not [name for name in left if name.startswith("drivetrain-") and "traceback" not in name]
    return done


@pytest.mark.parametrize("processes", [1, 2])
def test_a_dry_run_builds_everything_and_leaves_nothing(recipe, tmp_path, processes):
    done = rehearse(recipe, tmp_path, "--processes", str(processes), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["task"] == "language_model"
    assert found["steps"] == 12
    assert found["processes"] == processes
    assert [len(own) for own in found["first_step"]["micro_batches"]] == [4 // processes] * processes
    first = found["first_step"]["micro_batches"][-1][0]
    assert first["samples"] == 2
    assert set(first["batch"].values()) == {"int64 [2, 16]"}
    weights = 4 * found["networks"]["model"]["parameters"]
    assert found["bytes"]["networks"] >= weights
    assert found["bytes"]["optimizers"] >= 2 * weights  # Adam's two moments
    assert set(found["test"]) == {"held"}


def test_a_dry_run_is_told_in_words(recipe, tmp_path):
    done = rehearse(recipe, tmp_path, "watch.tensorboard=false", "optimizer={kind: galore, rank: 2}")
    assert done.returncode == 0, done.stderr
    for words in ("language_model: model (", "12 steps, 96 samples", "4 lanes", "int64 [2, 16]", "held (", "AdamW's"):
        assert words in done.stdout
    assert done.stderr == ""


def test_a_dry_run_on_a_mesh_tells_who_holds_what(recipe, tmp_path):
    done = rehearse(recipe, tmp_path, "--processes", "2", "parallel.shard=2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mesh"] == "shard 2"
    assert found["parts"]["model/embed.weight"] == {"whole": [256, 16], "here": [128, 16], "along": ["shard"]}
    assert len(found["parts"]) > 5
    assert [2 * count for count in found["ranks"]] == [found["networks"]["model"]["parameters"]] * 2
    text = "\n".join(_lines(found))
    assert "mesh            shard 2\n" in text
    assert "model/layers.*.attention.query.weight 16 x 16: 8 x 16 here, along shard\n" in text
    assert f"numbers held by process: {', '.join([f'{count:,}' for count in found['ranks']])}\n" in text


@pytest.mark.usefixtures("importable")
def test_a_dry_run_tells_who_holds_the_rows_of_tables_and_their_bytes(tmp_path):
    given = own_tables.recipe(embeddings={"hold": {"users": "row", "items": "table", "words": "each"}})
    (tmp_path / "likes.yaml").write_text(yaml.safe_dump(given))
    done = rehearse(str(tmp_path / "likes.yaml"), tmp_path, "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tables = {name.rpartition("_")[2]: table for name, table in found["tables"].items()}
    assert {name: (table["rows"], table["each"]) for name, table in tables.items()} == {
        "users": ([20, 20], False),
        "items": ([23, 0], False),
        "words": ([9, 9], True),
    }
    assert tables["users"]["bytes"] == [20 * (8 + 1) * 4] * 2  # rowwise adagrad has a number for each row
    text = "\n".join(_lines(found))
    assert "tables          model/embeddings.table_users 40 x 8: 20, 20\n" in text
    assert "model/embeddings.table_words 9 x 4: whole on every process\n" in text
    assert "MiB of rows and what moves them, by process: 0.0, 0.0\n" in text


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("data.train.sources[0].path=nowhere", 66),
        ("data.test.held.path=nowhere", 66),
        ("batch.size=7", 78),
        ("checkpoint.keep_best={metric: dogs/nothing}", 78),
        ("task.model.context=100000", 65),
    ],
)
def test_mistakes_end_a_dry_run_as_they_end_a_run(recipe, tmp_path, override, code):
    done = rehearse(recipe, tmp_path, override)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"drivetrain: {code} ")


def test_json_is_a_dry_runs_only(recipe, tmp_path):
    from drivetrain.cli.main import run

    assert run(["train", recipe, "--json", "--run", str(tmp_path / "run")]) == 64
    assert not (tmp_path / "run").exists()


def test_a_dry_run_beside_a_run_leaves_it_alone(recipe, tmp_path):
    from drivetrain.cli.main import run

    there = tmp_path / "there"
    assert run(["train", recipe, "--run", str(there)]) == 0
    before = trace(there), sorted((path, path.stat().st_mtime_ns) for path in there.rglob("*"))
    assert run(["train", recipe, "--run", str(there), "--steps", "0"]) == 0
    assert (trace(there), sorted((path, path.stat().st_mtime_ns) for path in there.rglob("*"))) == before


OWN = """\
import torch
import drivetrain

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor([float(i)])

class Own(drivetrain.Task):
    def __init__(self, broken: bool = False):
        self.broken = broken

    def networks(self):
        return {"model": torch.nn.Linear(1, 1)}

    def loss(self, nets, batch):
        return nets["model"](batch).square().mean()

    def show(self, nets, batch, gallery):
        gallery.picture("dots", torch.zeros(3, 8, 8) if self.broken else torch.zeros(8, 8, 3))
"""


@pytest.fixture
def own(tiny, tmp_path):
    """Writes a module of the user's own, and the recipe of it."""

    def write(code):
        (tmp_path / "own_dry.py").write_text(code)
        data = {"train": {"sources": [{"kind": "own_dry:Numbers"}]}}
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump(tiny | {"task": {"kind": "own_dry:Own"}, "data": data, "evaluate": {}}))
        return str(path)

    return write


def test_a_dry_run_tries_what_the_task_shows_and_finds_what_is_broken(own, tmp_path):
    path = own(OWN)
    done = rehearse(path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shows           dots.png" in done.stdout
    done = rehearse(path, tmp_path, "task.broken=true")
    assert done.returncode == 70
    assert "gallery.picture('dots') takes" in done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_the_traceback_that_a_dry_run_names_is_there_afterwards(own, tmp_path, processes):
    path = own(OWN.replace('nets["model"]', 'nets["modell"]'))
    done = rehearse(path, tmp_path, f"launch.processes={processes}")
    assert done.returncode == 70
    (named,) = re.findall(r"the whole traceback is in (\S+)", done.stderr)
    assert "KeyError: 'modell'" in Path(named).read_text()
    assert "phase forward" in done.stderr, "where it failed, and not where it was undone"
