"""A network's optimizer with its schedule and clipping: what `minimize` moves a network with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.optim.fused import FusedAdam
from drivetrain.optim.groups import Parameters, assign
from drivetrain.optim.masters import Masters
from drivetrain.optim.own import own_optimizer, refused
from drivetrain.optim.parts import Parts
from drivetrain.optim.projecting import Projecting
from drivetrain.optim.recipe import ClipByValue, Constant, Optimizer, OwnOptimizer, Schedule
from drivetrain.optim.rows import RowMover, gradients_of
from drivetrain.optim.schedules import Factor, Horizon, build_decay, build_factor
from drivetrain.optim.uncompiled import spare_the_compiler
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported


@dataclass(frozen=True)
class NetworkOptimizer:
    """What moves one network: its optimizer, each parameter group's learning-rate factor, the weight decays' factor.

    Its schedules begin after the first `before` samples of the run; until then its learning rates are zero.
    `layerwise`: parameters move within the backward pass. `projected`: GaLore's matrices may be given their gradients
    as projections. `own`: the optimizer is of the user's own kind. `masters` are what it moves, where weights are bf16.
    `rows` move those of the network's tables that a step has looked up.
    """

    network: str
    optimizer: torch.optim.Optimizer
    factors: tuple[Factor, ...]
    decay: Factor
    clip: float | ClipByValue | None
    before: int = 0
    layerwise: bool = False
    projected: bool = False
    own: bool = False
    masters: Masters | None = None
    rows: Sequence[RowMover] = ()

    @property
    def gradients(self) -> list[Tensor]:
        """Of all parameters that have one, as the optimizer will take them; then of rows, [rows, dim] a matrix."""
        given = self.projecting.given if self.projecting is not None else None
        # Looking a parameter up takes torch longer than taking its gradient, so nothing is looked up in an empty one.
        if given:
            found = [given.get(parameter, parameter.grad) for parameter in self.weights]
        else:
            found = [parameter.grad for parameter in self.weights]
        gradients = [gradient for gradient in found if gradient is not None]
        return gradients + gradients_of(self.rows) if self.rows else gradients

    @property
    def largest_norm(self) -> float | None:
        """The global norm that gradients are scaled down to; None where they are not."""
        return None if isinstance(self.clip, ClipByValue) else self.clip

    def clip_values(self, gradients: list[Tensor]) -> None:
        """Clip each element of final gradients, in place, where the recipe says so. Their norm was taken before."""
        if isinstance(self.clip, ClipByValue):
            torch._foreach_clamp_min_(gradients, -self.clip.value)
            torch._foreach_clamp_max_(gradients, self.clip.value)

    @cached_property
    def projecting(self) -> Projecting | None:
        """The optimizer where it may be given projections in place of gradients, otherwise None."""
        if not self.projected:
            return None
        assert isinstance(self.optimizer, Projecting)
        return self.optimizer

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer moves, group by group."""
        return list(chain.from_iterable(group["params"] for group in self.optimizer.param_groups))

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The trainable parameters, which get the gradients: what the optimizer moves, or is rounded to."""
        return self.masters.weights(self.parameters) if self.masters else self.parameters

    @property
    def lasting(self) -> list[nn.Parameter]:
        """What keeps the weights between steps, as exactly as there is."""
        return self.weights if self.masters and not self.masters.lasting else self.parameters

    def step(self, gradients: list[Tensor]) -> None:
        """Move the network by its `gradients`."""
        if self._fused and not (self.masters and not self.masters.lasting):
            of_parameters = gradients[: len(gradients) - len(gradients_of(self.rows))]
            self._rounded(partial(self._fused.step, of_parameters))
        else:
            self.move()
        for mover in self.rows:
            mover.move()

    def move(self) -> None:
        """The optimizer's own step. Raises what `refused` makes of an error in one of the user's own kind."""
        self._rounded(self._move)

    def _rounded(self, move: Callable[[], None]) -> None:
        """Move what the optimizer moves, and round it to the weights, where these are others."""
        if self.masters:
            self.masters.step(self.optimizer, move)
        else:
            move()

    def _move(self) -> None:
        try:
            self.optimizer.step()
        except Exception as error:
            if self.own:
                raise refused(self.optimizer, error) from error
            raise

    @cached_property
    def _fused(self) -> FusedAdam | None:
        if not FusedAdam.fits(self.optimizer):
            return None
        return FusedAdam(self.optimizer)

    @cached_property
    def skips_by_itself(self) -> bool:
        """Whether the optimizer takes `found_inf` and skips on the device, so that nobody waits for the vote."""
        if self.masters and self.masters.stochastic:  # what did not move would be rounded anew
            return False
        return bool(self.optimizer.defaults.get("fused"))

    def advance(self, position: int) -> None:
        """Set the learning rates and weight decays of the step that ends at this position (in samples)."""
        waits, since = 0 < position <= self.before, max(0, position - self.before)
        decay = self.decay(since)
        for group, factor in zip(self.optimizer.param_groups, self.factors, strict=True):
            group["lr"] = 0.0 if waits else group["peak"] * factor(since)
            group["weight_decay"] = group["full_decay"] * decay
        for mover in self.rows:
            mover.advance(since, waits=waits)

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates that the ledger records: the first group's by the network's name, and as NETWORK/TABLE
        those of tables, by the first ones of those that move alike."""
        found: dict[str, float] = {}
        if self.parameters or not self.rows:
            found[self.network] = self.optimizer.param_groups[0]["lr"]
        return found | {f"{self.network}/{mover.name}": mover.lr for mover in self.rows}


