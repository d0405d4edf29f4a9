"""Weights in bf16 whose gradients are fp32: they add up, and are summed over ranks, as those of fp32 weights are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from drivetrain.engine.placement import Placement
from drivetrain.engine.tables.module import tables_in
from drivetrain.optim.masters import Masters, Weight, wide
from drivetrain.optim.parts import Part
from drivetrain.spec.exits import Exit, Failure


def narrow(network: nn.Module) -> None:
    """Round a network's floating-point parameters to bf16, in place; buffers stay, and tables are it already.

    Raises Failure(78) where this torch has no gradients of another type than their parameters.
    """
    for parameter in _layers(network):
        if parameter.is_floating_point():
            if not hasattr(parameter, "grad_dtype"):
                cause = f"parameters.dtype bf16: torch {torch.__version__} has no Tensor.grad_dtype"
                raise Failure(Exit.BAD_RECIPE, cause, "use torch 2.13, or leave parameters.dtype out")
            parameter.data = parameter.data.to(torch.bfloat16)
    widen_gradients(network)


def widen_gradients(network: nn.Module, *, sharded: bool = False) -> None:
    """Have bf16 parameters take fp32 gradients. Whatever lays a network out makes other parameters of them.

    Those that are `sharded` take any: torch's FSDP gives them bf16 ones (see `engine.wide_units`); it leaves single
    numbers alone.
    """
    for parameter in _layers(network):
        if parameter.dtype == torch.bfloat16:
            parameter.grad_dtype = None if sharded and parameter.dim() else torch.float32


def _layers(network: nn.Module) -> list[nn.Parameter]:
    """All parameters but tables, whose gradients are none of theirs."""
    tables = tables_in(network)
    return [parameter for parameter in network.parameters() if parameter not in tables]


def masters_of(
    networks: Mapping[str, nn.Module], placement: Placement, seed: int, *, lasting: bool, stochastic: bool
) -> Masters:
    """A master for each bf16 weight; networks may share one, which is the first one's."""
    weights: dict[str, Weight] = {}
    seen: set[nn.Parameter] = set()
    for network, module in networks.items():
        for name, parameter in module.named_parameters():
            if parameter in seen or not wide(parameter):
                continue
            seen.add(parameter)
            held = placement.held.get(f"{network}/{name}")
            weights[f"{network}/{name}"] = Weight(parameter, held.part if held else Part.of_whole(parameter))
    return Masters(weights, seed, lasting=lasting, stochastic=stochastic)
