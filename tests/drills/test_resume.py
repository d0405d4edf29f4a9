"""Resumes that are not the same run (C05 to C11) and runs that are attacked (X01 to X17), for real."""

import json
import os
import stat
import subprocess
import sys

import pytest

from conftest import run_under_supervisor, trace
from drills.fault import Fault
from drivetrain.api import evaluate, export, train
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Failure
from records import of_kind


def test_c09_another_environment_withdraws_the_claim_and_strict_env_refuses_it(tiny, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert run_under_supervisor(tiny, run, "budget.steps=5").code == Exit.DONE
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    accepted = {"override": ("budget",)}
    strict = run_under_supervisor(tiny, run, strict_environment=True, **accepted)
    assert strict.code == Exit.INCOMPATIBLE
    assert "cpu_capability" in strict.cause
    assert run_under_supervisor(tiny, run, **accepted).code == Exit.DONE
    first, *_, last = of_kind(run, "attempt")
    assert first["claim"]["key"] != last["claim"]["key"]
    assert any("bits are not comparable across this point" in record["text"] for record in of_kind(run, "note"))


def test_c07_the_same_samples_on_another_number_of_processes(tiny, tmp_path):
    run = tmp_path / "run"
    for steps, processes in ((4, 4), (8, 1), (12, 2)):
        asked = (f"budget.steps={steps}", f"launch.processes={processes}")
        assert run_under_supervisor(tiny, run, *asked, override=("budget",)).code == Exit.DONE
    run_under_supervisor(tiny, tmp_path / "alone")
    assert trace(run).samples == trace(tmp_path / "alone").samples


def test_c11_ranks_with_different_recipes_are_78(tiny, tmp_path, importable):
    outcome = run_under_supervisor(tiny, tmp_path / "run", "launch.processes=2", worker="ranks:with_another_rate")
    assert outcome.code == Exit.BAD_RECIPE
    assert "recipe differs between ranks" in outcome.cause


def test_ignored_optimizer_state_starts_anew_and_the_ledger_says_so(tiny, tmp_path):
    run = tmp_path / "run"
    run_under_supervisor(tiny, run, "budget.steps=5")
    outcome = run_under_supervisor(tiny, run, override=("budget",), ignore=("optimizer",))
    assert outcome.code == Exit.DONE
    assert any("optimizers' state in step-00000005 is ignored" in r["text"] for r in of_kind(run, "note"))
    run_under_supervisor(tiny, tmp_path / "whole", "budget.steps=5")
    run_under_supervisor(tiny, tmp_path / "whole", override=("budget",))
    assert trace(run).losses != trace(tmp_path / "whole").losses


def test_fine_tuning_from_a_run_keeps_its_frozen_weights_over_a_resume(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "base")
    init = f"init={{from: {tmp_path / 'base'}, freeze: [embed], map: {{head.: null}}, fresh: [head]}}"
    init = (
        init
        if any("head" in name for name in names_of(tmp_path / "base"))
        else init.replace(", map: {head.: null}, fresh: [head]", "")
    )
    asked = (init, "optimizer.lr=1e-3")
    assert run_under_supervisor(tiny, tmp_path / "tuned", *asked, "budget.steps=6").code == Exit.DONE
    assert run_under_supervisor(tiny, tmp_path / "tuned", *asked, override=("budget",)).code == Exit.DONE
    notes = [record["text"] for record in of_kind(tmp_path / "tuned", "note")]
    assert any("tensors loaded" in note for note in notes)
    assert any("do not train" in note for note in notes)
    base, tuned = names_of(tmp_path / "base"), names_of(tmp_path / "tuned")
    (embed,) = [name for name in base if name.startswith("networks/") and "embed" in name]
    assert base[embed].equal(tuned[embed])
    assert not any("embed" in name for name in tuned if name.startswith("optimizers/"))


def names_of(run):
    from drivetrain.checkpoint.commits import newest

    return dict(newest(run).state.tensors)


@pytest.mark.cold  # nor does anything that is imported on the way
def test_x01_x02_x03_no_load_path_unpickles_anything(tiny, tmp_path):
    """Resume, evaluation and export of a run, with pickles planted all over it, under an audit hook."""
    script = tmp_path / "audited.py"
    script.write_text(
        "import sys\n"
        "from drivetrain.api import evaluate, export, train\n"
        "import drivetrain.run, torch, json\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(args) if event == 'pickle.find_class' else None)\n"
        "recipe, run = json.loads(sys.argv[1]), sys.argv[2]\n"
        "train(recipe, run=run, progress=False, override=['budget'])\n"
        "evaluate(run)\n"
        "export(run, sys.argv[3])\n"
        "assert not seen, seen\n"
    )
    run = tmp_path / "run"
    train(tiny, ["budget.steps=5"], run=run, progress=False)
    payload = b"cos\nsystem\n(S'touch " + os.fsencode(tmp_path / "pwned") + b"'\ntR."
    for folder in (run, run / "checkpoints", *(run / "checkpoints").iterdir()):
        for name in ("model.pt", ".metadata", "state.pkl"):
            (folder / name).write_bytes(payload)
    command = [sys.executable, str(script), json.dumps(tiny), str(run), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("kind", ["os:system", "subprocess:Popen", "builtins:exec", "importlib:import_module"])
def test_x04_x06_only_what_can_be_a_task_or_a_source_is_ever_called(tiny, tmp_path, kind):
    marker = tmp_path / "pwned"
    for section in ("task", "source"):
        recipe = json.loads(json.dumps(tiny))
        custom = {"kind": kind, "command": f"touch {marker}", "args": ["touch", str(marker)]}
        if section == "task":
            recipe["task"] = custom
            recipe["data"]["train"]["sources"][0]["context"] = recipe["data"]["validation"]["dogs"]["context"] = 16
        else:
            recipe["data"]["train"]["sources"] = [custom]
        with pytest.raises(Failure, match=r"is no (task|source)\b") as caught:
            train(recipe, run=tmp_path / section, progress=False)
        assert caught.value.outcome.code == Exit.SECURITY
        assert not marker.exists()


def test_x17_a_whole_run_is_its_owners_alone(tiny, tmp_path):
    before = os.umask(0)
    try:
        assert run_under_supervisor(tiny, tmp_path / "run", "launch.processes=2").code == Exit.DONE
        train(tiny, run=tmp_path / "inside", progress=False)
    finally:
        os.umask(before)
    for run in (tmp_path / "run", tmp_path / "inside"):
        for path in (run, *run.rglob("*")):
            allowed = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == allowed, path


def test_a_run_that_was_exported_from_an_older_commit_has_its_weights(tiny, tmp_path):
    from safetensors.torch import load_file

    run_under_supervisor(tiny, tmp_path / "run")
    exported = {}
    for commit in ("5", "step-00000012", None):
        export(tmp_path / "run", tmp_path / f"out-{commit}", commit)
        exported[commit] = load_file(tmp_path / f"out-{commit}" / "model.safetensors")
    name = next(iter(exported["5"]))
    assert not exported["5"][name].equal(exported[None][name])
    assert exported["step-00000012"][name].equal(exported[None][name])
    assert evaluate(tmp_path / "run").metrics


def test_a_longer_budget_after_a_short_last_step_leaves_no_sample_out(tiny, tmp_path):
    tiny["budget"] = {"samples": 90}
    assert run_under_supervisor(tiny, tmp_path / "run").code == Exit.DONE
    tiny["budget"] = {"samples": 200}
    outcome = run_under_supervisor(tiny, tmp_path / "run", override=("budget",))
    assert outcome.code == Exit.INCOMPATIBLE
    assert "6 samples short" in outcome.cause


def test_a_resume_that_is_refused_leaves_the_directory_as_it_was(tiny, tmp_path, corpus):
    run = tmp_path / "run"
    run_under_supervisor(tiny, run, "budget.steps=5")
    kept = (run / "resolved.json").read_bytes()
    wider = run_under_supervisor(tiny, run, "task.model.width=32", override=("task", "budget"))
    assert wider.code == Exit.INCOMPATIBLE
    assert (run / "resolved.json").read_bytes() == kept
    assert run_under_supervisor(tiny, run, override=("budget",)).code == Exit.DONE


def test_an_ignored_optimizer_is_ignored_until_the_first_new_commit_whatever_happens(tiny, tmp_path, importable):
    traces = []
    for name, fault in (("killed", Fault("kill", 0, "forward", 8)), ("whole", None)):
        run = tmp_path / name
        run_under_supervisor(tiny, run, "budget.steps=5")
        if fault:
            fault.arm(run)
        outcome = run_under_supervisor(
            tiny, run, override=("budget",), ignore=("optimizer",), worker="drills.fault:main"
        )
        assert outcome.code == Exit.DONE
        traces.append([(r["step"], r["losses"]) for r in read(run / "ledger.jsonl") if r["kind"] == "step"])
    killed, whole = ({step: str(losses) for step, losses in made} for made in traces)
    assert killed == whole