def build_network_optimizers(
    networks: Mapping[str, nn.Module],
    optimizer: Optimizer | Mapping[str, Optimizer],
    schedule: Schedule | Mapping[str, Schedule],
    horizon: Horizon,
    waits: Mapping[str, int] = MappingProxyType({}),
    parts: Parts = MappingProxyType({}),
) -> dict[str, NetworkOptimizer]:
    """A NetworkOptimizer for each network that has a trainable parameter.

    `horizon` is the run's; `waits` are the steps that some networks stand still for at first, which their schedules do
    not count. `parts` are what is here of the networks' parameters, where processes share them. Raises Failure(78)
    where a mapping by network names another set of networks than the task's, where a group takes no parameter, where a
    schedule's landmarks are not in order, and where a network waits for longer than the budget.
    """
    trainable = _trainable(networks)
    optimizers = _by_network(optimizer, trainable, "optimizer")
    schedules = _by_network(schedule, trainable, "schedule")
    # One optimizer for all networks is satisfied by any of them: a pattern need not take a parameter of each.
    groups = {} if isinstance(optimizer, Mapping) else assign(trainable, optimizer)
    if isinstance(optimizer, Mapping):
        for name, module in trainable.items():
            groups |= assign({name: module}, optimizers[name])
    built = {}
    for name in trainable:
        own = _require_time(name, horizon.since(waits.get(name, 0)))
        moved = Moved(groups[name], parts)
        built[name] = _build(name, optimizers[name], schedules[name], moved, own)
    return built


class Moved:
    """What an optimizer moves: groups of plain parameters, and which parts of the networks' they are."""

    def __init__(self, groups: Sequence[Parameters], parts: Parts) -> None:
        """`groups` and `parts` are of the networks' own parameters."""
        self.parts = {part.here: part for part in parts.values()}
        self.groups: list[Parameters] = []
        here = {parameter: part.here for parameter, part in parts.items()}
        for group in groups:
            moved = tuple([here.get(parameter, parameter) for parameter in group.parameters])
            self.groups.append(replace(group, parameters=moved))


