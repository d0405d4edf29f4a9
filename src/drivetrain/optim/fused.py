"""The step of torch's fused Adam and AdamW on the CPU, without what torch does around its kernel in every step.

Sorting tensors by type, and counting each parameter's steps by itself, take as long as the kernel where networks are
small. The kernel is torch's own, so the bits are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks_after
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks_before

from drivetrain.optim.uncompiled import plain_step


class FusedAdam:
    """Steps an optimizer that `fits`. The optimizer keeps all state, which may be replaced between steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._count = torch.empty(0)  # steps that each parameter has made
        self._steps: list[Tensor] = []  # its elements, which lie in the parameters' states

    @staticmethod
    def fits(optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is an Adam or AdamW, each of whose groups has plain tensors of one type on the CPU."""
        known = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
        return known and all(_are_plain(group["params"]) for group in optimizer.param_groups)

    def step(self, gradients: list[Tensor]) -> None:
        """One step by the gradients of those parameters that have one: to the same bits as the optimizer's own step, by
        which each is made that is not quite ordinary. The first one is so without what torch puts around it."""
        groups, remembered = self._optimizer.param_groups, self._optimizer.state
        begun, parameters = [], 0
        for group in groups:
            parameters += len(group["params"])
            # State is looked up in each step: loading a commit, or a test of a step, puts other tensors in its place.
            begun += [state for parameter in group["params"] if (state := remembered.get(parameter))]
        if self._does_more():
            self._optimizer.step()
            return
        if not len(begun) == len(gradients) == parameters:
            plain_step(self._optimizer)
            return
        self._count_together(begun)
        at = 0
        with torch.no_grad():
            self._count += 1
            for group in groups:
                span = slice(at, at := at + len(group["params"]))
                _move(group, gradients[span], begun[span], self._steps[span])

    def _does_more(self) -> bool:
        """Whether the optimizer's own step is more than the kernel: scaled gradients, hooks, or another kernel."""
        own = self._optimizer
        hooks = own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks or hooks_before or hooks_after
        scaled = hasattr(own, "grad_scale") or hasattr(own, "found_inf")
        return bool(hooks) or scaled or not all(g["fused"] and not g["differentiable"] for g in own.param_groups)

    def _count_together(self, states: Sequence[dict[str, Any]]) -> None:
        """Make the steps in these states elements of one tensor, where they are not yet."""
        now = [state["step"] for state in states]
        # By identity: another tensor there, even an equal one, has been put in place since the last step.
        if len(now) == len(self._steps) and all(map(is_, now, self._steps)):
            return
        self._count = torch.stack(now)
        self._steps = list(self._count.unbind())
        for state, steps in zip(states, self._steps, strict=True):
            state["step"] = steps


def _move(
    group: dict[str, Any], gradients: list[Tensor], states: Sequence[dict[str, Any]], steps: list[Tensor]
) -> None:
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    beta1, beta2 = group["betas"]
    means = [state["exp_avg"] for state in states]
    squares = [state["exp_avg_sq"] for state in states]
    largest = []
    if group["amsgrad"]:
        largest = [state["max_exp_avg_sq"] for state in states]
    kernel(
        group["params"],
        gradients,
        means,
        squares,
        largest,
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
    )


def _are_plain(parameters: Sequence[nn.Parameter]) -> bool:
    # The type of `data`: a parameter may wrap a subclass, such as a DTensor, for which the kernel has no way.
    kinds = {(type(parameter.data), parameter.device.type, parameter.dtype) for parameter in parameters}
    if len(kinds) != 1:
        return False
    ((kind, device, _),) = kinds
    return kind is Tensor and device == "cpu"
