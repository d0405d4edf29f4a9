"""`exact: true`: the same files, losses and scores on 1, 2 and 4 processes, and when their number changes midway."""

import shutil

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.run.finished import evaluate_run
from drivetrain.run.proof import prove
from drivetrain.spec.exits import Exit

pytestmark = pytest.mark.usefixtures("importable", "forked")

WORLDS = (1, 2, 4)


@pytest.fixture
def llama(tiny):
    """With dropout, an average, clipping, accumulation, a ragged last step and whatever is measured on the way."""
    return tiny | {
        "exact": True,
        "budget": {"samples": 85},
        "optimizer": {"kind": "adamw", "lr": 1e-2, "clip": 0.5},
        "average": {"decay": 0.9},
        "statistics": {"every": {"steps": 4}},
        "evaluate": {"every": {"steps": 4}, "batch": 24},
        "launch": {},
    }


@pytest.fixture
def duel():
    """Two networks, three updates, losses over two units, a batch that grows; samples are left out at the end."""
    return {
        "name": "duel",
        "exact": True,
        "task": {"kind": "duel:Duel"},
        "data": {"train": {"sources": [{"kind": "duel:Rows"}]}, "validation": {"rows": {"kind": "duel:Rows"}}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2, "ramp": [{"from": {"steps": 3}, "size": 16}]},
        "budget": {"samples": 109},
        "optimizer": {"kind": "adamw", "lr": 0.01, "clip": 1.0},
        "guard": {"nonfinite": "skip", "spike": {"window": 4, "action": "skip"}},
        "evaluate": {"every": {"steps": 4}, "batch": 7},
        "statistics": {"every": {"steps": 4}},
        "checkpoint": {"every": {"steps": 5}},
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_language_model_is_the_same_on_one_two_and_four_processes(llama, tmp_path, precision):
    assert_equal_on_all_worlds(llama | {"precision": precision}, tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_two_networks_are_the_same_on_one_two_and_four_processes(duel, tmp_path, precision):
    assert_equal_on_all_worlds(duel | {"precision": precision}, tmp_path)


def test_lanes_that_are_chosen_are_the_same_on_one_two_and_four_processes(llama, tmp_path):
    """The micro-batch is a whole lane where it is not given; evaluation takes as many samples at a time."""
    del llama["lanes"]
    found = assert_equal_on_all_worlds(llama | {"batch": {"size": 24}, "evaluate": {}}, tmp_path)
    assert {record["lanes"] for record in found if record["kind"] == "attempt"} == {8}


def test_four_then_one_then_two_processes_equal_two_that_were_never_stopped(llama, tmp_path):
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    llama["stop"] = {"at": [3, 7]}
    for processes, code in ((4, Exit.STOPPED), (1, Exit.STOPPED), (2, Exit.DONE)):
        llama["launch"] = {"processes": processes}
        assert run_under_supervisor(llama, changing).code == code
    del llama["stop"]
    assert run_under_supervisor(llama, straight).code == Exit.DONE
    assert trace(changing) == trace(straight)
    assert told(changing) == told(straight)
    certificate = prove(changing)
    assert certificate.worlds == [4, 1, 2]
    assert len(certificate.claims) == 1


def test_steps_that_another_number_of_processes_makes_again_are_compared(llama, tmp_path):
    run = tmp_path / "run"
    for processes in (4, 2):
        llama["launch"] = {"processes": processes}
        assert run_under_supervisor(llama, run).code == Exit.DONE
        if processes == 4:
            for commit in sorted((run / "checkpoints").glob("step-*"))[1:]:
                shutil.rmtree(commit)
    assert prove(run).again == {"equal": 6, "not comparable": 0}


def test_a_finished_run_is_scored_as_training_has_scored_it(llama, tmp_path):
    llama["launch"] = {"processes": 2}
    assert run_under_supervisor(llama, tmp_path / "run").code == Exit.DONE
    *_, (_, last) = [(kind, scores) for kind, scores in told(tmp_path / "run") if kind == "evaluation"]
    assert evaluate_run(tmp_path / "run", None).metrics == last


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("guarded:Fit", "model.1 (BatchNorm1d) keeps statistics over all lanes"),
        ("duel:Counting", "changed the buffer judge.calls"),
        ("duel:Unordered", "put_ does not have a deterministic implementation"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_what_cannot_be_exact_is_refused_with_its_reason(duel, tmp_path, task, words, processes):
    outcome = run_under_supervisor(
        duel | {"task": {"kind": task}, "launch": {"processes": processes}}, tmp_path / "run"
    )
    assert outcome.code == Exit.BAD_RECIPE
    assert words in outcome.cause
    assert "docs/exactness.md" in outcome.hint


def assert_equal_on_all_worlds(recipe, folder):
    """Files, losses, scores and measurements; the records of the last of the runs."""
    found = []
    for processes in WORLDS:
        run = folder / str(processes)
        recipe["launch"] = {"processes": processes}
        assert run_under_supervisor(recipe, run).code == Exit.DONE
        found.append((trace(run), told(run)))
    assert found[0] == found[1] == found[2]
    records = list(read(run / "ledger.jsonl"))
    assert {record["claim"]["class"] for record in records if record["kind"] == "attempt"} == {"exact"}
    return records


def told(run):
    """What a run's ledger tells of scores and measurements."""
    fields = {"evaluation": "metrics", "final": "metrics", "statistics": "networks"}
    return [(r["kind"], r[fields[r["kind"]]]) for r in lineage(read(run / "ledger.jsonl")) if r["kind"] in fields]
