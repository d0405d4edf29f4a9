"""Gradients on a mesh: torch's engines sum them where tensors are cut, and what they leave open is summed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from drivetrain.checkpoint.boxes import local_of
from drivetrain.engine.layout import roots_of, shards_of
from drivetrain.engine.placement import Held, Placement
from drivetrain.engine.reduce import gradient_type
from drivetrain.engine.step_result import Sums
from drivetrain.engine.wide_units import WideUnits


class Sharded:
    """A reduction (see `engine.reduction`) for any mesh but one of replicas.

    Micro-batches add up where they are; FSDP sums each unit once, in the last backward pass, or in each of them. Every
    rank has as many micro-batches as the others. One message carries the losses and the squares of all gradients that
    are counted here.
    """

    in_backward = False

    def __init__(
        self,
        names: Sequence[str],
        networks: Mapping[str, nn.Module],
        placement: Placement,
        wide_units: WideUnits | None = None,
        *,
        in_parts: bool = False,
    ) -> None:
        """`names` are the networks that move, of all `networks`; `wide_units` those whose weights are bf16. `in_parts`:
        FSDP sums each unit over ranks in every backward pass, so that micro-batches add up in the parts that are here.
        """
        self._norms: Sequence[Tensor] = ()
        self._placement = placement
        self._held: list[list[Held]] = []
        for name in names:
            prefix = f"{name}/"
            own = [held for path, held in placement.held.items() if path.startswith(prefix)]
            self._held.append([held for held in own if held.parameter.requires_grad])
        self._all = [held for of_network in self._held for held in of_network]
        self._armed, self._in_parts = True, in_parts
        self._roots = roots_of(networks.values())
        # Found once: a walk over all modules takes longer than what is done with those that are sharded.
        self._units = [unit for network in networks.values() for unit in shards_of(network)]
        self._wide = wide_units
        self._tied: dict[tuple[int, ...], list[Held]] = {}
        for held in self._all:
            if len(held.places) > 1:
                self._tied.setdefault(held.places, []).append(held)
        # In one order on all ranks, since each pair of stages meets for the first time here.
        self._ties = {places: placement.mesh.stages(places) for places in sorted(self._tied)}

    def reset(self) -> None:
        """Before the first micro-batch: there are no gradients."""
        for held in self._all:
            held.parameter.grad = held.here.grad = None
        if self._wide:
            self._wide.reset()
        self._sum_in_backward(False)

    def enter(self, lane: int, sums: Sums) -> None:
        """Backward adds up micro-batches by itself."""
        self._armed = False

    def arm(self, sums: Sums) -> None:
        """The last backward pass sums over ranks, unit by unit."""
        if self._wide:
            self._wide.arm()
        self._sum_in_backward(True)
        self._armed = True

    def finish(self, sums: Sums) -> None:
        """After the last backward pass: gradients are plain tensors of what is here, `sums` those of all ranks."""
        assert self._armed, "gradients of units are summed in the last backward pass, and now it is too late"
        self._settle()
        if self._wide:
            self._wide.finish()
        for unit in self._units:  # a root stays whole after its passes, and would not see its weights change
            unit.reshard()
        packed = sums.pack()
        own = torch.stack([self._square(of_network, packed) for of_network in self._held])
        if not self._placement.mesh.tells_losses:  # another rank has computed the same ones
            packed.zero_()
        everything = torch.cat([packed, own])
        dist.all_reduce(everything, group=self._placement.group.main)
        sums.unpack(everything[: len(packed)])
        self._norms = list(everything[len(packed) :].sqrt().unbind())

    def measure(self) -> Sequence[Tensor]:
        """Those of whole networks, which came with the losses."""
        return self._norms

    def _sum_in_backward(self, last: bool) -> None:
        for unit in self._units:
            unit.set_requires_gradient_sync(last or self._in_parts, recurse=False)
            unit.set_requires_all_reduce(last, recurse=False)
        for root in self._roots:
            root.set_is_last_backward(last)

    def _settle(self) -> None:
        """Make every gradient what its parameter's part is: torch leaves some as sums to be made, and some whole."""
        open_: list[Tensor] = []
        self._sum_numbers()
        for held in self._all:
            gradient = self._wide.gradient(held.parameter) if self._wide else held.parameter.grad
            if gradient is None:
                # No loss reached it, on any rank.
                held.here.grad = torch.zeros_like(held.here, dtype=gradient_type(held.here))
                continue
            if isinstance(gradient, DTensor):
                assert isinstance(held.parameter, DTensor)
                if gradient.placements == (Partial(),) and held.parameter.placements == (Replicate(),):
                    open_.append(local_of(gradient))
                elif gradient.placements != held.parameter.placements:
                    gradient = gradient.redistribute(placements=held.parameter.placements)
            held.parameter.grad = None  # first: where all is here, both are one
            held.here.grad = local_of(gradient)
        if open_:  # norms of split layers, of which each rank has seen some positions: one message for all
            flat = torch.cat([gradient.flatten() for gradient in open_])
            dist.all_reduce(flat, group=self._placement.mesh.devices["tensor"].get_group())
            for gradient, part in zip(open_, flat.split([one.numel() for one in open_]), strict=True):
                gradient.copy_(part.view_as(gradient))
        self._sum_tied()

    def _sum_tied(self) -> None:
        """Sum the gradients of weights that several stages hold: each of them moves its own by the same."""
        for places, group in self._ties.items():
            gradients = [held.here.grad for held in self._tied[places] if held.here.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=group.main)
            for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _sum_numbers(self) -> None:
        """Sum what FSDP leaves alone: parameters that have no rows. Every rank calls it, whatever losses have reached
        on it."""
        if self._placement.mesh.sizes.summed == 1:
            return
        alone = [held.parameter for held in self._all if not held.parameter.dim()]
        for parameter in alone:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=gradient_type(parameter))
        numbers = [parameter.grad for parameter in alone if parameter.grad is not None]
        if numbers:  # one message for all
            flat = torch.stack(numbers)
            dist.all_reduce(flat, group=self._placement.mesh.summed.main)
            torch._foreach_copy_(numbers, list(flat.unbind()))

    def _square(self, of_network: Sequence[Held], like: Tensor) -> Tensor:
        """The squared norm (0-d, as `like`) of a network's gradients that this rank counts."""
        rank, counted = self._placement.group.rank, []
        for held in of_network:
            if held.holders[0] == rank and held.here.grad is not None:
                counted.append(held.here.grad)
        if not counted:
            return like.new_zeros(())
        return torch.stack(torch._foreach_norm(counted, 2.0)).to(like.dtype).square().sum()
