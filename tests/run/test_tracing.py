"""What a plan says of a step, beside a real run under the real supervisor with the same meter around its steps."""

import json
import os
from dataclasses import replace

import pytest

import planned_recipes
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import prepare_job
from drivetrain.launch.supervisor import supervise
from drivetrain.run.planning import open_plan, predict, predictions, stage_size
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.mesh import MeshSizes

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked", "importable"),
]

CASES = {
    "one process": ({}, ()),
    "shard": ({"shard": 2}, ("activations=recompute",)),
    "replicate": ({"replicate": 2}, ()),
    "selective": ({}, ("activations=selective", "precision=bf16")),
    "exact": ({"replicate": 2}, ("exact=true",)),
    "bf16 weights": ({"shard": 2}, ("precision=bf16", "parameters={dtype: bf16}", "average={decay: 0.9}")),
    "galore": ({}, ("optimizer={kind: galore, lr: 1e-3, rank: 8, gap: 200}",)),
    "tensor": ({"tensor": 2}, ()),
    "parts": ({"shard": 2}, ("parallel.accumulate=parts",)),
    "replicate x shard": ({"replicate": 2, "shard": 2}, ()),
    "shard x tensor": ({"shard": 2, "tensor": 2}, ()),
    "pipeline": ({"pipeline": 2}, ()),
    "gpipe": ({"pipeline": 2}, ("parallel.pipeline_schedule=gpipe",)),
    "interleaved": (
        {"pipeline": 2},
        ("parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=2", "task.model.depth=4"),
    ),
    "zero bubble": ({"pipeline": 2}, ("parallel.pipeline_schedule=zero_bubble", "activations=recompute")),
    "pipeline x shard": ({"pipeline": 2, "shard": 2}, ()),
    "context": ({"context": 2}, ()),
    "context x shard": ({"context": 2, "shard": 2}, ("activations=recompute",)),
    "context x tensor": ({"context": 2, "tensor": 2}, ()),
    "context x pipeline": ({"context": 2, "pipeline": 2}, ()),
    "pipeline x tensor": ({"pipeline": 2, "tensor": 2}, ()),
    "pipeline 4": ({"pipeline": 4}, ("task.model.depth=4",)),
}
DRILL = "DRILL" in os.environ
HERE = list(CASES) if DRILL else ["one process", "shard", "shard x tensor", "pipeline"]
RECIPES = [*planned_recipes.LANGUAGE, *planned_recipes.SHIPPED] if DRILL else planned_recipes.FEW
MODEL = planned_recipes.LLAMA


@pytest.fixture
def recipe(tiny):
    tiny["task"]["model"] = MODEL
    return tiny | {"budget": {"steps": 6}, "batch": {"size": 16, "micro": 2}, "checkpoint": {}, "evaluate": {}}


def opened_plan(recipe, overrides, sizes):
    return open_plan(load(recipe, overrides).recipe, sizes.world, data=False)


def trained(recipe, overrides, run):
    """Train under a meter; the most live bytes of each step, by rank."""
    job = prepare_job(load(recipe, overrides), run=run, overrides=overrides, options=StartOptions())
    outcome = supervise(job, worker="ranks_plan:metered", preload=("torch", "drivetrain.engine.layout"))
    assert outcome.code is Exit.DONE, outcome
    return [json.loads((run / f"peaks-{rank}.json").read_text()) for rank in range(job.processes)]


def needed(peaks):
    """What a step takes, of those behind the first one, in which optimizers' state is seen only once it is touched.

    All are alike. The least, since a thread of gloo's holds a message's memory for longer where it has to wait for a
    processor.
    """
    return min(peaks[1:])


def state_files(run, *begin):
    """Bytes of the commit's files whose names begin so."""
    (commit,) = (run / "checkpoints").glob("step-*")
    return {path.name: path.stat().st_size for path in commit.iterdir() if path.name.startswith(begin)}


