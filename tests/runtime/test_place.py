import pytest

from drivetrain.runtime.place import Node, Place, first_host, from_environment, node_from_environment
from drivetrain.spec.exits import Exit, Failure

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29400",
}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123456",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
    "SLURM_STEP_NODELIST": "gpu[003-005,9]",
}


def test_a_process_that_nobody_launched_has_no_place():
    assert from_environment({}) is None
    assert from_environment({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}) is None  # a batch script, not a step


def test_torchruns_environment_is_taken_as_it_is():
    assert from_environment(TORCHRUN) == Place(3, 4, 1, 2, "node7", 29400, "torchrun")


def test_sruns_environment_is_taken_as_it_is():
    place = from_environment(SRUN)
    assert (place.rank, place.world, place.local_rank, place.local_world) == (5, 8, 1, 2)
    assert (place.host, place.launcher) == ("gpu003", "srun")
    assert 20000 <= place.port < 40000


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[003-007,9],x", "gpu003"),
        ("a-[1,5]-ib", "a-1-ib"),
        ("rack1-n[10-12]", "rack1-n10"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    "change",
    [
        {"RANK": "7"},
        {"RANK": "-1"},
        {"RANK": "x"},
        {"WORLD_SIZE": ""},
        {"LOCAL_RANK": "2"},
        {"MASTER_PORT": "http"},
        {"WORLD_SIZE": "1e3"},
    ],
)
def test_c12_garbage_in_the_environment_is_64(change):
    with pytest.raises(Failure) as caught:
        from_environment(TORCHRUN | change)
    assert caught.value.outcome.code == Exit.BAD_COMMAND


def test_a_node_takes_its_place_from_whatever_started_it():
    assert node_from_environment({"DRIVETRAIN_ADDRESS": "10.0.0.7"}, 1) == Node(0, 1, "127.0.0.1", 0)
    batch = {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "2"}
    batch["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.0.7"
    assert node_from_environment(batch, 2) == Node(1, 2, "10.0.0.7", 29400)
    ours = {"DRIVETRAIN_ADDRESS": "n0", "DRIVETRAIN_PORT": "20001", "DRIVETRAIN_ATTEMPT": "3", "SLURM_NODEID": "1"}
    assert node_from_environment(ours, 4) == Node(1, 4, "n0", 20001, 3)


@pytest.mark.parametrize(
    "environment",
    [
        {"DRIVETRAIN_NODE": "2", "DRIVETRAIN_ADDRESS": "n0"},
        {"DRIVETRAIN_NODES": "3", "DRIVETRAIN_ADDRESS": "n0"},
        {"DRIVETRAIN_NODE": "one", "DRIVETRAIN_ADDRESS": "n0"},
        {"DRIVETRAIN_NODE": "1"},
    ],
)
def test_a_node_whose_place_makes_no_sense_is_refused(environment):
    with pytest.raises(Failure) as failure:
        node_from_environment(environment, 2)
    assert failure.value.outcome.code == Exit.BAD_COMMAND
