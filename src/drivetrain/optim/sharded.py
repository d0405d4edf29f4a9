"""The rows of a parameter that this rank holds: all of them, or those of a DTensor's shard, as `fully_shard` makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, zeros

from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class RowShard:
    """Rows `here` of `total`; the others lie with the other ranks of `group`. Without a group all are here."""

    here: slice
    total: int
    group: dist.ProcessGroup | None = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks of the group."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def whole(self, part: Tensor) -> Tensor:
        """All rows, (total, n), from those that are here; the same on every rank of the group."""
        if self.group is None:
            return part
        # A sum bears shards of unequal sizes, even empty ones; each number is added to zeros only, so none is rounded.
        everything = part.new_zeros(self.total, *part.shape[1:])
        everything[self.here] = part
        return self.sum(everything)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor


def shared_like(parameter: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros of this shape, whose rows lie where the parameter's do: a DTensor, which torch's tools can reshard."""
    assert isinstance(parameter, DTensor)
    return zeros(shape, dtype=dtype, device_mesh=parameter.device_mesh, placements=parameter.placements)


def rows_of(parameter: nn.Parameter) -> RowShard:
    """Raises Failure(78) for a DTensor that is sharded otherwise than by rows along one dimension of its mesh."""
    total = parameter.shape[0] if parameter.ndim else 1
    if not isinstance(parameter, DTensor):
        return RowShard(slice(None), total)
    shards = [dim for dim, placement in enumerate(parameter.placements) if placement != Replicate()]
    if not shards:
        return RowShard(slice(None), total)
    if len(shards) > 1 or parameter.placements[shards[0]] != Shard(0):
        raise Failure(
            Exit.BAD_RECIPE,
            f"optimizer: galore takes parameters that are sharded by rows, this one is {parameter.placements}",
            "shard along dimension 0 of one dimension of the mesh only",
        )
    mesh, dim = parameter.device_mesh, shards[0]
    size, start = Shard.local_shard_size_and_offset(total, mesh.size(dim), mesh.get_local_rank(dim))
    return RowShard(slice(start, start + size), total, mesh.get_group(dim))
