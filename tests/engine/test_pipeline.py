"""Two stages on two processes, torch's own 1F1B schedule over gloo, inside one `minimize`-shaped step.

A pipeline needs the loss split in two. `inputs(batch)` says what enters the first stage, and
`loss_from(output, batch)` turns the last stage's output into the loss; counts are known before backward, as everywhere.
"""

import json
from pathlib import Path

import pytest

from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise

TESTS = Path(__file__).parent.parent


def test_1f1b_on_two_processes_has_the_gradients_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}")
    job = Job(folder=str(tmp_path), recipe={}, origins={}, processes=2)
    outcome = supervise(job, worker="ranks_pipeline:stage", preload=("torch", "ranks"))
    assert outcome.code == 0, outcome
    said = json.loads(outcome.cause)
    assert said["difference"] == pytest.approx(0, abs=1e-6)
