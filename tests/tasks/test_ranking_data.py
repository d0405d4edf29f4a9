"""Ranking on files of columns: batches by cost, several sources with weights, one day after the other."""

import csv

import numpy as np
import pytest

import drivetrain
from conftest import run_under_supervisor, tensors, trace
from drivetrain.ledger.derive import lineage, samples_used, steps
from drivetrain.ledger.ledger import read
from drivetrain.run.proof import prove
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes

DAYS = ("2026-03-01.csv", "2026-03-02.csv", "2026-03-03.csv")


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """A folder with three days of clicks, 120, 80 and 100; tags are as many as `cost` says."""
    folder, generator = tmp_path_factory.mktemp("days"), np.random.default_rng(0)
    for day, (name, count) in enumerate(zip(DAYS, (120, 80, 100), strict=True)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["user", "tags", "cost", "click"])
            for _ in range(count):
                tags = generator.integers(0, 9, generator.integers(0, 7))
                user = f"u{generator.integers(30)} of\nday {day % 2}"  # quoted, on two lines
                writer.writerow([user, "|".join(map(str, tags)), len(tags), int(generator.random() < 0.4)])
    return folder


def recipe(days, **changed):
    given = {
        "name": "days",
        "task": {
            "kind": "ranking",
            "dim": 4,
            "features": {"user": {"hash": 64}, "tags": {"hash": 16, "length": 8, "separator": "|"}},
            "labels": {"click": {}},
            "model": {"kind": "deepfm", "hidden": [8]},
        },
        "data": {"train": {"sources": [{"kind": "columns", "path": str(days)}]}},
        "lanes": 4,
        "batch": {"size": 32},
        "budget": {"epochs": 1},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "launch": {"threads": 1},
    }
    return given | changed


def train(given, run):
    return drivetrain.train(given, run=run, progress=False)


def history(run):
    return lineage(read(run / "ledger.jsonl"))


def test_steps_by_cost_are_the_same_on_other_processes_and_after_a_stop(days, tmp_path):
    given = recipe(days, batch={"size": 80, "cost": 64}, budget={"epochs": 2}, exact=True)
    given["data"]["train"]["sources"][0]["cost"] = {"column": "cost", "most": 5, "over": "skip"}
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    train(given, straight)
    outcome = run_under_supervisor(given, changing, "launch.processes=2", "stop.at=[5]")
    assert outcome.code == Exit.STOPPED, outcome
    train(given, changing)
    assert trace(changing) == trace(straight)
    assert samples_used(history(changing)) == samples_used(history(straight))
    made = [record["stop"] - record["start"] for record in steps(history(straight))]
    assert len(set(made)) > 2
    total = 2 * sum(line.split(",")[-2] != "6" for line in text(days) if line.endswith((",0", ",1")))
    assert sum(made) == total
    notes = [record["text"] for record in history(straight) if record["kind"] == "note"]
    assert any("cost more than 5: left out" in note for note in notes)
    assert prove(straight, data=True).samples == total


def text(folder):
    return [line for name in DAYS for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["data.train.sources[0].cost=null"], "batch.cost: data.train.sources.0 has no `cost`"),
        (["batch.ramp=[{from: {steps: 2}, size: 64}]"], "batch.ramp: with batch.cost"),
        (["data.train.buckets=4"], "data.train.buckets: with batch.cost"),
        (["data.train.stages=[{from: {steps: 2}, weights: {source0: 1}}]"], "data.train.stages: with batch.cost"),
        (["data.train.sources[0].cost.over=drop"], "data.train.sources.0.cost.over"),
    ],
)
def test_what_does_not_go_with_a_cost_is_refused(days, change, told):
    given = recipe(days, batch={"size": 80, "cost": 64})
    given["data"]["train"]["sources"][0]["cost"] = {"column": "cost", "most": 5}
    with pytest.raises(RecipeMistakes) as refused:
        load(given, change)
    assert told in str(refused.value).replace("sources[0]", "sources.0")


def test_sources_with_weights_are_blended_and_a_resume_goes_on_exactly(days, tmp_path):
    sources = []
    for name, weight in zip(DAYS, (3, 0.5, 1), strict=True):
        sources.append({"kind": "columns", "path": str(days / name), "name": name[:-4], "weight": weight})
    given = recipe(days, data={"train": {"sources": sources}}, budget={"steps": 9}, exact=True)
    train(given, tmp_path / "straight")
    assert run_under_supervisor(given, tmp_path / "changing", "launch.processes=2", "stop.at=[4]").code == Exit.STOPPED
    train(given, tmp_path / "changing")
    assert trace(tmp_path / "changing") == trace(tmp_path / "straight")
    commit = [record for record in history(tmp_path / "straight") if record["kind"] == "commit"][-1]
    assert commit["coverage"] == {"2026-03-01": 192, "2026-03-02": 32, "2026-03-03": 64}


def test_days_come_in_the_order_of_their_names_each_row_once_and_go_on_from_yesterdays_run(days, tmp_path):
    given = recipe(days)
    given["data"]["train"] = {"sources": [{"kind": "columns", "path": f"{days}/*.csv"}], "shuffle": False}
    train(given, tmp_path / "all")
    assert samples_used(history(tmp_path / "all")) is not None
    yesterday = None
    for name in DAYS[:2]:
        given["data"]["train"]["sources"][0]["path"] = str(days / name)
        run = tmp_path / name
        more = {"init": {"from": str(yesterday), "part": "model"}} if yesterday else {}
        train({**given, **more}, run)
        if yesterday:
            before, after = tensors(yesterday), tensors(run)
            (table,) = [key for key in after if key.endswith("user") and key.startswith("networks/")]
            moved = (before[table] != after[table]).any(1)
            # Of users whom only yesterday had, today's run keeps the rows.
            assert 0 < moved.sum() < len(moved)
            loaded = [record for record in history(run) if record["kind"] == "initial"]
            assert loaded
        yesterday = run
