"""Runs with bf16 weights, from a recipe: resumed, on two processes, evaluated, exported, and begun from others."""

import pytest
import torch

from conftest import tensors, trace
from drivetrain.spec.exits import Exit

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

KEPT = {
    "masters": {"dtype": "bf16"},
    "masters, by chance": {"dtype": "bf16", "rounding": "stochastic"},
    "none, by chance": {"dtype": "bf16", "master": "none", "rounding": "stochastic"},
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_run_that_is_stopped_and_resumed_has_the_same_bits(place, kept):
    place.write(parameters=KEPT[kept], precision="bf16", average={"decay": 0.9})
    assert place.train("straight") == Exit.DONE, place.err
    assert place.train("cut", "--steps", 5) == Exit.STOPPED, place.err
    assert place.train("cut") == Exit.DONE, place.err
    assert trace(place.folder / "cut") == trace(place.folder / "straight")
    held = tensors(place.folder / "cut")
    kinds = {name.partition("/")[0] for name in held}
    assert ("masters" in kinds) == (kept != "none, by chance")
    for name, tensor in held.items():
        if name.startswith("networks/"):
            assert tensor.dtype == torch.bfloat16, name
        elif tensor.ndim:
            assert tensor.dtype == torch.float32, name
        if name.startswith("masters/") and kept == "masters":
            assert torch.equal(tensor.bfloat16(), held[name.replace("masters", "networks", 1)])