def _trainable(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The networks that have a trainable parameter."""
    found = {}
    for name, module in networks.items():
        if any(parameter.requires_grad for parameter in module.parameters()):
            found[name] = module
    return found


def _require_time(network: str, horizon: Horizon) -> Horizon:
    """The horizon of a network, where it moves before the run is over."""
    if horizon.total <= 0:
        budget = horizon.before + horizon.total
        cause = f"networks.{network} moves first after {horizon.before} samples, and the budget is {budget}"
        raise Failure(Exit.BAD_RECIPE, cause, "let it begin earlier, or train for longer")
    return horizon


def _build(name: str, optimizer: Optimizer, schedule: Schedule, moved: Moved, horizon: Horizon) -> NetworkOptimizer:
    return NetworkOptimizer(
        network=name,
        optimizer=_torch_optimizer(optimizer, moved),
        factors=tuple(build_factor(group.schedule or schedule, horizon) for group in moved.groups),
        decay=build_decay(optimizer.weight_decay_schedule, horizon),
        clip=optimizer.clip,
        before=horizon.before,
        layerwise=optimizer.layerwise,
        projected=optimizer.sums_projections,
        own=isinstance(optimizer, OwnOptimizer),
    )


def without_layers(name: str, optimizer: Optimizer, horizon: Horizon) -> NetworkOptimizer:
    """That of a network whose tables train alone: it waits and clips, and has nothing to move by itself.

    Raises Failure(78) where the network waits for longer than the budget.
    """
    _require_time(name, horizon)
    spare_the_compiler()
    nothing = Parameters((), (), lr=0.0, weight_decay=0.0)
    rest = build_factor(Constant(), horizon)
    return NetworkOptimizer(
        name, torch.optim.SGD([_torch_group(nothing)]), (rest,), rest, optimizer.clip, horizon.before
    )


def retuned(
    network_optimizers: Mapping[str, NetworkOptimizer], fresh: Mapping[str, NetworkOptimizer]
) -> dict[str, NetworkOptimizer]:
    """The optimizers with the learning rates, weight decays, clipping and schedules of `fresh`, by network.

    The optimizers, what they remember, and which parameters share a group stay as they are.
    """
    result = {}
    for name, network_optimizer in network_optimizers.items():
        new = fresh[name]
        # Other rates may sort the parameters into other groups, so a group is found again by its first parameter.
        place_of: dict[str, int] = {}
        for place, group in enumerate(new.optimizer.param_groups):
            place_of.update(dict.fromkeys(group["names"], place))
        factors = []
        for group in network_optimizer.optimizer.param_groups:
            place = place_of[group["names"][0]] if group["names"] else 0
            other = new.optimizer.param_groups[place]
            group.update(peak=other["peak"], full_decay=other["full_decay"])
            factors.append(new.factors[place])
        result[name] = replace(network_optimizer, factors=tuple(factors), decay=new.decay, clip=new.clip)
    return result


def _by_network(settings, networks: Mapping[str, nn.Module], section: str) -> dict:
    if not isinstance(settings, Mapping):
        return dict.fromkeys(networks, settings)
    if set(settings) != set(networks):
        raise Failure(
            Exit.BAD_RECIPE,
            f"{section}: given for {sorted(settings)}, but the networks that train are {sorted(networks)}",
            f"name each of them once under {section}, or give one {section} for all",
        )
    return dict(settings)


def _torch_optimizer(settings: Optimizer, moved: Moved) -> torch.optim.Optimizer:
    """The optimizer with its groups; fused where torch has kernels for all of their devices."""
    spare_the_compiler()
    groups = [_torch_group(group) for group in moved.groups]
    if isinstance(settings, OwnOptimizer):
        return own_optimizer(settings, groups)
    options = settings.arguments()
    if moved.parts and settings.parts in ("rows", "whole"):
        options["parts"] = moved.parts
    if settings.fused_on:
        tensors = chain.from_iterable(group.parameters for group in moved.groups)
        fits = all(tensor.device.type in settings.fused_on and tensor.is_floating_point() for tensor in tensors)
        # None, not False: that would keep torch from its foreach kernels as well.
        options["fused"] = fits or None
    return imported(settings.factory)(groups, **options)


def _torch_group(group: Parameters) -> dict[str, Any]:
    """ "peak" and "full_decay" are the recipe's; "lr" and "weight_decay" those of the step, as `advance` sets them."""
    return {
        "params": list(group.parameters),
        "names": list(group.names),
        "lr": group.lr,
        "peak": group.lr,
        "weight_decay": group.weight_decay,
        "full_decay": group.weight_decay,
        "matrix": group.matrix,
        **group.options,
    }
