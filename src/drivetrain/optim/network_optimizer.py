"""A network's optimizer with its schedule and clipping: what `minimize` moves a network with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor, nn

from drivetrain.optim.fused import FusedAdam
from drivetrain.optim.groups import Parameters, assign
from drivetrain.optim.recipe import Optimizer, Schedule
from drivetrain.optim.schedules import Factor, build_decay, build_factor
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported


@dataclass(frozen=True)
class NetworkOptimizer:
    """What moves one network: its optimizer, each parameter group's learning-rate factor, the weight decays' factor.

    Its schedules begin after the first `before` samples of the run; until then its learning rates are zero.
    `layerwise`: parameters move within the backward pass. `projected`: GaLore's matrices may be given their gradients
    as projections.
    """

    network: str
    optimizer: torch.optim.Optimizer
    factors: tuple[Factor, ...]
    decay: Factor
    clip: float | None
    before: int = 0
    layerwise: bool = False
    projected: bool = False

    @property
    def gradients(self) -> list[Tensor]:
        """Of all parameters that have one, as the optimizer will take them."""
        given = self._given  # mostly empty: looking a parameter up takes torch longer than taking its gradient
        found = [given.get(p, p.grad) for p in self.parameters] if given else [p.grad for p in self.parameters]
        return [gradient for gradient in found if gradient is not None]

    @cached_property
    def _given(self) -> Mapping[nn.Parameter, Tensor]:
        return getattr(self.optimizer, "given", {})  # GaLore has it, whose import is left to who uses it

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, group by group."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def step(self, gradients: list[Tensor]) -> None:
        """Move the network by its `gradients`."""
        if self._fused:
            self._fused.step(gradients)
        else:
            self.optimizer.step()

    @cached_property
    def _fused(self) -> FusedAdam | None:
        return FusedAdam(self.optimizer) if FusedAdam.fits(self.optimizer) else None

    @cached_property
    def skips_by_itself(self) -> bool:
        """Whether the optimizer takes `found_inf` and skips on the device, so that nobody waits for the vote."""
        return bool(self.optimizer.defaults.get("fused"))

    def advance(self, position: int) -> None:
        """Set the learning rates and weight decays of the step that ends at this position (in samples)."""
        waits, since = 0 < position <= self.before, max(0, position - self.before)
        decay = self.decay(since)
        for group, factor in zip(self.optimizer.param_groups, self.factors, strict=True):
            group["lr"] = 0.0 if waits else group["peak"] * factor(since)
            group["weight_decay"] = group["full_decay"] * decay

    @property
    def lr(self) -> float:
        """The learning rate of the first group, which the ledger records."""
        return self.optimizer.param_groups[0]["lr"]


def build_network_optimizers(
    networks: Mapping[str, nn.Module],
    optimizer: Optimizer | Mapping[str, Optimizer],
    schedule: Schedule | Mapping[str, Schedule],
    budget: int,
    scale: Scale,
    waits: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, NetworkOptimizer]:
    """An network_optimizer for each network that has a trainable parameter.

    `budget` is the run's length in samples; `waits` are the steps that some networks stand still for at first, which
    their schedules do not count. Raises Failure(78) where a mapping by network names another set of networks than the
    task's, where a group takes no parameter, where a schedule's landmarks are not in order, and where a network waits
    for longer than the budget.
    """
    trainable = {name: net for name, net in networks.items() if any(p.requires_grad for p in net.parameters())}
    optimizers = _by_network(optimizer, trainable, "optimizer")
    schedules = _by_network(schedule, trainable, "schedule")
    groups = (
        {name: assign({name: net}, optimizers[name])[name] for name, net in trainable.items()}
        if isinstance(optimizer, Mapping)
        else assign(trainable, optimizer)
    )
    return {
        name: _updater(name, optimizers[name], schedules[name], groups[name], budget, scale, waits.get(name, 0))
        for name in trainable
    }


def _updater(
    name: str,
    optimizer: Optimizer,
    schedule: Schedule,
    groups: Sequence[Parameters],
    budget: int,
    scale: Scale,
    wait: int,
) -> NetworkOptimizer:
    before = scale.batches.samples(wait)
    left, scale = budget - before, replace(scale, batches=scale.batches.since(wait))
    if left <= 0:
        cause = f"networks.{name} moves first after {before} samples, and the budget is {budget}"
        raise Failure(Exit.BAD_RECIPE, cause, "let it begin earlier, or train for longer")
    return NetworkOptimizer(
        network=name,
        optimizer=_torch_optimizer(optimizer, groups),
        factors=tuple(build_factor(group.schedule or schedule, left, scale) for group in groups),
        decay=build_decay(optimizer.weight_decay_schedule, left, scale),
        clip=optimizer.clip,
        before=before,
        layerwise=optimizer.layerwise,
        projected=getattr(optimizer, "reduce", "whole") == "projected",
    )


def retuned(
    network_optimizers: Mapping[str, NetworkOptimizer], fresh: Mapping[str, NetworkOptimizer]
) -> dict[str, NetworkOptimizer]:
    """The optimizers with the learning rates, weight decays, clipping and schedules of `fresh`, by network.

    The optimizers, what they remember, and which parameters share a group stay as they are.
    """
    result = {}
    for name, network_optimizer in network_optimizers.items():
        group_of = {
            member: place for place, g in enumerate(fresh[name].optimizer.param_groups) for member in g["names"]
        }
        places = [group_of[group["names"][0]] for group in network_optimizer.optimizer.param_groups]
        for group, place in zip(network_optimizer.optimizer.param_groups, places, strict=True):
            other = fresh[name].optimizer.param_groups[place]
            group.update({key: other[key] for key in ("peak", "full_decay")})
        factors = tuple(fresh[name].factors[place] for place in places)
        result[name] = replace(network_optimizer, factors=factors, decay=fresh[name].decay, clip=fresh[name].clip)
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


def _torch_optimizer(settings: Optimizer, groups: Sequence[Parameters]) -> torch.optim.Optimizer:
    """The optimizer with its groups; fused where torch has kernels for all of their devices."""
    options = settings.arguments()
    if settings.fused_on:
        tensors = [p for group in groups for p in group.parameters]
        options["fused"] = all(p.device.type in settings.fused_on and p.is_floating_point() for p in tensors) or None
    return imported(settings.factory)(
        [
            {
                "params": list(group.parameters),
                "names": list(group.names),
                "lr": group.lr,
                "peak": group.lr,
                "weight_decay": group.weight_decay,
                "full_decay": group.weight_decay,
                "matrix": group.matrix,
                **group.options,
            }
            for group in groups
        ],
        **options,
    )
