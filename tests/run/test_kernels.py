"""Whole runs in which kernels of one's own compute modules."""

import pytest

import compiled
from conftest import run_under_supervisor, tensors
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

pytestmark = [pytest.mark.usefixtures("forked", "importable")]


def run_of(folder, kernels=None, *overrides, **options):
    asked = compiled.recipe(compile=False, kernels=kernels)
    return run_under_supervisor(asked, folder, *overrides, **options)


def test_a_run_with_a_kernel_goes_on_from_a_commit_without_and_tells_what_was_compared(tmp_path):
    kernels = {"blocks.*.norm": {"kind": "compiled:Norm"}}
    assert run_of(tmp_path, most_steps=2).code is Exit.STOPPED
    names = tensors(tmp_path).keys()
    assert run_of(tmp_path, kernels, most_steps=2).code is Exit.INCOMPATIBLE
    assert run_of(tmp_path, kernels, override=["kernels"]).code is Exit.DONE
    assert tensors(tmp_path).keys() == names
    notes = [record.text for record in read(tmp_path / "ledger.jsonl") if record.kind == "note"]
    assert any(note.startswith("kernels: 3 modules are computed by compiled:Norm") for note in notes)
    attempts = [record for record in read(tmp_path / "ledger.jsonl") if record.kind == "attempt"]
    assert attempts[-1].user_code.files["compiled.py"].affects == "bits"


@pytest.mark.parametrize("mesh", [(), ("launch.processes=2", "parallel={shard: 2}")], ids=["one", "shard"])
def test_a_wrong_kernel_ends_a_run_before_its_first_step(tmp_path, mesh):
    wrong = {"blocks.*.norm": {"kind": "compiled:Norm", "scale": 1.01}}
    ended = run_of(tmp_path, wrong, *mesh)
    assert ended.code is Exit.BAD_RECIPE
    assert "model.blocks.0.norm is not what compiled:Norm makes of it" in ended.cause
    assert [record for record in read(tmp_path / "ledger.jsonl") if record.kind == "step"] == []
