"""Networks that move together, and what follows from who they are: found once, and the same in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from drivetrain.engine.recipe import Network
from drivetrain.engine.reduction import Reduction
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.spec.exits import Exit, Failure


class NetworkGroup(NamedTuple):
    """All that trains in these networks, and how; not their optimizers, which `set` replaces while a run trains.

    `precision` is that of forward and backward passes, `micro` the number of samples that all of them take at a time
    (None: any number).
    """

    parameters: Sequence[nn.Parameter]
    precision: str
    micro: int | None
    reduction: Reduction


def common_precision(names: Sequence[str], own: Mapping[str, Network], runs: str) -> str:
    """The precision of networks that move together; `runs` is that of those without one of their own.

    Raises Failure(78) where they have different ones.
    """
    found = {name: own[name].precision or runs for name in names}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {precision}" for name, precision in found.items())
        cause = f"networks that move together have different precisions: {said}"
        raise Failure(Exit.BAD_RECIPE, cause, "give them the same under `networks`")
    return found[names[0]]


def are_layerwise(network_optimizers: Sequence[NetworkOptimizer]) -> bool:
    """Whether networks move within the backward pass. Raises Failure(78) where only some of them do."""
    found = {network_optimizer.layerwise for network_optimizer in network_optimizers}
    if len(found) > 1:
        names = " and ".join(network_optimizer.network for network_optimizer in network_optimizers)
        cause = f"{names} move together, but not all of their optimizers are layerwise"
        raise Failure(Exit.BAD_RECIPE, cause, "set optimizer.layerwise for all of them or for none")
    return found == {True}


def smallest_micro(names: Sequence[str], own: Mapping[str, Network]) -> int | None:
    """How many samples the network takes at a time that takes fewest; None where all take any number."""
    return min((micro for name in names if (micro := own[name].micro) is not None), default=None)
