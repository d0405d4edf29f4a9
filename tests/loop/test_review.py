"""What a review of the training features has broken once."""

import json
import math

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.checkpoint.commits import newest
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.run.finished import evaluate_run
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from loop.test_guard import made, recipe, sample_of
from records import rechained

pytestmark = pytest.mark.usefixtures("importable")


def with_set(**changes) -> dict:
    base = recipe(**changes)
    base["data"]["validation"] = {"rows": {"kind": "guarded:Rows"}}
    return base | {"evaluate": {"every": {"steps": 4}, "batch": 30}}


def evaluated(run):
    return [(r["step"], r["metrics"]) for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "evaluation"]


@pytest.mark.parametrize("task", ["Two", "Plain"])
def test_buffers_that_change_late_or_are_replaced_are_the_same_after_a_stop(tmp_path, task):
    wanted = with_set(task={"kind": f"guarded:{task}"})
    wanted["launch"]["processes"] = 2
    assert run_under_supervisor(wanted, tmp_path / "straight").code == Exit.DONE
    for steps in (1, 4, None):
        run_under_supervisor(wanted, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")
    assert evaluated(tmp_path / "stopped") == evaluated(tmp_path / "straight")
    (_, told) = evaluated(tmp_path / "straight")[-1]
    alone = evaluate_run(tmp_path / "straight", None).metrics["rows"]["loss"]
    assert told["rows"]["loss"] == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("task", ["Two", "Plain"])
@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_step_that_is_left_out_did_to_them_is_undone(tmp_path, task, processes):
    wanted = with_set(task={"kind": f"guarded:{task}", "nan": [sample_of(6)]}, guard={"nonfinite": "skip"})
    wanted["launch"]["processes"] = processes
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    assert all(tensor.isfinite().all() for tensor in newest(tmp_path / "run").state.tensors.values())
    assert math.isfinite(evaluated(tmp_path / "run")[-1][1]["rows"]["loss"])


def test_an_average_of_networks_that_share_a_layer_changes_nothing_of_them(tmp_path):
    plain = with_set(task={"kind": "guarded:Shared"}, optimizer={"kind": "sgd", "lr": 0.01})
    run_under_supervisor(plain, tmp_path / "plain")
    run_under_supervisor(plain | {"average": {"decay": 0.9}}, tmp_path / "averaged")
    states = [newest(tmp_path / name).state.tensors for name in ("plain", "averaged")]
    assert all(states[1][name].equal(tensor) for name, tensor in states[0].items())
    assert sum(name.startswith("averages/") for name in states[1]) == 6


def test_an_average_is_the_same_whatever_a_step_is_left_out_for(tmp_path):
    bad = recipe(task={"kind": "guarded:Fit", "nan": [sample_of(7)]}, guard={"nonfinite": "skip"})
    states = []
    for name, wanted in (("by itself", bad), ("told", recipe(guard={"skip": [7]}))):
        run_under_supervisor(wanted | {"average": {"decay": 0.9}}, tmp_path / name)
        states.append(newest(tmp_path / name).state.tensors)
    assert all(states[1][name].equal(tensor) for name, tensor in states[0].items())


def test_a_network_that_moves_twice_in_a_step_has_both_in_the_ledger(tmp_path):
    run_under_supervisor(recipe(task={"kind": "guarded:Twice"}, budget={"steps": 2}), tmp_path / "run")
    first = made(tmp_path / "run")[1]
    assert first["losses"].keys() == {"model.loss", "model#2.loss"}
    assert first["losses"]["model.loss"] > 1e3 * first["losses"]["model#2.loss"]
    assert first["norm"].keys() == {"model", "model#2"}


def test_a_step_on_the_list_does_not_begin_the_count_anew(tmp_path):
    task = {"kind": "guarded:Fit", "nan": [sample_of(step) for step in (4, 5, 7)]}
    wanted = recipe(task=task, guard={"nonfinite": "skip", "in_a_row": 2, "skip": [6]})
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.DIVERGED, 7)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("guard.skip=['12-10']", "ends before it begins"),
        ("guard.spike={window: 1}", "greater than or equal to 4"),
        ("statistics={every: {tokens: 500}}", "no fixed number of tokens"),
        ("batch.ramp=[{from: {tokens: 500}, size: 16}]", "no fixed number of tokens"),
    ],
)
def test_what_could_never_act_is_a_mistake(override, words):
    with pytest.raises(RecipeMistakes, match=words):
        load(recipe(), [override])


