"""Whether a step is made: gradient norms, the vote of all ranks on the same numbers, clipping, the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drivetrain.engine.buffers import Kept, undo
from drivetrain.engine.move import CLIP_EPSILON, Arriving, Move, Sums, scalars, verdict
from drivetrain.engine.scaler import Scaler
from drivetrain.optim.updater import Updater


class Ballot(NamedTuple):
    """What is voted on: networks with their gradients and these gradients' norms, and the sums of losses and counts.

    `bounds` are the largest acceptable losses and norms, in this order; `kept` buffers go back where nothing moves.
    """

    updaters: Sequence[Updater]
    gradients: Sequence[list[Tensor]]
    norms: Sequence[Tensor]
    sums: Sums
    counts: Mapping[str, int]
    bounds: Sequence[float] | None = None
    scaler: Scaler | None = None
    kept: Sequence[Kept] = ()


def move(
    updaters: Sequence[Updater],
    sums: Sums,
    counts: Mapping[str, int],
    limits: Mapping[str, float],
    scaler: Scaler | None,
    kept: Sequence[Kept],
    moved: Sequence[Tensor] = (),
) -> Move:
    """Move the updaters' networks, all or none of them. Where they stand still, `kept` buffers do too.

    `limits` are the largest acceptable means and norms by name (`loss/NAME`, `norm/NETWORK`). `moved` are the norms of
    networks that have moved in the backward pass: they are judged all the same.
    """
    gradients = [updater.gradients for updater in updaters]
    if scaler:
        scaler.unscale([gradient for grads in gradients for gradient in grads])
    norms = moved or [_norm(grads, sums.device) for grads in gradients]
    bounds = _bounds(limits, sums, counts, updaters) if limits else None
    vote = vote_on_host if sums.device.type == "cpu" else vote_on_device
    return vote(Ballot(updaters, gradients, norms, sums, counts, bounds, scaler, kept))


def vote_on_host(ballot: Ballot) -> Move:
    """The CPU's way: look at the numbers, then move or not."""
    updaters, gradients, norms, sums, counts, bounds, scaler, kept = ballot
    sizes = [float(norm) for norm in norms]
    why = verdict(sums.values, sizes, bounds, scaled=scaler is not None)
    if not why:
        for updater, grads, norm in zip(updaters, gradients, sizes, strict=True):
            if not grads:
                continue
            if updater.clip is not None and norm > updater.clip:
                torch._foreach_mul_(grads, updater.clip / (norm + CLIP_EPSILON))
            updater.step(grads)
    else:
        undo(kept, torch.tensor(False))
    scale = None
    if scaler:
        scale = float(scaler.scale)
        scaler.update(torch.tensor(why == "overflow"), torch.tensor(all(map(math.isfinite, sums.values))))
    names = _names(updaters)
    return Move(names, scalars(names, sums.labels, counts, sums.values, sizes, why, scale))


def vote_on_device(ballot: Ballot) -> Move:
    """An accelerator's way: nothing waits. The fused optimizers skip by themselves where `found_inf` is 1.

    An optimizer that cannot do so waits for the vote: the one declared synchronization.
    """
    updaters, gradients, norms, sums, counts, bounds, scaler, kept = ballot
    losses = torch.stack(sums.values).float() if sums.values else torch.zeros(0, device=norms[0].device)
    sizes = torch.stack(list(norms)).float()
    numbers = torch.cat([losses, sizes])
    go = numbers.isfinite().all()
    if bounds is not None:
        rounded = torch.tensor(bounds, dtype=torch.float32)
        bounds = rounded.tolist()  # the host will compare with the very same numbers
        go &= (numbers <= rounded.to(numbers.device, non_blocking=True)).all()
    found_inf = (~go).float()
    for updater, grads, norm in zip(updaters, gradients, norms, strict=True):
        if not grads:
            continue
        if updater.clip is not None:
            torch._foreach_mul_(grads, (updater.clip / (norm + CLIP_EPSILON)).clamp(max=1.0))
        if updater.skips_by_itself:
            updater.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            updater.optimizer.step()
        elif bool(go):
            updater.optimizer.step()
    undo(kept, go)
    if scaler:
        numbers = torch.cat([numbers, scaler.scale.reshape(1)])
        scaler.update(~sizes.isfinite().all(), losses.isfinite().all())
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda).copy_(numbers, non_blocking=True)
    event = torch.Event(device=numbers.device)
    event.record()
    return Move(_names(updaters), Arriving(sums.labels, counts, host, bounds, scaler is not None, event))


def _names(updaters: Sequence[Updater]) -> tuple[str, ...]:
    return tuple([updater.network for updater in updaters])


def _norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """The 2-norm of all gradients together, a 0-d tensor."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))


def _bounds(
    limits: Mapping[str, float], sums: Sums, counts: Mapping[str, int], updaters: Sequence[Updater]
) -> list[float]:
    """The limits as bounds on loss sums and norms; slots without a loss, and what has no limit, have none."""
    losses = [limits.get(f"loss/{name}", math.inf) * max(1, counts[over]) for name, over in sums.labels]
    empty = [math.inf] * (len(sums.values) - len(losses))
    return [*losses, *empty, *(limits.get(f"norm/{updater.network}", math.inf) for updater in updaters)]
