"""fp32 gradients of bf16 weights where torch's FSDP cuts: it sums them in fp32, and would round the sums to bf16."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from drivetrain.checkpoint.boxes import local_of
from drivetrain.engine.layout import shards_of
from drivetrain.optim.masters import wide
from drivetrain.spec.exits import Exit, Failure


class WideUnits:
    """The units of networks whose weights are bf16, and what torch's hooks have told of their gradients.

    Torch's own gradients are views of one buffer for each unit, which was rounded from an fp32 one of the same layout.
    A hook is shown that one, and views of it are taken in their place.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        """Every rank makes one at the same time: units are gathered once, to see their whole parameters."""
        self._unit_of: dict[nn.Parameter, FSDPModule] = {}
        self._whole: dict[FSDPModule, list[nn.Parameter]] = {}
        self._sums: dict[FSDPModule, Tensor] = {}
        self._armed: set[FSDPModule] = set()
        for network in networks:
            # The last first, as they were sharded: a parameter belongs to the innermost unit that has it.
            for unit in reversed(shards_of(network)):
                own = [parameter for parameter in _module(unit).parameters() if wide(parameter)]
                for parameter in own:
                    self._unit_of.setdefault(parameter, unit)
                if own:
                    unit.set_all_reduce_hook(partial(self._keep, unit))
                    unit.unshard()
                    self._whole[unit] = _trainable(unit, self._unit_of)
                    unit.reshard()
        for unit, parameters in self._whole.items():
            for parameter in parameters:
                parameter.grad_dtype = torch.float32
                parameter.register_post_accumulate_grad_hook(partial(self._fill, unit))

    def reset(self) -> None:
        """Before the first micro-batch."""
        self._armed.clear()
        self._sums.clear()

    def arm(self) -> None:
        """Before the last backward pass. Torch wants all gradients of a unit in one type. For what no loss reaches it
        makes zeros, of the weights' type, so a unit that has any gradient gets fp32 zeros in the others' places."""
        self._armed = set(self._whole)
        for unit, parameters in self._whole.items():
            if any(parameter.grad is not None for parameter in parameters):
                self._fill(unit)

    def finish(self) -> None:
        """Once all gradients are taken."""
        self.reset()

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """A parameter's summed gradient in fp32, cut as the parameter's own is."""
        gradient, unit = parameter.grad, self._unit_of.get(parameter)
        if gradient is None or unit is None or gradient.dtype == torch.float32:
            return gradient
        rounded, sums = local_of(gradient), self._sums[unit]
        if rounded.untyped_storage().nbytes() != sums.numel() * rounded.element_size():
            cause = "torch's FSDP lays gradients out in another way than the one that is known"
            raise Failure(Exit.INTERNAL, cause, "report it, with the version of torch; use parameters.dtype fp32")
        found = sums.as_strided(rounded.shape, rounded.stride(), rounded.storage_offset())
        assert isinstance(gradient, DTensor)
        return DTensor.from_local(
            found,
            gradient.device_mesh,
            gradient.placements,
            run_check=False,
            shape=gradient.shape,
            stride=gradient.stride(),
        )

    def _keep(self, unit: FSDPModule, sums: Tensor) -> None:
        self._sums[unit] = sums

    def _fill(self, unit: FSDPModule, _: Tensor | None = None) -> None:
        """Once a unit has a gradient in the last pass; more is added to these in place."""
        if unit not in self._armed:
            return
        self._armed.remove(unit)
        for parameter in self._whole[unit]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)


def _trainable(unit: FSDPModule, cut: dict[nn.Parameter, FSDPModule]) -> list[nn.Parameter]:
    """The whole parameters of a unit that is gathered, without those of units within it, which are not."""
    found: list[nn.Parameter] = []
    for parameter in _module(unit).parameters():
        if parameter.requires_grad and parameter not in cut:
            found.append(parameter)
    return found


def _module(unit: FSDPModule) -> nn.Module:
    """The same: FSDP changes the classes of modules."""
    assert isinstance(unit, nn.Module)
    return unit