def test_a_stretch_of_steps_may_be_long():
    assert load(recipe(), ["guard.skip=['30-30000000000']"]).recipe.guard.listed == [(30, 30000000000)]


@pytest.mark.parametrize("section", ["stop.patience", "checkpoint.keep_best"])
def test_a_metric_that_the_task_does_not_have_is_78(tmp_path, section):
    outcome = run_under_supervisor(with_set(), tmp_path / "run", f"{section}={{metric: rows/lossy}}")
    assert outcome.code == Exit.BAD_RECIPE
    assert "lossy" in outcome.cause
    assert "loss" in outcome.hint


def test_the_best_evaluation_has_a_commit_whenever_commits_are_due(tmp_path):
    wanted = with_set(checkpoint={"every": {"steps": 7}, "keep": 1, "keep_best": {"metric": "rows/loss"}})
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    scores = {step: metrics["rows"]["loss"] for step, metrics in evaluated(tmp_path / "run")}
    best = min(scores, key=scores.get)
    there = {int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert best in there
    assert max(scores) in there


def test_scores_of_data_that_have_changed_are_refused(tiny, corpus, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run")
    (corpus / "3.txt").write_text("something else\n" * 400)
    with pytest.raises(Failure) as caught:
        evaluate_run(tmp_path / "run", None)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


@pytest.mark.parametrize("processes", [1, 2])
def test_n07_a_step_that_comes_to_other_numbers_when_it_is_made_again_ends_with_83(tiny, tmp_path, processes):
    """The ledger tells of a loss that the same bits cannot give, as after a flip on all ranks; nothing is committed."""
    import shutil

    tiny["launch"]["processes"] = processes
    tiny["launch"]["restarts"] = 0
    run = tmp_path / "run"
    run_under_supervisor(tiny, run, most_steps=7)
    shutil.rmtree(run / "checkpoints" / "step-00000007")
    kept = []
    for line in (run / "ledger.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        if record["kind"] == "step" and record["step"] == 6:
            record["losses"]["loss"] += 1e-6
        if (record["kind"], record.get("step")) != ("commit", 7):
            kept.append(json.dumps(record).encode())
    (run / "ledger.jsonl").write_bytes(rechained(kept))
    outcome = run_under_supervisor(tiny, run)
    assert outcome.code == Exit.CORRUPTION_SUSPECTED
    assert "step 6" in outcome.cause
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "step-00000005"


def test_another_number_of_processes_is_noted(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", "launch.processes=2", most_steps=5)
    run_under_supervisor(tiny, tmp_path / "run")
    notes = [r["text"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "note"]
    assert any("2 processes" in note and "round differently" in note for note in notes)


@pytest.mark.parametrize(
    ("train", "scored", "refused"),
    [
        ({}, {"part": "validation"}, True),
        ({"part": "train"}, {}, True),
        ({"part": "train", "holdout": 0.1}, {"part": "validation", "holdout": 0.2}, True),
        ({"part": "train"}, {"part": "validation"}, False),
        ({"part": "train"}, {"part": "train"}, False),
        ({}, {}, False),
    ],
)
def test_training_and_validation_that_have_samples_in_common_are_a_mistake(tiny, corpus, train, scored, refused):
    source = {"kind": "text", "path": str(corpus)}
    tiny["data"] = {"train": {"sources": [source | train]}, "validation": {"dogs": source | scored}}
    if refused:
        with pytest.raises(RecipeMistakes, match="samples in common"):
            load(tiny)
    else:
        load(tiny)


def test_an_override_that_accepts_nothing_says_what_it_may_have_meant(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", most_steps=2)
    outcome = run_under_supervisor(tiny, tmp_path / "run", "budget.steps=20", override=("budgett.steps",))
    assert outcome.code == Exit.INCOMPATIBLE
    assert "--override budgett.steps accepts none of them; did you mean 'budget.steps'?" in outcome.cause
