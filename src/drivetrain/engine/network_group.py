"""Networks that move together, and what follows from who they are: found once, and the same in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from drivetrain.engine.by_loss import GradientsByLoss, LossWeights
from drivetrain.engine.exact import LaneTree
from drivetrain.engine.execution import Execution
from drivetrain.engine.layerwise import Layerwise
from drivetrain.engine.projected import ProjectedReducer
from drivetrain.engine.recipe import Network
from drivetrain.engine.reduce import Reducer
from drivetrain.engine.reduction import Reduction, Unreduced
from drivetrain.engine.tables.reduction import WithRows
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from drivetrain.engine.wide_units import WideUnits


class NetworkGroup(NamedTuple):
    """All that trains in these networks, and how; not their `NetworkOptimizer`s, which `set` replaces in a run.

    `precision` is that of forward and backward passes, `micro` the number of samples that all of them take at a time
    (None: any number).
    """

    parameters: Sequence[nn.Parameter]
    precision: str
    micro: int | None
    reduction: Reduction
    by_loss: GradientsByLoss | None = None
    """Where gradients are kept apart by loss, which a rule weighs then."""


class NetworkGroups:
    """All groups that a task makes. Each is made once for an order of names: its reduction's buffers and hooks stay.

    Groups may share networks; of their reductions only the one that is armed acts.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        network_optimizers: Mapping[str, NetworkOptimizer],
        execution: Execution,
        norms: Mapping[str, Tensor],
    ) -> None:
        """`network_optimizers` are looked up when a group is made; `norms` are those of layerwise networks in the step
        before, 0-d, and are kept up to date in place."""
        self._networks = networks
        self._network_optimizers = network_optimizers
        self._execution = execution
        self._norms = norms
        self._found: dict[tuple[tuple[str, ...], LossWeights | None], NetworkGroup] = {}

    def of(self, names: tuple[str, ...], rule: LossWeights | None = None) -> NetworkGroup:
        """These networks as they move together, by losses that a `rule` weighs, or that are added up.

        Raises Failure(78) where they have different precisions, where only some of them move within the backward pass,
        or where gradients cannot be kept apart by loss; ValueError where a name is given twice.
        """
        # By the order of names, since gradients lie in it: another order is another sum of norms.
        if (names, rule) not in self._found:
            if len(set(names)) < len(names):
                raise ValueError(f"minimize: {', '.join(names)}: a network moves once")
            parameters: list[nn.Parameter] = []
            for name in names:
                parameters += self._network_optimizers[name].weights
            own, by_loss = self._execution.network_settings, None
            if rule is not None:
                self._require_apart(names)
                by_loss = GradientsByLoss(parameters, rule)
            self._found[names, rule] = NetworkGroup(
                parameters,
                common_precision(names, own, self._execution.precision),
                smallest_micro(names, own),
                self._reduction(names, by_loss.parameters if by_loss else parameters),
                by_loss,
            )
        return self._found[names, rule]

    def _require_apart(self, names: tuple[str, ...]) -> None:
        """Raises Failure(78) where gradients are no longer there, or not whole, when losses are weighed."""
        optimizers, mesh = [self._network_optimizers[name] for name in names], self._execution.placement.mesh
        refused = {f"parallel {mesh.sizes}": not mesh.replicated}
        refused["optimizer.layerwise"] = any(optimizer.layerwise for optimizer in optimizers)
        tables = self._execution.placement.tables
        refused["embeddings.backend: torchrec"] = bool(tables) and not all(work.summed for work in tables.at_work)
        refused["optimizer.reduce: projected"] = any(optimizer.projected for optimizer in optimizers)
        for what, asked in refused.items():
            if asked:
                cause = f"{what} does not go with losses that are weighed by their gradients"
                raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or weigh the losses by fixed numbers")

    def _reduction(self, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> Reduction:
        dense, tables = self._dense_reduction(names, parameters), self._execution.placement.tables
        if tables is None:
            return dense
        return WithRows(names, dense, tables, lambda: [self._network_optimizers[name] for name in names], self._lanes)

    @property
    def _lanes(self) -> range | None:
        """This rank's lanes, where sums are made as a tree of them."""
        lanes, data = self._execution.exact, self._execution.placement.data
        if lanes is None:
            return None
        own = lanes // data.world
        return range(data.rank * own, (data.rank + 1) * own)

    def _dense_reduction(self, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> Reduction:
        if not self._execution.placement.mesh.replicated:
            from drivetrain.engine.sharded import Sharded  # torch's engines take a second to import

            place, in_parts = self._execution.placement, self._execution.sums_in_parts
            return Sharded(names, self._networks, place, self._wide_units, in_parts=in_parts)
        group, lanes = self._execution.placement.data, self._execution.exact
        network_optimizers = [self._network_optimizers[name] for name in names]
        if move_in_backward(network_optimizers):
            return Layerwise(names, self._network_optimizers, group, self._norms)
        # Before the reducers: in exact mode sums are made in one order, also on one process.
        if lanes:
            return LaneTree(parameters, group, lanes)
        # On one process too, where nothing is sent: norms are those of projections in every world.
        if any(network_optimizer.projected for network_optimizer in network_optimizers):
            return ProjectedReducer(network_optimizers, group.main)
        if group.world > 1:
            return Reducer(parameters, group.main)
        return Unreduced(parameters)

    @cached_property
    def _wide_units(self) -> WideUnits | None:
        """One for all groups: torch has a single hook for each unit."""
        if not self._execution.placement.masters:
            return None
        from drivetrain.engine.wide_units import WideUnits

        return WideUnits(self._networks.values())


def common_precision(names: Sequence[str], own: Mapping[str, Network], default: str) -> str:
    """The precision of networks that move together; `default` is that of those without one of their own.

    Raises Failure(78) where they have different ones.
    """
    found = {name: own[name].precision or default for name in names}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {precision}" for name, precision in found.items())
        cause = f"networks that move together have different precisions: {said}"
        raise Failure(Exit.BAD_RECIPE, cause, "give them the same under `networks`")
    return found[names[0]]


def move_in_backward(network_optimizers: Sequence[NetworkOptimizer]) -> bool:
    """Whether networks move within the backward pass. Raises Failure(78) where only some of them do."""
    found = {network_optimizer.layerwise for network_optimizer in network_optimizers}
    if len(found) > 1:
        names = " and ".join(network_optimizer.network for network_optimizer in network_optimizers)
        cause = f"{names} move together, but not all of their optimizers are layerwise"
        raise Failure(Exit.BAD_RECIPE, cause, "set optimizer.layerwise for all of them or for none")
    return found == {True}


def smallest_micro(names: Sequence[str], own: Mapping[str, Network]) -> int | None:
    """How many samples the network takes at a time that takes fewest; None where all take any number."""
    smallest = None
    for name in names:
        micro = own[name].micro
        if micro is not None and (smallest is None or micro < smallest):
            smallest = micro
    return smallest
