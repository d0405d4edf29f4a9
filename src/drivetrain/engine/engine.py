"""Networks made trainable: the one atom, `minimize`, on one device of one process among several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.data.feed import Micro
from drivetrain.engine.losses import Losses, Term, as_losses, objective
from drivetrain.engine.move import Move, Sums
from drivetrain.engine.reduce import Reducer
from drivetrain.engine.transfer import to_device
from drivetrain.optim.updater import Updater
from drivetrain.runtime.group import Group
from drivetrain.runtime.heart import Heart
from drivetrain.runtime.seeds import mix, seed_generators

Networks = Mapping[str, nn.Module]
LossFunction = Callable[[Networks, Any], "Tensor | Losses"]


class Work(NamedTuple):
    """What one `minimize` call works on: this rank's micro-batches, and the global counts the losses are divided by."""

    step: int
    call: int
    micros: Sequence[Micro]
    counts: Mapping[str, int]


class Engine:
    """Forward, backward, reduction, finite vote, clipping and optimizer for the networks that move together."""

    def __init__(
        self,
        networks: Networks,
        updaters: Mapping[str, Updater],
        group: Group,
        device: torch.device,
        precision: str,
        seed: int,
        heart: Heart | None = None,
    ) -> None:
        self.heart = heart or Heart()
        self.networks = networks
        self.updaters = updaters
        self.device = device
        self.position = 0  # of the first sample of the micro-batch at work
        self._group = group
        self._seed = seed
        self._versions = {name: (buffer, buffer._version) for name, buffer in self._buffers().items()}
        self._moving: list[Tensor] = []
        self._reducers: dict[tuple[str, ...], Reducer] = {}
        self._precision: AbstractContextManager = (
            torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()
        )

    def minimize(self, names: tuple[str, ...], loss: LossFunction, work: Work) -> Move:
        """Move the named networks one step down `loss`; the others stand still.

        Where a loss or a gradient norm is not finite no network moves, on any rank: the returned move tells when read.
        """
        updaters = [self.updaters[name] for name in names]
        parameters = [p for updater in updaters for p in updater.parameters]
        reducer = self._zero(names, parameters)
        sums = Sums(self.device)
        for left, micro in zip(range(len(work.micros) - 1, -1, -1), work.micros, strict=True):
            losses = self._forward(loss, micro, work)
            sums.add(losses)
            if reducer and left == 0:
                reducer.arm(sums.pack())
            self._backward(objective(losses, work.counts), parameters)
        if reducer:
            if not work.micros:  # no sample for this rank in a ragged last step: it adds zeros
                reducer.arm(sums.pack())
            self.heart.enter("reduce")
            sums.unpack(reducer.finish())
        return self._update(updaters, sums, work.counts)

    def culprits(self, names: tuple[str, ...], loss: LossFunction, work: Work) -> list[Micro]:
        """The micro-batches of this rank whose loss or gradients are not finite, each run again by itself.

        The weights did not move, so the replay sees what the step saw. It leaves the gradients dirty: the run ends.
        """
        parameters = [p for name in names for p in self.updaters[name].parameters]
        guilty = []
        for micro in work.micros:
            for parameter in parameters:
                parameter.grad = None
            losses = self._forward(loss, micro, work)
            self._backward(objective(losses, work.counts), parameters)
            seen = [term.value for term in losses.values()] + [p.grad for p in parameters if p.grad is not None]
            if not all(bool(tensor.isfinite().all()) for tensor in seen):
                guilty.append(micro)
        return guilty

    @contextmanager
    def evaluating(self) -> Iterator[Networks]:
        """The networks in evaluation mode, without gradients; every rank sees rank 0's buffers."""
        self.share_buffers()
        modes = {name: network.training for name, network in self.networks.items()}
        for network in self.networks.values():
            network.eval()
        try:
            with torch.no_grad(), self._precision:
                yield self.networks
        finally:
            for name, network in self.networks.items():
                network.train(modes[name])

    def share_buffers(self) -> None:
        """Give every rank rank 0's buffers that training changes: running statistics are of a rank's own samples, and
        rank 0's are kept. It is done before every step, so that a commit in between changes nothing."""
        for buffer in self._moving:
            dist.broadcast(buffer, src=0, group=self._group.main)

    def find_moving_buffers(self) -> None:
        """After a step: which buffers it has changed, on any rank."""
        if self._group.world == 1:
            return
        buffers = self._buffers()
        moved = [name for name, (buffer, version) in self._versions.items() if buffer._version != version]
        anywhere = {name for names in self._group.gather_json(moved) for name in names}
        self._moving = [buffers[name] for name in buffers if name in anywhere]

    def _buffers(self) -> dict[str, Tensor]:
        return {f"{name}/{own}": b for name, net in self.networks.items() for own, b in net.named_buffers()}

    def seed(self, *path: int) -> None:
        """Seed the generators that forward passes draw from: the run's seed at a position."""
        seed_generators(self.device, mix(self._seed, *path))

    def _zero(self, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> Reducer | None:
        if self._group.world == 1:
            for parameter in parameters:
                parameter.grad = None
            return None
        if names not in self._reducers:
            self._reducers[names] = Reducer(parameters, self._group.main)
        self._reducers[names].reset()
        return self._reducers[names]

    def _forward(self, loss: LossFunction, micro: Micro, work: Work) -> Mapping[str, Term]:
        self.heart.enter("forward")
        self.seed(work.step, work.call, micro.lane, micro.part)
        self.position = micro.start
        with self._precision:
            return as_losses(loss(self.networks, to_device(micro.batch, self.device)), micro.size)

    def _backward(self, total: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.heart.enter("backward")
        # With one network all that requires a gradient moves; naming the inputs costs time, so only others do it.
        if len(self.networks) == 1:
            total.backward()
        else:
            total.backward(inputs=parameters)

    def _update(self, updaters: Sequence[Updater], sums: Sums, counts: Mapping[str, int]) -> Move:
        """Norms, finite vote, clipping, optimizer."""
        self.heart.enter("optimizer")
        gradients = [[p.grad for p in updater.parameters if p.grad is not None] for updater in updaters]
        norms = [_norm(grads, self.device) for grads in gradients]
        vote = _vote_on_host if self.device.type == "cpu" else _vote_on_device
        return vote(updaters, gradients, norms, sums, counts)


_CLIP_EPSILON = 1e-6
"""Added to the norm in the clipping factor, as torch.nn.utils.clip_grad_norm_ does."""


def _norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """The 2-norm of all gradients together, a 0-d tensor."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))


def _vote_on_host(updaters, gradients, norms, sums: Sums, counts: Mapping[str, int]) -> Move:
    """The CPU's way: look at the numbers, then move or not."""
    norms = [float(norm) for norm in norms]
    values = [*sums.values, *norms]
    if all(map(math.isfinite, values)):
        for updater, grads, norm in zip(updaters, gradients, norms, strict=True):
            if updater.clip is not None and norm > updater.clip:
                torch._foreach_mul_(grads, updater.clip / (norm + _CLIP_EPSILON))
            updater.optimizer.step()
    return Move(tuple(updater.network for updater in updaters), sums.labels, counts, values)


def _vote_on_device(updaters, gradients, norms, sums: Sums, counts: Mapping[str, int]) -> Move:
    """An accelerator's way: nothing waits. The fused optimizers skip by themselves where `found_inf` is 1.

    An optimizer that cannot do so waits for the vote: the one declared synchronization.
    """
    values = torch.stack([*sums.values, *norms]).float()
    found_inf = (~values.isfinite().all()).float()
    for updater, grads, norm in zip(updaters, gradients, norms, strict=True):
        if updater.clip is not None:
            torch._foreach_mul_(grads, (updater.clip / (norm + _CLIP_EPSILON)).clamp(max=1.0))
        if updater.skips_by_itself:
            updater.optimizer.found_inf = found_inf
            updater.optimizer.step()
        elif not bool(found_inf):
            updater.optimizer.step()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda).copy_(values, non_blocking=True)
    event = torch.Event(device=values.device)
    event.record()
    return Move(tuple(u.network for u in updaters), sums.labels, counts, host, event)
