import json
import os

import pytest

from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_gradients_are_summed_in_the_same_order_in_every_step(tmp_path, importable, processes):
    """DDP's are not for three processes and more: it lays its buckets out anew after the first step."""
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=processes)
    outcome = supervise(job, worker="ranks_engine:reduce", preload=("torch", "ranks_engine"))
    assert outcome.code == 0, outcome
    said = json.loads(outcome.cause)
    assert len(set(said["digests"])) == 1
    assert said["buckets"] > 1
    assert said["largest_difference"] < 1e-6
    assert said["scalars"] == [sum(range(processes)), processes]
    assert said["unused"] == 0.0


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
