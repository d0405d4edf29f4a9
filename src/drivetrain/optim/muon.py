"""Muon for matrices and AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon moves the groups with a true "matrix", torch's AdamW the others; groups and state are common.

    AdamW is not fused: Muon cannot skip a step by itself, and fused AdamW would only skip its half.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], muon: Mapping[str, Any], adamw: Mapping[str, Any]) -> None:
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
            self._parts.append(torch.optim.Muon(matrices, **muon))
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss
