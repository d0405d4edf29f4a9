"""The step of torch's fused Adam and AdamW on the CPU, without what torch does around its kernel in every step.

Looking up what is remembered of each parameter, sorting tensors by type and counting each parameter's steps by itself
take as long as the kernel where networks are small. The kernel is torch's own, so the bits are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks_after
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks_before


class FusedAdam:
    """Steps an optimizer that `fits`, which goes on to keep all state, and may be given another at any time."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        groups = [group["params"] for group in optimizer.param_groups]
        self._optimizer = optimizer
        self._parameters = [parameter for group in groups for parameter in group]
        self._spans = [slice(*ends) for ends in pairwise(accumulate(map(len, groups), initial=0))]
        self._known: list[dict[str, Any]] = []  # what the optimizer remembers of each parameter, in its order
        self._states: list[dict[str, Any]] = []  # the same in the parameters' order
        self._count = torch.empty(0)  # steps that each parameter has made
        self._steps: list[Tensor] = []  # its elements, which lie in the states

    @staticmethod
    def fits(optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is a fused Adam or AdamW, each of whose groups has plain tensors of one type on the CPU."""
        known = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and optimizer.defaults["fused"]
        return bool(known) and all(_are_plain(group["params"]) for group in optimizer.param_groups)

    def step(self, gradients: list[Tensor]) -> None:
        """One step by the parameters' gradients, those that there are: the same as the optimizer's own."""
        if len(gradients) < len(self._parameters) or self._is_watched() or not self._has_begun():
            self._optimizer.step()
            return
        with torch.no_grad():
            self._count += 1
            for group, span in zip(self._optimizer.param_groups, self._spans, strict=True):
                self._move(group, gradients[span], self._states[span], self._steps[span])

    def _move(
        self, group: dict[str, Any], gradients: list[Tensor], states: list[dict[str, Any]], steps: list[Tensor]
    ) -> None:
        kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        beta1, beta2 = group["betas"]
        kernel(
            group["params"],
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
        )

    def _is_watched(self) -> bool:
        """Whether somebody wants to be called before or after each step of the optimizer."""
        own = self._optimizer
        return bool(own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks or hooks_before or hooks_after)

    def _has_begun(self) -> bool:
        """Whether the optimizer remembers all parameters. Where it has been given other state, that is taken over."""
        now = list(self._optimizer.state.values())
        if len(now) < len(self._parameters):
            return False
        if not _same(now, self._known) or not _same([state["step"] for state in self._states], self._steps):
            self._known = now
            self._states = [self._optimizer.state[parameter] for parameter in self._parameters]
            self._count = torch.stack([state["step"] for state in self._states])
            self._steps = list(self._count.unbind())
            for state, steps in zip(self._states, self._steps, strict=True):
                state["step"] = steps
        return True


def _are_plain(parameters: Sequence[nn.Parameter]) -> bool:
    kinds = {(type(parameter.data), parameter.device.type) for parameter in parameters}
    return kinds == {(Tensor, "cpu")} and len({parameter.dtype for parameter in parameters}) == 1


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether these are the very same objects."""
    return [*map(id, some)] == [*map(id, others)]
