"""What a serious run switches on, all at once: stopping and going on changes no bit, and neither does what is read."""

from pathlib import Path

import pytest
import torch

import drivetrain
from conftest import run_under_supervisor, trace
from drivetrain.checkpoint.commits import newest
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.run.finished import evaluate_run
from drivetrain.spec.exits import Exit, Failure

pytestmark = pytest.mark.usefixtures("importable")


def everything(tiny: dict, corpus: Path) -> dict:
    """A blend, a ramp of the batch, averaged weights, early stopping, a spike window, steps left out."""
    sources = [{"name": name, "kind": "text", "path": str(corpus / name)} for name in ("0.txt", "1.txt")]
    return tiny | {
        "data": tiny["data"] | {"train": {"sources": [sources[0] | {"weight": 2}, sources[1]]}},
        "batch": {"size": 8, "micro": 2, "ramp": [{"from": {"samples": 60}, "size": 12}]},
        "budget": {"steps": 24},
        "average": {"decay": 0.9},
        "guard": {"spike": {"window": 6, "action": "skip"}, "skip": [5, "13-14"]},
        "evaluate": {"every": {"steps": 4}, "batch": 64},
        "stop": {"patience": {"metric": "dogs/loss", "evaluations": 50}},
        "statistics": {"every": {"steps": 7}},
        "telemetry": {"every": {"steps": 5}},
    }


