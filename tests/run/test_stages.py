"""Whole runs of a user's own network on stages."""

import json

import pytest

import staged
from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.run.build import require_split
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked", "importable"),
]

OWN = "optimizer={kind: own_kinds:Counting, lr: 0.1, elementwise: true}"
STAGES = ("launch.processes=2", "parallel.pipeline=2")


def records(run, kind):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == kind]


def test_a_network_without_a_plan_lies_on_stages_and_comes_to_what_one_process_does(tmp_path):
    for name, asked in (("one", ()), ("stages", STAGES)):
        assert run_under_supervisor(staged.recipe(), tmp_path / name, *asked).code is Exit.DONE
    one, stages = tmp_path / "one", tmp_path / "stages"
    assert trace(stages).samples == trace(one).samples
    for here, there in zip(records(stages, "step"), records(one, "step"), strict=True):
        assert here["losses"] == pytest.approx(there["losses"], rel=1e-5)
        assert here["norm"] == pytest.approx(there["norm"], rel=1e-4)
        assert here["lr"] == there["lr"]
    for here, there in zip(records(stages, "evaluation"), records(one, "evaluation"), strict=True):
        assert here["metrics"]["rows"] == pytest.approx(there["metrics"]["rows"], rel=1e-5)
    (attempt,), (alone,) = records(stages, "attempt"), records(one, "attempt")
    assert attempt["parameters"] == alone["parameters"]
    assert attempt["claim"]["key"] != alone["claim"]["key"]


def test_an_error_in_the_loss_is_told_as_what_it_is_with_its_line(tmp_path):
    outcome = run_under_supervisor(staged.recipe("Failing"), tmp_path / "run", *STAGES)
    assert outcome.code is Exit.INTERNAL
    assert "ZeroDivisionError: of the user's own, at" in outcome.cause
    assert "staged.py" in json.dumps(outcome.where)


def test_another_function_than_the_tasks_loss_is_refused(tmp_path):
    outcome = run_under_supervisor(staged.recipe("Elsewhere"), tmp_path / "run", *STAGES)
    assert outcome.code is Exit.BAD_RECIPE
    assert "was given a loss that is not the task's own `loss`" in outcome.cause


@pytest.mark.parametrize(
    ("task", "changes", "networks", "told"),
    [
        (staged.Unsplit(), (), 1, "the task Unsplit has no inputs and no loss_from"),
        (staged.Whole(), (), 1, "Whole has a loss that is not made of its loss_from"),
        (staged.Staged(), (), 2, "stages are of one network, and the task has net0, net1"),
        (
            staged.Staged(),
            ("optimizer={kind: own_kinds:Counting, lr: 0.1, elementwise: true}",),
            1,
            "an optimizer of your own",
        ),
    ],
)
def test_what_a_task_lacks_for_stages_is_told_with_what_to_write(task, changes, networks, told):
    recipe = load(staged.recipe(), [*STAGES, *changes]).recipe
    with pytest.raises(Failure, match=told) as caught:
        require_split(recipe, task, {f"net{number}": task.networks()["model"] for number in range(networks)})
    assert caught.value.outcome.code is Exit.BAD_RECIPE
