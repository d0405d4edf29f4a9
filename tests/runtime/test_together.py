"""What a task asks of all processes, without a word about which one it is."""

import json

import pytest

from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.runtime.together import added, once


def test_alone_there_is_nobody_to_wait_for():
    assert once(lambda: "made") == "made"
    assert added(2.5) == 2.5
    with pytest.raises(KeyError):
        once({}.popitem)


@pytest.mark.parametrize(("processes", "here"), [(2, 2), (4, 4), (4, 2)])
def test_one_process_of_each_machine_makes_what_all_find_and_sums_count_each_sample_once(
    tmp_path, importable, processes, here
):
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=processes, overrides=[here])
    outcome = supervise(job, worker="ranks:together", preload=("torch",))
    assert outcome.code == 0, outcome
    told = json.loads(outcome.cause)
    assert [each["text"] for each in told] == [f"by {rank - rank % here}" for rank in range(processes)]
    # Two shares of the batch: on four processes each has two, of which one counts.
    assert {each["total"] for each in told} == ({2.0} if processes == 2 else {3.0})
    for rank, each in enumerate(told):
        if rank % here:
            assert "ValueError: no network" in each["refused"]
        else:
            assert each["refused"] == "own: no network"
