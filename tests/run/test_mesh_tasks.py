"""Shipped tasks, and all that acts on a run from outside, where tensors are cut."""

import json
import os
import shutil

import pytest
import soundfile
import torch

import adversarial
import drivetrain
import glues
import sounds
from conftest import run_under_supervisor, tensors, tiny_recipe, trace
from drills import commands
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.run.restored import WHOLE
from drivetrain.spec.exits import Exit

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]

SHARDS = ("launch.processes=2", "parallel.shard=2")
GROUPS = ("launch.processes=4", "parallel.replicate=2", "parallel.shard=2")
MESHES = [pytest.param(SHARDS, id="shard")]
if "DRILL" in os.environ:
    MESHES.append(pytest.param(GROUPS, id="replicate x shard"))


BRIEF = {"budget": {"steps": 8}, "evaluate": {"every": None, "batch": 2}, "batch": {"size": 4, "micro": 1}}
"""Numbers that a loss draws are those of the micro-batch: it has to be the same one on every mesh."""


def classifier(folder):
    return glues.recipe(glues.folders(folder))


def adapted(folder):
    """Adapters and head train; all else is frozen, in the same units."""
    return glues.recipe(glues.folders(folder), lora={"rank": 2})


def denoiser(folder):
    return sounds.tiny_recipe(sounds.folders(folder)) | {"budget": {"steps": 12}, "evaluate": {"every": {"steps": 6}}}


def vocoder(folder):
    """Its discriminator moves from step 4 on."""
    return sounds.tiny_vocoder() | BRIEF | {"networks": {"discriminator": {"start": 4}}}


def enhancer(folder):
    """Behind a generator that does not train, from a run on a mesh."""
    recipe = sounds.tiny_vocoder() | {"budget": {"steps": 1}}
    assert run_under_supervisor(recipe, folder / "stage-one", *SHARDS, "networks.discriminator.start=1").code == 0
    return sounds.tiny_enhancer(folder / "stage-one") | BRIEF


def adversaries(folder):
    kept = {"precision": "bf16", "parameters": {"dtype": "bf16", "rounding": "stochastic"}}
    return adversarial.recipe(task={"kind": "adversarial:Gan", "dropout": 0.0}, **kept)


def of_kind(run, kind):
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


ALWAYS = [classifier, denoiser, enhancer, adversaries]
SOMETIMES = [adapted, vocoder] if "DRILL" in os.environ else []


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("made", ALWAYS + SOMETIMES)
def test_a_task_trains_sharded_as_it_does_alone_and_goes_on_to_the_same_bits(made, mesh, tmp_path, importable):
    recipe = made(tmp_path)
    for run, asked in (("one", ()), ("straight", mesh)):
        assert run_under_supervisor(recipe, tmp_path / run, *asked).code is Exit.DONE
    assert run_under_supervisor(recipe, tmp_path / "halves", *mesh, most_steps=7).code is Exit.STOPPED
    assert run_under_supervisor(recipe, tmp_path / "halves", *mesh).code is Exit.DONE
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    assert trace(tmp_path / "straight").samples == trace(tmp_path / "one").samples
    # bf16 weights that are rounded by chance are one step apart where a sum is, which is 1/256 of the number.
    require_near(tmp_path / "straight", tmp_path / "one", 5e-3 if made is adversaries else 1e-3)
    if made is enhancer:
        before, after = tensors(tmp_path / "stage-one"), tensors(tmp_path / "straight")
        kept = [name for name in after if "generator/" in name]
        assert len(kept) > 30
        assert all(torch.equal(after[name], before[name]) for name in kept)
    if made in USED:
        told = [USED[made](tmp_path, tmp_path / run) for run in ("straight", "one")]
        assert told[0] == pytest.approx(told[1], abs=1e-3)


def predictions(folder, run):
    """What a classifier says of a set: how likely the first label is."""
    to = run.with_suffix(".jsonl")
    drivetrain.predict(run, "dev", to)
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    return [next(iter(row["probabilities"].values())) for row in rows]


def recordings(folder, run):
    """What a run makes of a folder of sounds: some numbers of each."""
    drivetrain.infer_speech(run, folder / "speech" / "s0", run.with_suffix(".out"))
    found = []
    for path in sorted(run.with_suffix(".out").iterdir()):
        found += soundfile.read(path)[0][:100].tolist()
    return found


USED = {classifier: predictions, adapted: predictions, denoiser: recordings}


def require_near(run, alone, apart=1e-3):
    for sharded, one in zip(of_kind(run, "step"), of_kind(alone, "step"), strict=True):
        for what in ("losses", "norm"):
            assert sharded[what] == pytest.approx(one[what], rel=apart, abs=1e-5)


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


@pytest.mark.parametrize("mesh", MESHES)
def test_a_step_of_which_one_rank_has_quarantined_samples_only_is_made_of_the_others(mesh, tmp_path, importable):
    held = sorted(adversarial.sample_of(3, place) for place in range(8, 16))
    recipe = adversarial.recipe(guard={"quarantine": held})
    for run, asked in (("one", ()), ("mesh", mesh)):
        assert run_under_supervisor(recipe, tmp_path / run, *asked).code is Exit.DONE
    assert trace(tmp_path / "mesh").samples == trace(tmp_path / "one").samples
    require_near(tmp_path / "mesh", tmp_path / "one")
    whole = adversarial.recipe()
    assert run_under_supervisor(whole, tmp_path / "whole", *mesh).code is Exit.DONE
    assert trace(tmp_path / "whole").samples != trace(tmp_path / "mesh").samples
    # This task does not build on the meta device.
    told = {run: [note["text"] for note in of_kind(tmp_path / run, "note")] for run in ("one", "mesh")}
    assert (WHOLE in told["mesh"], WHOLE in told["one"]) == (True, False)


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


@pytest.mark.parametrize("split", ["shard", "tensor"])
def test_training_samples_are_scored_alike_whatever_is_cut(tmp_path, corpus, split):
    asked = ("launch.processes=2", "parallel.replicate=1", f"parallel.{split}=2")
    given = tiny_recipe(corpus)
    given["evaluate"] = {"every": None, "training": {"every": {"steps": 2}}}
    for name, own in (("one", ()), ("cut", asked)):
        assert run_under_supervisor(given, tmp_path / name, *own, most_steps=6).code is Exit.STOPPED

    def scores(name):
        found = [record for record in read(tmp_path / name / "ledger.jsonl") if record["kind"] == "training"]
        return [(record["step"], *record["metrics"].values()) for record in found]

    assert len(scores("one")) == 3
    assert scores("cut") == [pytest.approx(each, rel=1e-5) for each in scores("one")]
