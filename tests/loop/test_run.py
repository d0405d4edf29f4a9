"""Whole runs in this process: what the loop does besides resuming."""

import json
import math
import textwrap

import numpy as np
import pytest

import drivetrain
from conftest import run_under_supervisor, trace
from drivetrain import Exit, Failure
from drivetrain.data.order import Order
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from records import of_kind


def train(recipe, run, *overrides, **options):
    return drivetrain.train(recipe, overrides, run=run, progress=False, **options)


def module(folder, text):
    """A user's own module, and a recipe over it."""
    name = f"user_{abs(hash((str(folder), text))) % 10**9}"
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return name


POINTS = """
    import torch
    from torch import nn
    import drivetrain

    class Points:
        def __init__(self, size=40, bad=-1):
            self.size, self.bad = size, bad
            generator = torch.Generator().manual_seed(1)
            self.x = torch.randn(size, 3, generator=generator)
            self.weight = torch.randint(1, 5, (size,), generator=generator)
        def __len__(self):
            return self.size
        def __getitem__(self, i):
            x = self.x[i] * float("nan") if i == self.bad else self.x[i]
            return x, self.x[i].sum(), self.weight[i]

    class Plain(drivetrain.Task):
        def __init__(self, width: int = 8, fail_at: int = 0):
            self.width, self.fail_at, self.calls = width, fail_at, 0
        def networks(self):
            return {"model": nn.Sequential(nn.Linear(3, self.width), nn.Tanh(), nn.Linear(self.width, 1))}
        def loss(self, nets, batch):
            self.calls += 1
            if self.calls == self.fail_at:
                raise RuntimeError("my own mistake")
            x, y, _ = batch
            return (nets["model"](x)[:, 0] - y).square().mean()

    class Weighted(Plain):
        '''Uneven counts: each sample holds one to four "tokens".'''
        def counts(self, batch):
            return {"tokens": int(batch[2].sum())}
        def loss(self, nets, batch):
            x, y, weight = batch
            error = (nets["model"](x)[:, 0] - y).square()
            return drivetrain.Losses(loss=((error * weight).sum(), "tokens"), size=(error.sum(), "samples", 0.1))
"""


def recipe_of(folder, task="Plain", **changes):
    name = module(folder, POINTS)
    recipe = {
        "name": "points",
        "task": {"kind": f"{name}:{task}"},
        "data": {
            "train": {"sources": [{"kind": f"{name}:Points"}]},
            "validation": {"same": {"kind": f"{name}:Points"}},
        },
        "lanes": 4,
        "batch": {"size": 8},
        "budget": {"steps": 6},
        "optimizer": {"lr": 1e-2},
        "launch": {"threads": 1},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe | changes))
    return folder / "recipe.json"


def test_a_users_task_and_dataset_in_one_file_train(tmp_path):
    result = train(recipe_of(tmp_path, budget={"steps": 20}), tmp_path / "run")
    assert result.step == 20
    assert result.metrics["same"]["loss"] < of_kind(tmp_path / "run", "step")[0]["losses"]["loss"]


@pytest.mark.parametrize("task", ["Plain", "Weighted"])
@pytest.mark.parametrize("change", [{"micro": 2}, {"micro": 3}, {"micro": 1}], ids=str)
def test_accumulation_is_one_batch_to_1e_6(tmp_path, task, change):
    whole = train(recipe_of(tmp_path, task), tmp_path / "whole")
    parts = train(recipe_of(tmp_path, task, batch={"size": 8, **change}), tmp_path / "parts")
    close(whole.run, parts.run)


def close(one, other):
    a, b = of_kind(one, "step"), of_kind(other, "step")
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x["samples"] == y["samples"]
        assert x["counts"] == y["counts"]
        for name in x["losses"]:
            assert x["losses"][name] == pytest.approx(y["losses"][name], abs=1e-6, rel=1e-6)
        assert x["norm"]["model"] == pytest.approx(y["norm"]["model"], abs=1e-6, rel=1e-5)