@pytest.mark.parametrize("name", HERE)
def test_a_step_takes_what_was_planned_and_a_commit_has_as_many_bytes(name, recipe, tmp_path):
    mesh, more = CASES[name]
    sizes = MeshSizes(**mesh)
    overrides = [f"launch.processes={sizes.world}", f"parallel={json.dumps(mesh)}", *more]
    peaks = trained(recipe, overrides, tmp_path / "run")
    within = 0.03 if "tensor" in mesh else 0.01
    # Of one rank, and where there is a pipeline of one at each place along it.
    found = predictions(opened_plan(recipe, overrides, sizes), sizes)
    for rank, each in found.items():
        assert sum(each.later.peak.peak) == pytest.approx(needed(peaks[rank]), rel=within), (rank, each.later.peak)
        begin = ("tensors", "boxes") if sizes.replicated else (f"tensors-{rank:05d}-", f"boxes-{rank:05d}")
        assert each.written == sum(state_files(tmp_path / "run", *begin).values())
    for rank, seen in enumerate(peaks):
        place = rank // stage_size(sizes) * stage_size(sizes)
        assert sum(found[place].later.peak.peak) == pytest.approx(needed(seen), rel=within)


@pytest.mark.parametrize("name", RECIPES)
def test_every_kind_of_training_takes_what_was_planned(name, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, overrides = planned_recipes.recipe(name, tiny, tmp_path)
    (peaks,) = trained(recipe, overrides, tmp_path / "run")
    (seen,) = predictions(opened_plan(recipe, overrides, MeshSizes()), MeshSizes(), whole=True).values()
    assert sum(seen.later.peak.peak) == pytest.approx(peaks[-1], rel=0.01)
    assert seen.written == sum(state_files(tmp_path / "run", "tensors", "boxes").values())


TABLES = {
    "by row": ({"replicate": 2}, "row"),
    "by table": ({"replicate": 2}, "table"),
    "by each": ({"replicate": 2}, "each"),
    "shard": ({"shard": 2}, "auto"),
}
SOME_TABLES = list(TABLES) if DRILL else ["by row"]


@pytest.mark.parametrize("name", SOME_TABLES)
def test_tables_that_processes_share_out_take_what_was_planned(name, tiny, tmp_path, monkeypatch):
    """The others are taken to ask as this one does, and each of them asks for rows of its own samples."""
    monkeypatch.chdir(tmp_path)
    mesh, hold = TABLES[name]
    recipe, overrides = planned_recipes.recipe("ctr-demo", tiny, tmp_path)
    overrides += ["launch.processes=2", f"parallel={json.dumps(mesh)}", f"embeddings.hold={{'.*': {hold}}}", "lanes=2"]
    overrides += ["data.train.sources=[{kind: clicks, samples: 8192}]", "batch={size: 8192, micro: 4096}"]
    sizes = MeshSizes(**mesh)
    peaks = trained(recipe, overrides, tmp_path / "run")
    opened = open_plan(load(recipe, overrides).recipe, sizes.world)
    for rank, seen in enumerate(peaks):
        found = predict(opened, sizes, rank=rank)
        # Each step, and each rank, asks for other rows.
        assert sum(found.later.peak.peak) == pytest.approx(needed(seen), rel=0.05)
        begin = f"tensors-{rank:05d}-", f"boxes-{rank:05d}"
        assert found.written == sum(state_files(tmp_path / "run", *begin).values())


@pytest.mark.parametrize("mesh", [{}, {"replicate": 2, "shard": 4, "tensor": 2}], ids=str)
def test_a_deep_network_is_planned_from_few_layers(mesh, recipe):
    recipe["task"]["model"] = MODEL | {"depth": 7}
    sizes = MeshSizes(**mesh)
    overrides = [f"launch.processes={sizes.world}", f"parallel={json.dumps(mesh)}", "lanes=8"]
    opened = open_plan(load(recipe, overrides).recipe, sizes.world, data=False)
    few, whole = predict(opened, sizes), predict(opened, sizes, whole=True)
    assert "of 7 equal layers" in few.how
    assert few.peak == pytest.approx(whole.peak, rel=1e-4)
    assert (few.flops, few.sent, few.state, few.copied) == (whole.flops, whole.sent, whole.state, whole.copied)
    assert few.parameters == whole.parameters
    assert few.written == pytest.approx(whole.written, abs=300)  # longer numbers in the headers of files


def test_the_counted_flops_are_those_of_the_formula_but_for_what_a_mask_hides(recipe):
    found = predict(opened := open_plan(load(recipe).recipe, 1, data=False), MeshSizes())
    shape = opened.recipe.task.model.shape
    from drivetrain.plan.flops import core_flops, matrix_flops

    # torch counts the products of the flash kernel's backward pass with the scores that it makes again.
    matrices = 16 * 64 * matrix_flops(shape)
    assert matrices < found.flops < matrices + 2 * 16 * 64 * 2 * core_flops(replace(shape))
