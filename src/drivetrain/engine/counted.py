"""Modules that count what they see: whole numbers, added up over all samples of a step, whoever read them.

Their sums are the same in whatever order they are made, so what follows from them has the same bits on every mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.buffers import Kept
from drivetrain.engine.layers import named_layers
from drivetrain.runtime.group import Group


class Counted(nn.Module):
    """Base of such a module. In training it adds to its buffer `counts` (int64 [size]) within its forward pass; a pass
    that is repeated for its activations, or has no weight, leaves no trace there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.counts = nn.Buffer(torch.zeros(size, dtype=torch.int64), persistent=False)

    def settle(self, total: Tensor) -> None:
        """Take the counts of the whole step, once it is passed back: the same on every rank. What this changes of the
        module's buffers goes back where the step is not made."""

    def told(self, total: Tensor) -> Mapping[str, Sequence[int]]:
        """Counts of several steps, by name, as telemetry tells them."""
        return {"counts": total.tolist()}


class StepCounts:
    """All modules that count, of all networks."""

    def __init__(self, networks: Mapping[str, nn.Module], group: Group) -> None:
        """`group`: the ranks that share out the samples, and their positions."""
        self._group = group
        found = {name: module for name, module in named_layers(networks) if isinstance(module, Counted)}
        self._modules = found
        self._since: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Before the first micro-batch of a step."""
        for module in self._modules.values():
            module.counts.zero_()

    def finish(self) -> list[Kept]:
        """After the last one: sums over ranks in one message, which every module takes. What their buffers were before,
        to put back where the step is not made. Every rank calls it."""
        kept: list[Kept] = []
        if not self._modules:
            return kept
        modules = list(self._modules.values())
        flat = torch.cat([module.counts for module in modules])
        if self._group.world > 1:
            dist.all_reduce(flat, group=self._group.main)
        totals = flat.split([len(module.counts) for module in modules])
        for (name, module), total in zip(self._modules.items(), totals, strict=True):
            for place, buffer in module._buffers.items():
                if buffer is not None:
                    kept.append(Kept(module, place, buffer, buffer.clone()))
            module.settle(total)
            self._since[name] = total + self._since.get(name, 0)
        return kept

    def take(self) -> dict[str, tuple[int, ...]]:
        """What was counted since this was last asked, by module and name."""
        found: dict[str, tuple[int, ...]] = {}
        for name, total in self._since.items():
            for what, counts in self._modules[name].told(total).items():
                found[f"{name}.{what}"] = tuple(counts)
        self._since.clear()
        return found