@pytest.mark.parametrize("task", ["Plain", "Weighted"])
@pytest.mark.parametrize("processes", [2, 4])
def test_more_processes_are_one_process_to_1e_6_with_a_ragged_tail(tmp_path, task, processes):
    ragged = {"budget": {"samples": 43}}
    alone = train(recipe_of(tmp_path, task, **ragged), tmp_path / "alone")
    many = train(recipe_of(tmp_path, task, **ragged), tmp_path / "many", f"launch.processes={processes}")
    assert of_kind(many.run, "step")[-1]["counts"]["samples"] == 3
    close(alone.run, many.run)
    scores = [of_kind(run, "evaluation")[-1]["metrics"]["same"]["loss"] for run in (alone.run, many.run)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_each_validation_sample_is_scored_once(tmp_path):
    for processes in (1, 2, 4):
        path = recipe_of(tmp_path, evaluate={"batch": 3}, budget={"steps": 1}, optimizer={"lr": 0.0})
        train(path, tmp_path / f"run{processes}", f"launch.processes={processes}")
    values = [of_kind(tmp_path / f"run{p}", "evaluation")[0] for p in (1, 2, 4)]
    assert {v["counts"]["same"] for v in values} == {40}
    assert values[0]["metrics"]["same"]["loss"] == pytest.approx(values[2]["metrics"]["same"]["loss"], abs=1e-6)


@pytest.mark.parametrize("processes", [1, 2])
def test_n01_a_nan_stops_before_the_weights_move_and_names_step_rank_and_samples(tmp_path, processes):
    path = recipe_of(tmp_path, budget={"epochs": 1}, batch={"size": 8, "micro": 2})
    bad = json.loads(path.read_text())
    sample = int(Order(40, 0, True).ids(20, 21)[0])  # of the third step
    bad["data"]["train"]["sources"][0]["bad"] = sample
    bad["checkpoint"] = {"every": {"steps": 1}}
    path.write_text(json.dumps(bad))
    with pytest.raises(Failure) as caught:
        train(path, tmp_path / "run", f"launch.processes={processes}")
    outcome = caught.value.outcome
    assert outcome.code == Exit.DIVERGED
    assert sample in outcome.where["sample_ids"]
    assert len(outcome.where["sample_ids"]) == 2
    made = of_kind(tmp_path / "run", "step")
    assert outcome.where["step"] == made[-1]["step"]
    assert made[-1]["losses"]["loss"] == "nan"
    assert math.isfinite(made[-2]["losses"]["loss"])
    assert of_kind(tmp_path / "run", "exit")[-1]["code"] == 82
    told = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert told["where"]["last_committed_step"] == outcome.where["step"] - 1


@pytest.mark.parametrize("processes", [1, 2])
def test_p18_an_error_in_the_users_code_is_70_with_its_place(tmp_path, processes, capfd):
    with pytest.raises(Failure) as caught:
        train(recipe_of(tmp_path), tmp_path / "run", "task.fail_at=3", f"launch.processes={processes}")
    outcome = caught.value.outcome
    assert outcome.code == Exit.INTERNAL
    assert "my own mistake" in outcome.cause
    assert outcome.where["file"].endswith(".py")
    assert "Traceback" in capfd.readouterr().err


def test_d06_d01_unusable_data_is_told_before_the_first_step(tiny, tmp_path, corpus):
    (corpus / "short.txt").write_text("x")
    for path, code in (("nowhere", Exit.INPUT_MISSING), (str(corpus / "short.txt"), Exit.BAD_DATA)):
        with pytest.raises(Failure) as caught:
            train(tiny, tmp_path / "run", f"data.train.sources[0].path={path}")
        assert caught.value.outcome.code == code


def test_the_same_run_twice_is_the_same_bits(tiny, tmp_path):
    for run in ("a", "b"):
        train(tiny, tmp_path / run)
    assert trace(tmp_path / "a") == trace(tmp_path / "b")


def test_an_evaluation_in_between_changes_no_bit(tiny, tmp_path):
    train(tiny, tmp_path / "a")
    train(tiny, tmp_path / "b", "evaluate.every.steps=1")
    assert trace(tmp_path / "a") == trace(tmp_path / "b")


def test_data_workers_change_no_bit(tmp_path):
    for workers in (0, 2):
        train(recipe_of(tmp_path), tmp_path / f"w{workers}", f"data.train.workers={workers}")
    assert trace(tmp_path / "w0") == trace(tmp_path / "w2")


def test_bf16_and_sgd_train(tiny, tmp_path):
    result = train(
        tiny, tmp_path / "run", "precision=bf16", "optimizer.kind=sgd", "optimizer.lr=0.5", "optimizer.momentum=0.9"
    )
    first = of_kind(tmp_path / "run", "step")[0]["losses"]["loss"]
    assert result.losses["loss"] < first


@pytest.mark.parametrize("change", ["seed=1", "optimizer.lr=0.5", "batch.micro=4", "task.model.dropout=0.2"])
def test_c05_c08_d14_a_resume_that_changes_the_bits_is_76_with_a_diff(tiny, tmp_path, change):
    train(tiny, tmp_path / "run")
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", change)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert change.partition("=")[0] in caught.value.outcome.cause
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["code"] == 76


def test_an_accepted_change_is_kept_in_the_ledger_and_says_what_it_does_to_the_schedule(tiny, tmp_path):
    train(tiny, tmp_path / "run")
    result = train(tiny, tmp_path / "run", "budget.steps=20", override=["budget"])
    assert result.step == 20
    notes = " ".join(note["text"] for note in of_kind(tmp_path / "run", "note"))
    assert "budget.steps: 12 -> 20" in notes
    assert "learning rate" in notes


def test_fields_that_decide_no_bit_may_change(tiny, tmp_path):
    train(tiny, tmp_path / "run")
    train(tiny, tmp_path / "run", "checkpoint.keep=1", "name=other", "evaluate.every.steps=4")


def test_c06_d09_data_of_other_content_is_76(tiny, tmp_path, corpus):
    train(tiny, tmp_path / "run", "budget.steps=5")
    path = corpus / "1.txt"
    path.write_text(path.read_text().swapcase())
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", "budget.steps=5")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert "data.train" in caught.value.outcome.cause
    train(tiny, tmp_path / "run", "budget.steps=5", override=["data"])


def test_resume_must_and_never(tiny, tmp_path):
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", resume="must")
    assert caught.value.outcome.code == Exit.INPUT_MISSING
    train(tiny, tmp_path / "run", resume="never")
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", resume="never")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


def test_s05_a_damaged_newest_commit_is_passed_over_and_told(tiny, tmp_path):
    train(tiny, tmp_path / "straight")
    train(tiny, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    next(newest.glob("tensors*")).write_bytes(b"x")
    train(tiny, tmp_path / "run")
    assert trace(tmp_path / "run") == trace(tmp_path / "straight")
    assert "passed over step-00000012" in of_kind(tmp_path / "run", "note")[-1]["text"]


def test_initial_weights_come_from_another_run(tiny, tmp_path):
    train(tiny, tmp_path / "first")
    train(tiny, tmp_path / "second", f"init={{from: {tmp_path / 'first'}}}", "optimizer.lr=0", "budget.steps=3")
    first, second = (next(max((tmp_path / r / "checkpoints").glob("*")).glob("tensors*")) for r in ("first", "second"))
    from safetensors.torch import load_file

    one, two = load_file(first), load_file(second)
    assert all(np.array_equal(one[name], two[name]) for name in one if name.startswith("networks/"))


def test_the_seconds_of_a_run_add_up_to_its_wall_clock(tiny, tmp_path):
    from drivetrain.ledger.derive import buckets

    train(tiny, tmp_path / "run", "budget.steps=300")
    history = list(read(tmp_path / "run" / "ledger.jsonl"))
    spent = buckets(history)
    assert sum(spent.values()) == pytest.approx(history[-1]["time"] - history[0]["started"], rel=0.01)
    assert spent["other"] < 0.05 * sum(spent.values())


def test_lineage_of_a_whole_run_has_every_step_once(tiny, tmp_path):
    train(tiny, tmp_path / "run")
    made = [r["step"] for r in lineage(read(tmp_path / "run" / "ledger.jsonl")) if r["kind"] == "step"]
    assert made == list(range(1, 13))


def test_a_mistake_that_only_the_users_class_can_tell_has_its_place_too(tmp_path):
    path = recipe_of(tmp_path)
    with pytest.raises(Failure) as caught:
        train(path, tmp_path / "run", "task.widht=3")
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert "command line: task.widht=3" in caught.value.outcome.cause
    assert "did you mean 'width'" in caught.value.outcome.cause


def test_an_override_that_accepts_nothing_says_what_it_may_have_meant(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", most_steps=2)
    outcome = run_under_supervisor(tiny, tmp_path / "run", "budget.steps=20", override=("budgett.steps",))
    assert outcome.code == Exit.INCOMPATIBLE
    assert "--override budgett.steps accepts none of them; did you mean 'budget.steps'?" in outcome.cause


@pytest.mark.parametrize("kept", [0, 4, None], ids=["emptied", "cut", "gone"])
def test_a_resume_without_records_that_its_commit_was_made_after_is_76_unless_that_is_accepted(tiny, tmp_path, kept):
    """A command may have been among them: without it the run would silently come to other bits."""
    train(tiny, tmp_path / "run", "budget.steps=5")
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    if kept is None:
        ledger.unlink()
    else:
        ledger.write_bytes(b"".join(lines[:kept]))
    told = [json.loads(line)["kind"] for line in lines[: kept or 0]].count("step")
    lacks = f"step-00000005 was made after a record that the ledger does not have: {5 - told} records or more are lost"
    with pytest.raises(Failure) as caught:
        train(tiny, tmp_path / "run", "budget.steps=5")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert caught.value.outcome.cause == lacks
    assert "--override ledger" in caught.value.outcome.hint
    train(tiny, tmp_path / "run", override=["ledger", "budget"])
    assert f"accepted by --override: {lacks}" in [note["text"] for note in of_kind(tmp_path / "run", "note")]
    train(tiny, tmp_path / "run")


def test_a_ledger_that_was_cut_after_its_commit_goes_on(tiny, tmp_path):
    """As after a kill: what was not durable when the commit began is made again."""
    train(tiny, tmp_path / "run", "budget.steps=5")
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    (commit,) = [place for place, line in enumerate(lines) if b'"kind":"commit"' in line]
    ledger.write_bytes(b"".join(lines[:commit]))
    train(tiny, tmp_path / "run", override=["budget"])
