"""Networks that move together."""

from collections import defaultdict

import pytest
import torch

from drivetrain.engine.engine import MinimizeInputs
from drivetrain.engine.network_group import common_precision, smallest_micro
from drivetrain.engine.recipe import Network
from drivetrain.optim.network_optimizer import retuned
from drivetrain.optim.recipe import SGD, AdamW
from drivetrain.spec.exits import Exit, Failure
from engines import build, mean_loss, micros, minimize, weights


def own(**networks):
    return defaultdict(Network, {name: Network(**settings) for name, settings in networks.items()})


def test_networks_that_move_together_have_one_precision():
    assert common_precision(("a", "b"), own(), "fp32") == "fp32"
    assert common_precision(("a", "b"), own(a={"precision": "bf16"}, b={"precision": "bf16"}), "fp32") == "bf16"
    assert common_precision(("a", "b"), own(a={"precision": "bf16"}), "bf16") == "bf16"
    with pytest.raises(Failure, match="a bf16, b fp32") as told:
        common_precision(("a", "b"), own(a={"precision": "bf16"}), "fp32")
    assert told.value.outcome.code is Exit.BAD_RECIPE


def test_the_network_that_takes_fewest_samples_at_a_time_counts():
    assert smallest_micro(("a", "b"), own()) is None
    assert smallest_micro(("a", "b"), own(a={"micro": 4}, b={"micro": 2}, c={"micro": 1})) == 2


def test_networks_that_move_together_are_all_layerwise_or_none():
    engine = build({"a": AdamW(lr=0.1, layerwise=True), "b": AdamW(lr=0.1)}, names=("a", "b"))
    with pytest.raises(Failure, match="a and b move together, but not all of their optimizers are layerwise") as told:
        engine.minimize(("a", "b"), mean_loss, MinimizeInputs(1, 0, micros(2), {"samples": 2}))
    assert told.value.outcome.code is Exit.BAD_RECIPE


def test_what_a_team_is_does_not_change_from_step_to_step():
    engine = build()
    assert engine.groups.of(("model",)) is engine.groups.of(("model",))
    found = engine.groups.of(("model",)).parameters
    assert {id(parameter) for parameter in found} == {id(p) for p in engine.networks["model"].parameters()}


def test_a_network_moves_once():
    with pytest.raises(ValueError, match="a network moves once"):
        minimize(build(), mean_loss, micros(2), names=("model", "model"))


@pytest.mark.parametrize("layerwise", [False, True])
def test_what_is_set_while_it_trains_holds_for_networks_that_have_moved_together_before(layerwise):
    engine = build(SGD(lr=0.1, layerwise=layerwise))
    minimize(engine, mean_loss, micros(2))
    moved = weights(engine)
    still = build(SGD(lr=0.1, clip=1e-12, layerwise=layerwise))
    engine.network_optimizers.update(retuned(engine.network_optimizers, still.network_optimizers))
    minimize(engine, mean_loss, micros(2), step=2)
    assert torch.allclose(weights(engine), moved, rtol=0, atol=1e-9)
