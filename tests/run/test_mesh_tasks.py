"""Shipped tasks, and all that acts on a run from outside, where tensors are cut."""

import json
import shutil

import pytest
import torch

import adversarial
import glues
import sounds
from conftest import run_under_supervisor, tensors, trace
from drills import commands
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

SHARDS = ("launch.processes=2", "parallel.shard=2")


def classifier(folder):
    return glues.recipe(glues.folders(folder))


def denoiser(folder):
    return sounds.tiny_recipe(sounds.folders(folder)) | {"budget": {"steps": 12}, "evaluate": {"every": {"steps": 6}}}


def adversaries(folder):
    kept = {"precision": "bf16", "parameters": {"dtype": "bf16", "rounding": "stochastic"}}
    return adversarial.recipe(task={"kind": "adversarial:Gan", "dropout": 0.0}, **kept)


def of_kind(run, kind):
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


@pytest.mark.parametrize("made", [classifier, denoiser, adversaries])
def test_a_task_trains_sharded_as_it_does_alone_and_goes_on_to_the_same_bits(made, tmp_path, importable):
    recipe = made(tmp_path)
    for run, asked in (("one", ()), ("straight", SHARDS)):
        assert run_under_supervisor(recipe, tmp_path / run, *asked).code is Exit.DONE
    assert run_under_supervisor(recipe, tmp_path / "halves", *SHARDS, most_steps=7).code is Exit.STOPPED
    assert run_under_supervisor(recipe, tmp_path / "halves", *SHARDS).code is Exit.DONE
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    assert trace(tmp_path / "straight").samples == trace(tmp_path / "one").samples
    require_near(tmp_path / "straight", tmp_path / "one")


def require_near(run, alone):
    for sharded, one in zip(of_kind(run, "step"), of_kind(alone, "step"), strict=True):
        for what in ("losses", "norm"):
            assert sharded[what] == pytest.approx(one[what], rel=1e-3, abs=1e-5)


def test_what_the_recipe_freezes_stays_still_on_a_mesh_and_may_be_of_any_type(tmp_path, importable):
    """By network, and by pattern; what does not train beside it is loaded."""
    recipe = {
        "name": "taught",
        "task": {"kind": "frozen:Taught"},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 4},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "networks": {"teacher": {"freeze": True}},
        "launch": {"threads": 1},
    }
    assert run_under_supervisor(recipe, tmp_path / "before").code is Exit.DONE
    recipe["init"] = {"from": str(tmp_path / "before"), "freeze": ["pupil/0"]}
    for run, asked in (("one", ()), ("mesh", SHARDS)):
        assert run_under_supervisor(recipe, tmp_path / run, *asked).code is Exit.DONE
    require_near(tmp_path / "mesh", tmp_path / "one")
    before, after = tensors(tmp_path / "before"), tensors(tmp_path / "mesh")
    still = {name for name in before if name.startswith("networks/") and torch.equal(before[name], after[name])}
    teacher = {"networks/teacher/layer.weight", "networks/teacher/layer.bias", "networks/teacher/table"}
    assert still == teacher | {"networks/pupil/0.weight", "networks/pupil/0.bias"}


def test_a_step_of_which_one_rank_has_quarantined_samples_only_is_made_of_the_others(tmp_path, importable):
    held = sorted(adversarial.sample_of(3, place) for place in range(8, 16))
    recipe = adversarial.recipe(guard={"quarantine": held})
    for run, asked in (("one", ()), ("mesh", SHARDS)):
        assert run_under_supervisor(recipe, tmp_path / run, *asked).code is Exit.DONE
    assert trace(tmp_path / "mesh").samples == trace(tmp_path / "one").samples
    require_near(tmp_path / "mesh", tmp_path / "one")
    whole = adversarial.recipe()
    assert run_under_supervisor(whole, tmp_path / "whole", *SHARDS).code is Exit.DONE
    assert trace(tmp_path / "whole").samples != trace(tmp_path / "mesh").samples


@pytest.mark.parametrize("kills", [False, True])
def test_random_commands_act_at_one_step_on_all_ranks_and_a_replay_is_bit_equal(tmp_path, importable, kills):
    asked = {"steps": 150, "processes": 2, "seed": 5, "most": 40, "pause": 0.05}
    count, wrong = commands.told_and_replayed(tmp_path, **asked, kills=kills, shard=2)
    assert wrong == []
    assert count > 5


def test_a_deadline_ends_with_a_commit_of_all_parts(tiny, tmp_path):
    outcome = run_under_supervisor(tiny, tmp_path / "run", *SHARDS, "stop.deadline=0.001")
    assert outcome.code is Exit.STOPPED
    (commit,) = of_kind(tmp_path / "run", "commit")
    assert commit["step"] == outcome.where["step"]
    names = [path.name for path in (tmp_path / "run" / "checkpoints" / f"step-{commit['step']:08d}").iterdir()]
    assert {"tensors-00000-00000.safetensors", "tensors-00001-00000.safetensors"} <= set(names)


def test_a_fresh_machine_goes_on_from_a_mirror_of_parts(tiny, tmp_path):
    pytest.importorskip("obstore")
    mirrored = f"checkpoint.mirror=file://{tmp_path}/mirror"
    assert run_under_supervisor(tiny, tmp_path / "straight", *SHARDS).code is Exit.DONE
    assert run_under_supervisor(tiny, tmp_path / "lost", *SHARDS, mirrored, most_steps=7).code is Exit.STOPPED
    shutil.rmtree(tmp_path / "lost")
    assert run_under_supervisor(tiny, tmp_path / "fresh", *SHARDS, mirrored).code is Exit.DONE
    assert trace(tmp_path / "fresh") == trace(tmp_path / "straight")
    manifests = [json.loads(path.read_text().splitlines()[0]) for path in (tmp_path / "mirror").rglob("MANIFEST.json")]
    assert any("tensors-00001-00000.safetensors" in manifest["files"] for manifest in manifests)