@pytest.mark.parametrize(("processes", "precision"), [(1, "fp16"), (2, "fp32")])
def test_stopped_and_gone_on_equals_never_stopped_with_everything_on(tiny, corpus, tmp_path, processes, precision):
    recipe = everything(tiny, corpus) | {"precision": precision}
    recipe["launch"]["processes"] = processes
    if precision == "fp16":
        recipe["scaling"] = {"start": 2.0**10, "window": 4}
    assert run_under_supervisor(recipe, tmp_path / "straight").code == Exit.DONE
    scales = {r.get("scale") for r in read(tmp_path / "straight" / "ledger.jsonl") if r["kind"] == "step"}
    assert len(scales) > 3 if precision == "fp16" else scales == {None}
    for steps in (3, 2, 6, 5, None):
        run_under_supervisor(recipe, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")
    measured = [
        [
            (r["step"], r["networks"])
            for r in lineage(read(tmp_path / name / "ledger.jsonl"))
            if r["kind"] == "statistics"
        ]
        for name in ("stopped", "straight")
    ]
    assert measured[0] == measured[1]
    assert [step for step, _ in measured[0]] == [7, 21]  # step 14 is left out


@pytest.mark.parametrize("processes", [1, 2])
def test_half_precision_with_its_scale_resumes_to_the_same_bits(tiny, tmp_path, processes):
    recipe = tiny | {"precision": "fp16", "scaling": {"start": 2.0**30, "window": 4}, "budget": {"steps": 40}}
    recipe["launch"]["processes"] = processes
    assert run_under_supervisor(recipe, tmp_path / "straight").code == Exit.DONE
    for steps in (2, 17, None):
        run_under_supervisor(recipe, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")
    made = [r for r in read(tmp_path / "straight" / "ledger.jsonl") if r["kind"] == "step"]
    over = [r["step"] for r in made if r.get("skipped") == {"model": "overflow"}]
    assert over[0] == 1
    assert len(over) < 35
    assert [r["scale"] for r in made[:2]] == [2.0**30, 2.0**29]
    assert newest(tmp_path / "straight").state.values["moves"]["model"] == 40 - len(over)
    drivetrain.export(tmp_path / "straight", tmp_path / "exported")
    assert (tmp_path / "exported" / "model.safetensors").is_file()


def test_two_then_one_then_two_processes_with_a_ramp_use_each_sample_once(tiny, corpus, tmp_path):
    recipe = everything(tiny, corpus)
    run_under_supervisor(recipe, tmp_path / "whole")
    for steps, processes in ((6, 2), (7, 1), (None, 2)):
        run_under_supervisor(recipe, tmp_path / "run", f"launch.processes={processes}", most_steps=steps)
    used = {name: samples_used(lineage(read(tmp_path / name / "ledger.jsonl"))) for name in ("run", "whole")}
    assert used["run"] == used["whole"]
    assert [stop - start for _, start, stop, _ in used["run"]] == [8] * 8 + [12] * 16


def test_there_is_a_commit_before_the_batch_changes(tiny, corpus, tmp_path):
    recipe = everything(tiny, corpus) | {"checkpoint": {}}
    run_under_supervisor(recipe, tmp_path / "run")
    assert [r["step"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "commit"] == [8, 24]


def test_megatron_9_schedules_end_with_the_run_whatever_the_ramp(tiny, tmp_path):
    """A decay by steps under a ramp ends at the last step, and one by samples at its sample."""
    recipe = tiny | {
        "batch": {"size": 8, "ramp": [{"from": {"steps": 4}, "size": 16}, {"from": {"steps": 8}, "size": 24}]},
        "schedule": {"kind": "linear", "warmup": {"steps": 2}, "floor": 0.0},
    }
    run_under_supervisor(recipe, tmp_path / "run")
    rates = [r["lr"]["model"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "step"]
    peak, total, warm = 1e-2, 4 * 8 + 4 * 16 + 4 * 24, 16
    position = 0
    for rate, size in zip(rates, [8] * 4 + [16] * 4 + [24] * 4, strict=True):
        position += size
        wanted = position / warm if position <= warm else (total - position) / (total - warm)
        assert rate == pytest.approx(peak * wanted, abs=1e-9)
    assert rates[-1] == 0.0


@pytest.mark.parametrize(
    ("override", "code"),
    [("batch.size=4", Exit.INCOMPATIBLE), ("batch.ramp=[{from: {steps: 7}, size: 16}]", Exit.DONE)],
)
def test_a_batch_may_change_from_a_later_point_on_only(tiny, tmp_path, override, code):
    run_under_supervisor(tiny, tmp_path / "run", most_steps=6)
    outcome = run_under_supervisor(tiny, tmp_path / "run", override, override=("batch",))
    assert outcome.code == code
    assert code == Exit.DONE or "batch.ramp" in outcome.hint


def test_a_phase_with_other_data_goes_on_at_the_same_position(tiny, corpus, tmp_path):
    phases = tiny | {"stop": {"at": [6]}}
    assert run_under_supervisor(phases, tmp_path / "run").code == Exit.STOPPED
    second = f"data.train.sources[0].path={corpus / '1.txt'}"
    assert run_under_supervisor(phases, tmp_path / "run", second).code == Exit.INCOMPATIBLE
    assert run_under_supervisor(phases, tmp_path / "run", second, override=("data",)).code == Exit.DONE
    used = samples_used(lineage(read(tmp_path / "run" / "ledger.jsonl")))
    assert [(step, start) for step, start, _, _ in used] == [(step, (step - 1) * 8) for step in range(1, 13)]
    run_under_supervisor(tiny, tmp_path / "other", second)
    assert used[6:] == samples_used(lineage(read(tmp_path / "other" / "ledger.jsonl")))[6:]
    notes = [r["text"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "note"]
    assert any("data.train.sources[0]" in note and "--override" in note for note in notes)


def test_the_average_is_what_is_scored_and_exported(tiny, tmp_path):
    recipe = tiny | {"average": {"decay": 0.95, "warmup": False}}
    run_under_supervisor(recipe, tmp_path / "run")
    scored = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "evaluation"][-1]["metrics"]["dogs"]
    by = {kind: evaluate_run(tmp_path / "run", None, weights=kind).metrics["dogs"] for kind in ("averaged", "trained")}
    assert by["averaged"] == pytest.approx(scored)
    assert by["trained"]["loss"] != pytest.approx(scored["loss"])
    assert drivetrain.evaluate(tmp_path / "run").metrics["dogs"] == by["averaged"]
    tensors = newest(tmp_path / "run").state.tensors
    from safetensors.torch import load_file

    for weights, kind in ((None, "averages"), ("trained", "networks")):
        drivetrain.export(tmp_path / "run", tmp_path / kind, weights=weights)
        exported = load_file(tmp_path / kind / "model.safetensors")
        assert torch.equal(exported["model.norm.weight"], tensors[f"{kind}/model/norm.weight"])
    run_under_supervisor(tiny, tmp_path / "plain")
    with pytest.raises(Failure) as caught:
        evaluate_run(tmp_path / "plain", None, weights="averaged")
    assert caught.value.outcome.code == Exit.INPUT_MISSING


def test_an_average_that_is_added_later_begins_at_the_weights(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", most_steps=6)
    added = tiny | {"average": {"decay": 0.9}}
    assert run_under_supervisor(added, tmp_path / "run").code == Exit.INCOMPATIBLE
    assert run_under_supervisor(added, tmp_path / "run", override=("average",)).code == Exit.DONE
    notes = [r["text"] for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "note"]
    assert any("begin at its weights" in note for note in notes)
    averages = {name for name in newest(tmp_path / "run").state.tensors if name.startswith("averages/")}
    assert averages


def test_batch_statistics_of_two_processes_are_scored_as_they_are_committed(tmp_path):
    """Every rank has rank 0's while it scores; batch normalization changes them without telling torch's counter."""
    recipe = {
        "name": "statistics",
        "task": {"kind": "guarded:Fit"},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}, "validation": {"rows": {"kind": "guarded:Rows"}}},
        "lanes": 2,
        "batch": {"size": 8},
        "budget": {"steps": 6},
        "evaluate": {"batch": 30},
        "launch": {"threads": 1, "processes": 2},
    }
    assert run_under_supervisor(recipe, tmp_path / "run").code == Exit.DONE
    (told,) = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "evaluation"]
    alone = evaluate_run(tmp_path / "run", None).metrics["rows"]["loss"]
    assert told["metrics"]["rows"]["loss"] == pytest.approx(alone, rel=1e-6)
