"""Averages of weights while a run goes on."""

import pytest

from conftest import run_under_supervisor
from drivetrain.checkpoint.commits import newest
from loop.test_guard import recipe, sample_of, with_set


@pytest.mark.usefixtures("importable")
def test_an_average_of_networks_that_share_a_layer_changes_nothing_of_them(tmp_path):
    plain = with_set(task={"kind": "guarded:Shared"}, optimizer={"kind": "sgd", "lr": 0.01})
    run_under_supervisor(plain, tmp_path / "plain")
    run_under_supervisor(plain | {"average": {"decay": 0.9}}, tmp_path / "averaged")
    states = [newest(tmp_path / name).state.tensors for name in ("plain", "averaged")]
    assert all(states[1][name].equal(tensor) for name, tensor in states[0].items())
    assert sum(name.startswith("averages/") for name in states[1]) == 6


@pytest.mark.usefixtures("importable")
def test_an_average_is_the_same_whatever_a_step_is_left_out_for(tmp_path):
    bad = recipe(task={"kind": "guarded:Fit", "nan": [sample_of(7)]}, guard={"nonfinite": "skip"})
    states = []
    for name, wanted in (("by itself", bad), ("told", recipe(guard={"skip": [7]}))):
        run_under_supervisor(wanted | {"average": {"decay": 0.9}}, tmp_path / name)
        states.append(newest(tmp_path / name).state.tensors)
    assert all(states[1][name].equal(tensor) for name, tensor in states[0].items())
