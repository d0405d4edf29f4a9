import pytest

from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.rundir import SCRATCH
from drivetrain.launch.targets.config import settings_from, settings_of, targets
from drivetrain.spec.exits import Exit, Failure


def test_the_recipes_targets_lie_over_the_files(tmp_path):
    file = tmp_path / "targets.yaml"
    file.write_text("cluster: {kind: slurm, nodes: 2, queue: main}\n")
    assert list(targets({}, file)) == ["local", "cluster"]
    assert settings_of("cluster", {"cluster": {"nodes": 4}}, file).nodes == 4
    assert settings_of("cluster", {"cluster": {"nodes": 4}}, file).queue == "main"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"kind": "slrm"}, "did you mean 'slurm'?"),
        ({}, "local, slurm"),
        ({"kind": "slurm", "nodez": 2}, "unknown key 'nodez'; did you mean 'nodes'?"),
        ({"kind": "slurm", "nodes": 0, "memory": "16"}, "greater than or equal to 1"),
        ({"kind": "slurm", "queue": "main; rm -rf /"}, "queue"),
        ({"kind": "slurm", "queue": "main\n"}, "queue"),
        ({"kind": "slurm", "environment": {"A B": "x"}}, "environment"),
        ({"kind": "slurm", "walltime": "soon"}, "walltime"),
    ],
)
def test_a_mistake_in_a_target_is_78_and_named(written, told):
    with pytest.raises(Failure) as failure:
        settings_from("cluster", written)
    assert failure.value.outcome.code == Exit.BAD_RECIPE
    assert told in failure.value.details


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"kind": "slurm", "image": "x"}, "image means nothing to kind slurm"),
        ({"kind": "local", "accelerators": 8}, "accelerators means nothing to kind local"),
        ({"kind": "slurm", "environment": {"SLURM_JOB_ID": "1"}}, "SLURM_JOB_ID is the launcher's own"),
        ({"kind": "slurm", "nodes": 3}, "target: x: 3 nodes of 1: launch.processes: 3 do not share 8 lanes"),
        ({"kind": "kubernetes", "image": "a", "runs": "s3://b/c", "fruitless": 2}, "fruitless means nothing"),
    ],
)
def test_what_does_not_fit_is_78_before_anything_is_sent(written, told):
    with pytest.raises(Failure) as failure:
        plan("quickstart", [], "x", settings_from("x", written), options=StartOptions(started=0.0))
    assert failure.value.outcome.code == Exit.BAD_RECIPE
    assert told in (failure.value.details or failure.value.outcome.cause)


SENT = {"image": "registry.example/train:1", "runs": "s3://bucket/runs"}
KINDS = {
    "local": {},
    "slurm": {},
    "ray": {},
    "kubernetes": SENT,
    "aws-batch": SENT | {"queue": "main", "region": "eu-west-1", "cpus": 1, "memory": "1G"},
    "sagemaker": SENT
    | {
        "accelerator": "ml.p4d.24xlarge",
        "role": "arn:aws:iam::123456789012:role/train",
        "region": "eu-west-1",
        "output": "s3://bucket/output",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_fits_nodes_times_processes_of_a_target_or_is_refused_with_both(kind):
    settings = settings_from("x", {"kind": kind, "nodes": 2, "processes": 2, **KINDS[kind]})

    def planned(mesh):
        return plan("quickstart", [mesh], "x", settings, options=StartOptions(started=0.0))

    with pytest.raises(Failure) as failure:
        planned("parallel={replicate: 1, shard: 3}")
    assert failure.value.outcome.code == Exit.BAD_RECIPE
    assert "shard 3 takes 3 processes, and there are 4" in (failure.value.details or failure.value.outcome.cause)
    work = planned("parallel={replicate: 2, shard: auto}").work
    assert (work.nodes, work.job.processes) == (2, 2)


def test_a_target_that_is_not_there_is_64(tmp_path):
    with pytest.raises(Failure, match="no target 'clustr'") as failure:
        settings_of("clustr", {"cluster": {"kind": "slurm"}})
    assert failure.value.outcome.code == Exit.BAD_COMMAND
    assert "'cluster'" in failure.value.outcome.hint
    with pytest.raises(Failure) as failure:
        targets({}, tmp_path / "none.yaml")
    assert failure.value.outcome.code == Exit.INPUT_MISSING


def test_a_url_for_runs_is_the_mirrors_and_the_run_lies_on_the_machine_itself():
    job = plan(
        "quickstart",
        [],
        "x",
        settings_from("x", {"kind": "slurm", "runs": "s3://bucket/runs"}),
        options=StartOptions(started=0.0),
    )
    assert job.run.is_relative_to(SCRATCH)
    assert job.work.job.recipe["checkpoint"]["mirror"] == f"s3://bucket/runs/{job.run.name}"


def test_runs_of_one_recipe_with_two_mirrors_are_two_runs():
    settings = settings_from("x", {"kind": "local"})
    places = [
        plan("quickstart", [], "x", settings, options=StartOptions(started=0.0), run=f"s3://{one}/run").run
        for one in "ab"
    ]
    assert places[0] != places[1]


def test_another_number_of_processes_than_the_targets_is_refused_not_ignored():
    settings = settings_from("x", {"kind": "local", "nodes": 2})
    with pytest.raises(Failure, match=r"launch\.processes=4, but target x has 2 nodes"):
        plan("quickstart", ["launch.processes=4"], "x", settings, options=StartOptions(started=0.0))
    assert plan("quickstart", ["launch.processes=2"], "x", settings, options=StartOptions(started=0.0)).work.nodes == 2
