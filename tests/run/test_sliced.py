"""Whole runs of a user's own network whose samples are cut by positions."""

import pytest

import sliced
from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked", "importable"),
]

PIECES = ("launch.processes=2", "parallel.context=2")


def records(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


@pytest.mark.parametrize("task", ["Last", "Parts"])
def test_a_network_whose_positions_meet_in_attention_comes_to_what_one_process_does(task, tmp_path):
    one, pieces = tmp_path / "one", tmp_path / "pieces"
    for run, asked in ((one, ()), (pieces, PIECES)):
        assert run_under_supervisor(sliced.recipe(task), run, *asked).code is Exit.DONE
    assert trace(pieces).samples == trace(one).samples
    for here, there in zip(records(pieces, "step"), records(one, "step"), strict=True):
        assert here["losses"] == pytest.approx(there["losses"], rel=4e-7)
        assert here["norm"] == pytest.approx(there["norm"], rel=1e-5)
    scores = [[record["metrics"]["walks"] for record in records(run, "evaluation")] for run in (pieces, one)]
    assert len(scores[1]) == 2
    for here, there in zip(*scores, strict=True):
        assert here == pytest.approx(there, rel=1e-5)
    (attempt,), (alone,) = records(pieces, "attempt"), records(one, "attempt")
    assert attempt["parameters"] == alone["parameters"]
    assert attempt["claim"]["key"] != alone["claim"]["key"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("mean", "the loss is a mean over samples, of which each process has some positions"),
        ("plain", "nothing says in which modules of model positions meet"),
        ("strange", "a batch has no tensor 'targets' with positions along dimension 2"),
        ("odd", "'tokens' [2, 15] is not cut into 4 equal parts"),
    ],
)
def test_what_a_task_lacks_for_parts_of_samples_is_told(how, told, tmp_path):
    outcome = run_under_supervisor(sliced.recipe(how=how), tmp_path / "run", *PIECES)
    assert outcome.code is Exit.BAD_RECIPE
    assert told in outcome.cause
