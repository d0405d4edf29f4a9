"""Whole runs whose activations are computed again: the same bits, whatever else is asked of them."""

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked"),
]


def test_a_run_goes_on_with_other_activations_to_the_same_bits_under_the_same_claim(tiny, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_under_supervisor(tiny, whole).code is Exit.DONE
    assert run_under_supervisor(tiny, parts, "activations=selective", most_steps=4).code is Exit.STOPPED
    own = "activations={'layers.0.*': recompute}"
    assert run_under_supervisor(tiny, parts, own, most_steps=4).code is Exit.STOPPED
    assert run_under_supervisor(tiny, parts, "activations=recompute").code is Exit.DONE
    assert trace(parts) == trace(whole)
    claims = [record["claim"] for record in read(parts / "ledger.jsonl") if record["kind"] == "attempt"]
    assert claims == claims[:1] * 3


@pytest.mark.parametrize(
    "also",
    [
        ["exact=true", "launch.processes=2"],
        ["guard.recompute={steps: 2}"],
        ["optimizer={kind: galore, lr: 0.01, rank: 4, layerwise: true}"],
        ["optimizer={kind: galore, lr: 0.01, rank: 4, reduce: projected}"],
        ["precision=bf16", "statistics.every.steps=3"],
    ],
    ids=" ".join,
)
def test_what_looks_into_the_backward_pass_sees_the_same(tiny, tmp_path, also):
    assert run_under_supervisor(tiny, tmp_path / "keep", *also).code is Exit.DONE
    assert run_under_supervisor(tiny, tmp_path / "again", "activations=recompute", *also).code is Exit.DONE
    assert trace(tmp_path / "again") == trace(tmp_path / "keep")


def test_a_pattern_that_names_nothing_ends_before_the_first_step(tiny, tmp_path):
    outcome = run_under_supervisor(tiny, tmp_path / "run", "activations={'layers.*.wheels': recompute}")
    assert outcome.code is Exit.BAD_RECIPE
    assert "activations of model: no module is called 'layers.*.wheels'; " in f"{outcome.cause}; {outcome.hint}"
