"""A run on several sources: the same samples whatever the processes, the stops and the length of the run."""

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from records import of_kind


@pytest.fixture
def blended(tiny, corpus):
    tiny["data"]["train"] = {
        "sources": [
            {"name": "dogs", "kind": "text", "path": str(corpus / "0.txt"), "weight": 3},
            {"name": "foxes", "kind": "text", "path": str(corpus / "1.txt"), "weight": 1},
        ],
        "stages": [{"from": {"steps": 6}, "weights": {"dogs": 1, "foxes": 1}}],
    }
    return tiny


def used(run):
    return samples_used(lineage(read(run / "ledger.jsonl")))


def test_two_then_one_then_two_processes_read_the_same_samples(blended, tmp_path):
    for steps, processes in ((4, 2), (8, 1), (12, 2)):
        asked = (f"budget.steps={steps}", f"launch.processes={processes}")
        assert run_under_supervisor(blended, tmp_path / "run", *asked, override=("budget",)).code == Exit.DONE
    assert run_under_supervisor(blended, tmp_path / "whole").code == Exit.DONE
    assert used(tmp_path / "run") == used(tmp_path / "whole")


def test_a_longer_run_begins_with_the_same_samples_and_the_ledger_has_the_coverage(blended, tmp_path):
    run_under_supervisor(blended, tmp_path / "short")
    run_under_supervisor(blended, tmp_path / "long", "budget.steps=30")
    assert used(tmp_path / "long")[:12] == used(tmp_path / "short")
    coverage = {record["step"]: record["coverage"] for record in of_kind(tmp_path / "short", "commit")}
    assert coverage == {5: {"dogs": 30, "foxes": 10}, 10: {"dogs": 52, "foxes": 28}, 12: {"dogs": 60, "foxes": 36}}
    assert of_kind(tmp_path / "short", "attempt")[0]["sources"].keys() == {"dogs", "foxes"}


def test_a_blend_resumes_to_the_same_bits(blended, tmp_path):
    run_under_supervisor(blended, tmp_path / "whole", "budget.steps=7")
    run_under_supervisor(blended, tmp_path / "whole", override=("budget",))
    run_under_supervisor(blended, tmp_path / "run", "budget.steps=7")
    run_under_supervisor(blended, tmp_path / "run", override=("budget",))
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train.sources[1].name=dogs", "another source is called 'dogs'"),
        ("data.train.sources[1].context=8", "have one context, not 8, 16"),
        ("data.train.stages[0].weights={cats: 1}", "no source is called 'cats'"),
        ("data.train.stages[0].weights={dogs: 0, foxes: 0}", "every weight is 0"),
        ("data.train.sources[0].weight=-1", "greater than or equal to 0"),
    ],
)
def test_blends_that_make_no_sense_are_78(blended, override, message):
    with pytest.raises(RecipeMistakes, match=message):
        load(blended, [override])
