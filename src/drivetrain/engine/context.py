"""Positions of samples shared out over ranks (`parallel.context`): which are here, and how they meet those elsewhere.

Keys and values of all positions are gathered, layer by layer, by those who have some of the queries. Of 2 x ranks equal
stretches each rank has one and its mirror image from behind, so that under a causal mask all have as much to compute
(Llama 3, arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Positions:
    """Which positions of a sample a network is given, and how it sees the others. One object serves a whole network.

    Where nothing is shared out, and wherever a network is called with whole samples, all are here: the same calls give
    what they give in one process.
    """

    def __init__(
        self,
        index: int = 0,
        ranks: int = 1,
        group: ProcessGroup | None = None,
        sliced: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """This rank is the `index`-th of the `group`; `sliced` says what of a batch is cut, along which dimension."""
        self.ranks = ranks
        self.group = group
        self.sliced = sliced
        self.stretches = index, 2 * ranks - 1 - index
        """Which of the 2 x ranks stretches of a sample are here."""
        self.on = False
        """Whether what is given now are the positions here, and not whole samples."""

    @contextmanager
    def given(self) -> Iterator[None]:
        """While entered, networks are given the positions here."""
        self.on = self.ranks > 1
        try:
            yield
        finally:
            self.on = False

    def here(self, length: int, device: torch.device | None = None) -> Tensor:
        """The places in their sample of `length` positions that are here: int64 [length]."""
        places = torch.arange(length, device=device)
        if not self.on:
            return places
        half = length // 2
        front, back = [stretch * half for stretch in self.stretches]
        return places + torch.where(places < half, front, back - half)

    def total(self, length: int) -> int:
        """How many there are in all, where so many are here."""
        return length * self.ranks if self.on else length

    def added(self, x: Tensor) -> Tensor:
        """The sum over all ranks that have positions of the same samples; it has no gradient."""
        if not self.on:
            return x
        import torch.distributed._functional_collectives as collectives

        assert self.group is not None, "positions are shared out over some ranks"
        return collectives.all_reduce(x, "sum", self.group)

    def causal(self, length: int, device: torch.device | None = None) -> Tensor:
        """Whom each of `length` positions here sees among all: bool [length, all], itself and those before it."""
        every = torch.arange(self.total(length), device=device)
        return self.here(length, device).unsqueeze(1) >= every

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        """All positions, in their order, of which `x` has those here along `dim`; gradients go back to their ranks,
        summed."""
        return self._in_order(_all_gather(x, self.group), dim) if self.on else x

    def masks(self, seen: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """What `attend` adds to scores, once for all layers: of a causal mask `seen` (bool [..., here, all]) the rows
        of each stretch, up to the last position that it can see; minus infinity where it does not."""
        if not self.on:
            return (seen,)
        half, found = seen.shape[-2] // 2, []
        for rows, stretch in zip(seen.chunk(2, dim=-2), self.stretches, strict=True):
            rows = rows[..., : (stretch + 1) * half]
            found.append(torch.zeros_like(rows, dtype=dtype).masked_fill(~rows, -torch.inf))
        return tuple(found)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, masks: tuple[Tensor, ...] = (), *, grouped: bool = False
    ) -> Tensor:
        """Causal attention of the positions here with all: [samples, heads, here, size] to the query's shape.

        `masks` are those that `masks` makes; without, each sees itself and all before it. `grouped`: there are fewer
        key and value heads, which query heads share.
        """
        if not self.on:
            mask = masks[0] if masks else None
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
            )
        # In one message: of two that are under way in one group, gloo was seen to end one and never say so.
        key, value = self.gathered(torch.stack((key, value)), 3).unbind()
        masks = masks or self.masks(self.causal(query.shape[2], query.device), query.dtype)
        mixed = []
        for part, mask in zip(query.chunk(2, dim=2), masks, strict=True):
            # Of what lies behind a stretch nothing is computed: that is what makes the ranks' work alike.
            end = mask.shape[-1]
            seen = key[:, :, :end], value[:, :, :end]
            mixed.append(F.scaled_dot_product_attention(part, *seen, attn_mask=mask, enable_gqa=grouped))
        return torch.cat(mixed, dim=2)

    def cut(self, batch: Any) -> Any:
        """A batch with the positions here of what is cut by them. Raises Failure(78) where that is not there, or
        cannot be cut evenly."""
        if self.ranks == 1:
            return batch
        found = dict(batch) if isinstance(batch, Mapping) else {}
        for name, dim in self.sliced.items():
            whole = found.get(name)
            if not isinstance(whole, Tensor) or whole.ndim <= dim:
                cause = f"parallel.context: a batch has no tensor {name!r} with positions along dimension {dim}"
                raise Failure(Exit.BAD_RECIPE, cause, "name what collate gives in ParallelPlan.sliced")
            if whole.shape[dim] % (2 * self.ranks):
                cause = f"parallel.context: {name!r} {list(whole.shape)} is not cut into {2 * self.ranks} equal parts"
                raise Failure(Exit.BAD_RECIPE, cause, f"collate to a multiple of {2 * self.ranks} positions")
            stretches = whole.chunk(2 * self.ranks, dim)
            found[name] = torch.cat([stretches[stretch] for stretch in self.stretches], dim)
        return found

    def _in_order(self, gathered: Tensor, dim: int) -> Tensor:
        """All stretches as they lie in a sample, of those of one rank after the other along the first dimension."""
        fronts, backs = [], []
        for part in gathered.chunk(self.ranks):
            front, back = part.chunk(2, dim)
            fronts.append(front)
            backs.append(back)
        return torch.cat([*fronts, *reversed(backs)], dim)


WHOLE = Positions()
"""All of a sample."""


def positions_of(networks: Iterable[nn.Module]) -> Positions:
    """How the positions of samples are shared out: for one network, or for none."""
    for network in networks:
        found = getattr(network, "positions", None)
        if isinstance(found, Positions) and found.ranks > 1:
            return found
    return WHOLE


def _all_gather(x: Tensor, group: ProcessGroup | None) -> Tensor:
    """What all ranks have, one after the other along the first dimension; its gradient is summed over them."""
    import torch.distributed._functional_collectives as collectives  # it takes a while, and replicas need none

    # torch 2.13 has renamed it, and warns of the old name.
    gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
    assert group is not None, "positions are shared out over some ranks"
    return gather(x.contiguous(), 0, group)
