"""The networks' buffers, such as running statistics: what training changes without an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.layers import named_layers
from drivetrain.runtime.group import Group


class Kept(NamedTuple):
    """A module's buffer as it was: the tensor, and a copy of what it held."""

    module: nn.Module
    name: str
    buffer: Tensor
    before: Tensor


class Buffers:
    """Looked up by module and name each time, since modules may put new tensors in their places; compared by their
    values, since not every kernel counts what it changes in place (batch normalization does not).

    Which of them a step will change cannot be known: a network may be used for the first time at any step. So all that
    a commit keeps are shared, as DDP does; those that none keeps can have no meaning for the next step.
    """

    def __init__(self, networks: Mapping[str, nn.Module], group: Group, *, still: bool = False) -> None:
        """`still`: it is asked in every step whether one was changed, also where the process is alone."""
        self._group = group
        self._networks = networks
        self._still = still
        self._all: list[tuple[nn.Module, str]] = []
        self._kept: list[tuple[nn.Module, str]] = []
        for network in networks.values():
            for module in network.modules():
                for name in module._buffers:
                    self._all.append((module, name))
                    if name not in module._non_persistent_buffers_set:
                        self._kept.append((module, name))
        self._boundary: list[Kept] = []

    def begin(self) -> None:
        """A step begins: every rank has rank 0's, which are the ones that commits keep. It is done before every step,
        so that a commit in between changes nothing."""
        if (self._group.world > 1 or self._still) and self._kept:
            self.share()
            self._boundary = _copies(self._kept)  # after the exchange: what `changed` compares with is rank 0's

    def share(self) -> None:
        """Give every rank rank 0's."""
        if self._group.world > 1:
            self._talk(self._from_first)

    @contextmanager
    def of_rank_before(self) -> Iterator[None]:
        """While entered, this rank has those of the rank before it, to change them as it likes. Every rank enters."""
        with self.put_back():
            if self._group.world > 1:
                self._talk(self._from_rank_before)
            yield

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Whatever is done to them while this is entered, afterwards all are as they were."""
        kept = self.keep()
        empty = [(module, name) for module, name in self._all if module._buffers[name] is None]
        try:
            yield
        finally:
            # Place and values both: what ran in between may have put another tensor there.
            for one in kept:
                one.module._buffers[one.name] = one.buffer.copy_(one.before)
            for module, name in empty:
                module._buffers[name] = None

    def _talk(self, exchanged: Callable[[Tensor], Tensor]) -> None:
        """Take over what comes in exchange for all that commits keep, a message for each type."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for module, name in self._kept:
            buffer = module._buffers[name]
            if buffer is not None:
                by_type.setdefault(buffer.dtype, []).append(buffer)
        # Messages are matched by their order, so the types have one that is the same on every rank.
        for dtype in sorted(by_type, key=str):
            same = by_type[dtype]
            flat = exchanged(torch.cat([buffer.reshape(-1) for buffer in same]))
            parts = flat.split([buffer.numel() for buffer in same])
            for buffer, part in zip(same, parts, strict=True):
                buffer.copy_(part.view_as(buffer))

    def _from_first(self, flat: Tensor) -> Tensor:
        dist.broadcast(flat, src=0, group=self._group.main)
        return flat

    def _from_rank_before(self, flat: Tensor) -> Tensor:
        group, received = self._group, torch.empty_like(flat)
        give = dist.P2POp(dist.isend, flat, (group.rank + 1) % group.world, group.main)
        take = dist.P2POp(dist.irecv, received, (group.rank - 1) % group.world, group.main)
        for work in dist.batch_isend_irecv([give, take]):
            work.wait()
        return received

    @property
    def changed(self) -> bool:
        """Whether this rank's are other than rank 0's were when the step began."""
        return self.first_changed is not None

    @property
    def first_changed(self) -> str | None:
        """The name (with its network) of one that is other than when the step began."""
        for kept in self._boundary:
            if not torch.equal(kept.before, _live(kept)):
                return self._name_of(kept)
        return None

    def _name_of(self, kept: Kept) -> str:
        for name, layer in named_layers(self._networks):
            if layer is kept.module:
                return f"{name}.{kept.name}"
        raise LookupError(f"the module of the buffer {kept.name} is in no network")

    def keep(self) -> list[Kept]:
        """Copies of all, to put back."""
        return _copies(self._all)


def undo(kept: Sequence[Kept], made: Tensor) -> None:
    """Put buffers back as they were, unless the step is `made` (bool, 0-d); nothing waits for the device."""
    for one in kept:
        one.buffer.copy_(torch.where(made, _live(one), one.before))
        one.module._buffers[one.name] = one.buffer


def _copies(places: Sequence[tuple[nn.Module, str]]) -> list[Kept]:
    copies = []
    for module, name in places:
        buffer = module._buffers[name]
        if buffer is not None:
            copies.append(Kept(module, name, buffer, buffer.clone()))
    return copies


def _live(kept: Kept) -> Tensor:
    buffer = kept.module._buffers[kept.name]
    return kept.before if buffer is None else buffer
