"""What this rank holds of a parameter, for optimizers that have to know: those that look at rows, or at all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Part:
    """A box of a parameter, of which `here` is what moves. The ranks of `group` hold all of it between them, each
    number once; without a group all is here."""

    here: nn.Parameter
    box: Box
    group: dist.ProcessGroup | None = None

    @classmethod
    def of_whole(cls, parameter: nn.Parameter) -> Part:
        """All of a parameter."""
        return cls(parameter, Box.of_whole(parameter.shape))

    @property
    def ranks(self) -> int:
        """How many hold a part."""
        return self.group.size() if self.group is not None else 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks of the group, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gathered(self, part: Tensor) -> Tensor:
        """All of a tensor of the parameter's shape, of which this rank has what lies in the box; the same bits on every
        rank of the group."""
        if self.group is None:
            return part
        # A sum bears parts of unequal sizes, even empty ones; each number is added to zeros only, so none is rounded.
        everything = part.new_zeros(self.box.whole)
        everything[self.box.slices] = part
        return self.sum(everything)

    def rows(self, shape: tuple[int, ...]) -> Box:
        """What goes with this part of a tensor of this shape, which has as many rows for each of the parameter's."""
        if self.group is None:
            return Box.of_whole(shape)
        total, rows = self.box.whole[0], shape[0]
        begin, end = self.box.offset[0], self.box.offset[0] + self.box.shape[0]
        first, last = begin * rows // total, end * rows // total
        return Box(shape, (first, *[0] * (len(shape) - 1)), (last - first, *shape[1:]))


Parts = Mapping[nn.Parameter, Part]
"""By what moves. Of a parameter that is not there all is here."""


def require_rows(kind: str, name: str, part: Part) -> None:
    """Raises Failure(78) for a part that is not some of the rows."""
    if part.box.shape[1:] != part.box.whole[1:]:
        cause = f"optimizer: {kind} takes parts of whole rows, and of {name} {part.box.whole} each process has columns"
        raise Failure(Exit.BAD_RECIPE, cause, "shard without tensor, or choose adamw")
