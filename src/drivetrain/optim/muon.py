"""Muon for matrices and AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from drivetrain.optim.closures import loss_of
from drivetrain.optim.parts import Part, Parts


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon moves the groups with a true "matrix", torch's AdamW the others; groups and state are common.

    AdamW is not fused: Muon cannot skip a step by itself, and fused AdamW would only skip its half.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        muon: Mapping[str, Any],
        adamw: Mapping[str, Any],
        parts: Parts = MappingProxyType({}),
    ) -> None:
        super().__init__(groups, {})
        matrices, others = [], []
        for group in self.param_groups:
            if group["matrix"]:
                matrices.append(group)
            else:
                others.append(group)
        # torch refuses an optimizer without parameters.
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(PartedMuon(matrices, parts, muon) if parts else torch.optim.Muon(matrices, **muon))
        if others:
            self._parts.append(torch.optim.AdamW(others, **adamw))
        # The parts hold these very groups and this very state, so rates that are set here reach them.
        for part in self._parts:
            part.state = self.state

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; the closure, which computes the loss, is called once, before."""
        loss = loss_of(closure)
        for part in self._parts:
            part.step()
        return loss


class PartedMuon(torch.optim.Muon):
    """torch's Muon on parts of matrices: velocities are those of the parts, and what is orthogonalised is put together
    of all of them, matrix by matrix. So every process does all of Newton and Schulz, as replicas do."""

    def __init__(self, groups: Sequence[dict[str, Any]], parts: Parts, settings: Mapping[str, Any]) -> None:
        super().__init__(groups, **settings)
        self._held = parts

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every part of which this rank has a gradient; all ranks that share a matrix have one, or none has."""
        loss = loss_of(closure)
        for group in self.param_groups:
            parameters: list[Any] = []
            gradients: list[Tensor] = []
            velocities: list[Tensor] = []
            self._init_group(group, parameters, gradients, velocities)
            for parameter, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
                self._move(self._held[parameter], gradient, velocity, group)
        return loss

    def _move(self, part: Part, gradient: Tensor, velocity: Tensor, group: Mapping[str, Any]) -> None:
        velocity.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(velocity, group["momentum"]) if group["nesterov"] else velocity
        whole = _zeropower_via_newtonschulz(
            part.gathered(update), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], torch.Size(part.box.whole))
        part.here.mul_(1 - group["lr"] * group["weight_decay"])
        part.here.add_(whole[part.box.slices], alpha=-rate)
