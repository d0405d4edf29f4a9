"""Whether a step is made: gradient norms, the vote of all ranks on the same numbers, clipping, the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.engine.buffers import Kept, undo
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.step_result import CLIP_EPSILON, PendingScalars, Scalars, StepResult, Sums, check_finite, means
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.runtime.device import has_own_memory


class StepInputs(NamedTuple):
    """What is voted on: networks with their gradients and these gradients' norms, and the sums of losses and counts.

    `bounds` are the largest acceptable losses and norms, in this order; `kept` buffers go back where nothing moves.
    `weights` are those of losses, where a rule weighs them.
    """

    network_optimizers: Sequence[NetworkOptimizer]
    gradients: Sequence[list[Tensor]]
    norms: Sequence[Tensor]
    sums: Sums
    counts: Mapping[str, int]
    bounds: Sequence[float] | None = None
    scaler: Scaler | None = None
    kept: Sequence[Kept] = ()
    weights: Mapping[str, float] = MappingProxyType({})


def vote(inputs: StepInputs) -> StepResult:
    """Move all of the networks, or none of them. Where they stand still, `kept` buffers do too.

    Every rank has the same sums and norms, so all of them come to the same vote without a message.
    """
    if inputs.sums.device.type == "cpu":
        return vote_on_host(inputs)
    return vote_on_device(inputs)


def vote_on_host(inputs: StepInputs) -> StepResult:
    """The CPU's way: look at the numbers, then move or not."""
    network_optimizers, gradients, norms, sums, counts, bounds, scaler, kept, weights = inputs
    sizes = [float(norm) for norm in norms]
    why = check_finite(sums.values, sizes, bounds, scaled=scaler is not None)
    if not why:
        for network_optimizer, grads, norm in zip(network_optimizers, gradients, sizes, strict=True):
            if not grads:
                continue
            network_optimizer.clip_values(grads)
            largest = network_optimizer.largest_norm
            if largest is not None and norm > largest:
                torch._foreach_mul_(grads, largest / (norm + CLIP_EPSILON))
            network_optimizer.step(grads)
    else:
        undo(kept, torch.tensor(False))
    scale = None
    if scaler:
        scale = float(scaler.scale)  # the one that this step was made with: `update` changes it for the next
        scaler.update(torch.tensor(why == "overflow"), torch.tensor(all(map(math.isfinite, sums.values))))
    names = _names(network_optimizers)
    norms_by_name = dict(zip(names, sizes, strict=True))
    losses = means(sums.labels, counts, sums.values)
    return StepResult(names, Scalars(losses, norms_by_name, why, scale, weights))


def vote_on_device(inputs: StepInputs) -> StepResult:
    """An accelerator's way: nothing waits. The fused optimizers skip by themselves where `found_inf` is 1.

    An optimizer that cannot do so waits for the vote: the one declared synchronization.
    """
    network_optimizers, gradients, norms, sums, counts, bounds, scaler, kept, weights = inputs
    losses = torch.zeros(0, device=norms[0].device)
    if sums.values:
        losses = torch.stack(sums.values).float()
    sizes = torch.stack(list(norms)).float()
    numbers = torch.cat([losses, sizes])
    go = numbers.isfinite().all()
    if bounds is not None:
        rounded = torch.tensor(bounds, dtype=torch.float32)
        bounds = rounded.tolist()  # the host will compare with the very same numbers
        go &= (numbers <= rounded.to(numbers.device, non_blocking=True)).all()
    found_inf = (~go).float()
    for network_optimizer, grads, norm in zip(network_optimizers, gradients, norms, strict=True):
        if not grads:
            continue
        network_optimizer.clip_values(grads)
        if network_optimizer.largest_norm is not None:
            # Times 1 where the norm is small enough: a look at it would wait for the device.
            torch._foreach_mul_(grads, (network_optimizer.largest_norm / (norm + CLIP_EPSILON)).clamp(max=1.0))
        if network_optimizer.skips_by_itself:
            network_optimizer.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            network_optimizer.move()
        elif bool(go):
            network_optimizer.move()
    undo(kept, go)
    if scaler:
        numbers = torch.cat([numbers, scaler.scale.reshape(1)])  # a copy of the scale, before it changes
        scaler.update(~sizes.isfinite().all(), losses.isfinite().all())
    # Into pinned memory, so that the copy does not wait either; whoever reads it waits for the event.
    pinned = has_own_memory(numbers.device)
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=pinned).copy_(numbers, non_blocking=True)
    event = torch.Event(device=numbers.device)
    event.record()
    numbers = PendingScalars(sums.labels, counts, host, bounds, scaler is not None, event, weights)
    return StepResult(_names(network_optimizers), numbers)


def _names(network_optimizers: Sequence[NetworkOptimizer]) -> tuple[str, ...]:
    return tuple([network_optimizer.network for network_optimizer in network_optimizers])


def gradient_norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """The 2-norm of all gradients together, a 0-d tensor."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))


def bounds(
    limits: Mapping[str, float], sums: Sums, counts: Mapping[str, int], network_optimizers: Sequence[NetworkOptimizer]
) -> list[float]:
    """The limits as bounds on loss sums and norms; slots without a loss, and what has no limit, have none."""
    losses = [limits.get(f"loss/{name}", math.inf) * max(1, counts[over]) for name, over in sums.labels]
    empty = [math.inf] * (len(sums.values) - len(losses))
    norms = [limits.get(f"norm/{network_optimizer.network}", math.inf) for network_optimizer in network_optimizers]
    return losses + empty + norms
