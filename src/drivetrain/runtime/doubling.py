"""Sums over any number of ranks in as few messages, one after the other, as doubling allows: log2 of the ranks.

A ring, as gloo's all-reduce, takes twice as many as there are ranks, each of which waits for the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

Combine = Callable[..., object]
"""As `torch.add(one, other, out=into)`: associative and commutative, on these numbers to the bit."""


class Exchange(NamedTuple):
    """A message to one rank and a message from another. Who goes on from it has seen both through."""

    to: int
    source: int
    sent: Tensor
    received: Tensor


def exchanges(row: Tensor, rank: int, world: int, combine: Combine = torch.add) -> Iterator[Exchange]:
    """Make of `row` what the rows of all ranks come to, in ceil(log2(world)) exchanges: one at each yield.

    Before the exchange over a distance, a power of two, a rank has a window, what the rows of as many ranks as that
    come to, from its own on; and a tail, the same of `world` modulo the distance ranks. The rank at that distance has
    what follows right behind (as Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport
    message-passing systems", gather rows).
    """
    # Both travel at once: another message takes longer than more data.
    sent, received = row.new_zeros(2, *row.shape), row.new_empty(2, *row.shape)
    window, tail = sent
    window.copy_(row)
    distance, ranks_in_tail = 1, 0
    while distance < world:
        yield Exchange((rank - distance) % world, (rank + distance) % world, sent, received)
        if world & distance:
            # Of no ranks the tail is nothing, and not zero: what is combined may be the larger one.
            if ranks_in_tail:
                combine(window, received[1], out=tail)
            else:
                tail.copy_(window)
            ranks_in_tail += distance
        combine(window, received[0], out=window)
        distance *= 2
    row.copy_(tail if ranks_in_tail else window)


def start(exchange: Exchange, group: Any, tag: int) -> list[dist.Work]:
    """Both messages of an exchange, under way. `group` is one of torch's processes; who uses a `tag` in it uses it for
    one row after the other."""
    return [
        dist.isend(exchange.sent, group=group, group_dst=exchange.to, tag=tag),
        dist.irecv(exchange.received, group=group, group_src=exchange.source, tag=tag),
    ]  # type: ignore[list-item] - None only where a process is none of the group's
