"""Parameters that move within the backward pass, each as soon as its gradient is whole, so that gradients never lie in
memory all at once (Lv et al. 2023, arXiv 2306.09782; GaLore's "per-layer weight updates", arXiv 2403.03507).

They move before anybody has seen all losses and norms, so a bad step cannot be left out; and the norm of all gradients
is known too late for this step, so clipping goes by that of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.step_result import CLIP_EPSILON, Sums
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure


class Layerwise:
    """A reduction (see `engine.reduction`) that moves what it has reduced, and frees it.

    Gradients of micro-batches before the last are held, and added. Several processes sum gradients one by one, in the
    reverse order of the parameters on every rank, since messages are matched by order; one process takes them as they
    come.
    """

    in_backward = True

    def __init__(
        self,
        names: Sequence[str],
        network_optimizers: Mapping[str, NetworkOptimizer],
        group: Group,
        last: Mapping[str, Tensor],
    ) -> None:
        """`network_optimizers` are looked up by these names in each step: a `set` replaces them while the run trains.
        `last` are the networks' gradient norms in the step before, float32 0-d; 0 where there was none. They are kept
        up to date in place."""
        self._norms = [last[name] for name in names]
        self._group = group
        self._order: list[tuple[nn.Parameter, int]] = []
        for number, name in enumerate(names):
            self._order += [(parameter, number) for parameter in network_optimizers[name].parameters]
        self._order.reverse()
        self._names, self._network_optimizers = names, network_optimizers
        self._squares = [torch.zeros_like(norm) for norm in self._norms]
        self._held: dict[nn.Parameter, Tensor] = {}
        self._ready: set[nn.Parameter] = set()
        self._next = 0
        self._armed = False
        for parameter, number in self._order:
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def reset(self) -> None:
        """Before the first micro-batch: there are no gradients."""
        self._next = 0
        self._ready.clear()
        for parameter, _ in self._order:
            parameter.grad = None
        for squares in self._squares:
            squares.zero_()

    def enter(self, lane: int, sums: Sums) -> None:
        """Micro-batches are added up as they come, whatever lane they are of."""

    def arm(self, sums: Sums) -> None:
        """Before the last backward: what is there is held, so that an optimizer sees one gradient at a time."""
        self._armed = True
        for parameter, _ in self._order:
            self._hold(parameter)

    def finish(self, sums: Sums) -> None:
        """After the last backward: move what it did not reach, and sum the losses."""
        if not self._armed:  # no sample for this rank
            self.arm(sums)
        self._armed = False
        # Other ranks wait for this one's zeros where its loss did not reach a parameter. Alone, `_next` stays 0, and
        # what has not moved is what is still held.
        for parameter, number in self._order[self._next :]:
            if self._group.world > 1 or parameter in self._held:
                self._move(parameter, number)
        if self._group.world > 1:
            packed = sums.pack()
            dist.all_reduce(packed, group=self._group.main)
            sums.unpack(packed)
        # Only now: until here `_norms` was what this step is clipped by. In place, since commits keep these tensors.
        for norm, squares in zip(self._norms, self._squares, strict=True):
            norm.copy_(squares.sqrt())

    def measure(self) -> Sequence[Tensor]:
        """Those of this step's gradients, which are gone."""
        return self._norms

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def whole(parameter: Tensor) -> None:
            assert isinstance(parameter, nn.Parameter)
            if not self._armed:  # an earlier micro-batch: backward adds the next one to this gradient
                return
            self._hold(parameter)
            if self._group.world == 1:
                self._move(parameter, number)
                return
            self._ready.add(parameter)
            while self._next < len(self._order) and self._order[self._next][0] in self._ready:
                self._move(*self._order[self._next])
                self._next += 1

        return whole

    def _hold(self, parameter: nn.Parameter) -> None:
        """Add a parameter's gradient to what is held of it, out of the optimizer's sight."""
        if parameter.grad is not None:
            held = self._held.get(parameter)
            if held is None:
                self._held[parameter] = parameter.grad
            else:
                held.add_(parameter.grad)
            parameter.grad = None

    def _move(self, parameter: nn.Parameter, number: int) -> None:
        """Move one parameter of the network of this number; by zeros where no loss reached it on this rank."""
        network_optimizer = self._network_optimizers[self._names[number]]
        gradient = self._held.pop(parameter, None)
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        if self._group.world > 1:
            dist.all_reduce(gradient, group=self._group.main)
        self._squares[number] += torch.linalg.vector_norm(gradient).float().square()
        network_optimizer.clip_values([gradient])
        if network_optimizer.largest_norm is not None:
            gradient.mul_((network_optimizer.largest_norm / (self._norms[number] + CLIP_EPSILON)).clamp(max=1.0))
        parameter.grad = gradient  # the only one that the optimizer sees, so that its step moves this parameter alone
        try:
            network_optimizer.optimizer.step()
        except Failure as failure:
            # A gradient that is not finite makes the norm so, too: the vote on that says what becomes of the step.
            if failure.outcome.code is not Exit.DIVERGED:
                raise
        parameter.grad = None
