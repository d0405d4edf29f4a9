"""Exact mode: gradients and loss sums in one fixed binary tree over the lanes, whatever the number of processes.

Within a lane they fold from zero, micro-batch after micro-batch. The lanes of a process are added as a binary counter
carries, neighbours first; then processes exchange halves, the nearest rank first. Lanes and processes are powers of
two, so both are levels of the same tree: its leaves are lanes 0 to L - 1. The sum of two numbers does not depend on
their order, so both partners of an exchange come to the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from drivetrain.engine.layers import named_layers
from drivetrain.engine.reduce import Bucket, BucketReduction, Flat
from drivetrain.engine.step_result import SLOTS, Sums, slots
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

BUCKET_BYTES = 4 << 20
"""Less than the reducer has: the halves of one bucket travel one after the other, so several buckets take turns."""


class TreeAccumulator:
    """A binary counter of sums: of n things that are pushed one by one, it holds at most log2(n) + 1.

    Two sums of equally many things are added as soon as both are there, so that 2^k things make a balanced tree.
    """

    def __init__(self, make: Callable[[], Flat]) -> None:
        """`make` gives a buffer; they are used again."""
        self._make = make
        self._held: list[tuple[int, Flat]] = []
        self._free: list[Flat] = []

    def clear(self) -> None:
        """Begin anew; what was summed may be overwritten."""
        self._free += [flat for _, flat in self._held]
        self._held.clear()

    def take(self) -> Flat:
        """A buffer for the next thing, with whatever is in it."""
        if self._free:
            return self._free.pop()
        return self._make()

    def push(self, flat: Flat) -> None:
        """One thing further. Sums are made in the buffer that came last."""
        level = 0
        while self._held and self._held[-1][0] == level:
            earlier = self._held.pop()[1]
            # Into the later one: after the last lane that is the buffer whose views are the parameters' gradients.
            flat.whole.add_(earlier.whole)
            self._free.append(earlier)
            level += 1
        self._held.append((level, flat))

    @property
    def total(self) -> Tensor:
        """The sum of all that was pushed, of which there were a power of two."""
        ((_, flat),) = self._held
        return flat.whole


class LaneTree(BucketReduction):
    """Sums over the lanes of all processes. Each process has `lanes / world` of them, with or without samples.

    It holds log2(lanes / world) + 1 copies of the gradients, and where there are others one more to receive into (half
    a one with more than two processes).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group, lanes: int, limit: int = BUCKET_BYTES) -> None:
        super().__init__(parameters, limit, shares=group.world)
        own, device = lanes // group.world, torch.device("cpu")  # that of tables, where there is nothing else
        if parameters:
            device = parameters[0].device
        self._group = group
        self._first, self._last = group.rank * own, (group.rank + 1) * own - 1
        self._lane = self._first
        self._counters = {bucket: TreeAccumulator(bucket.make) for bucket in self.buckets}
        self._losses = TreeAccumulator(lambda: Flat(slots(device, group.world), []))
        self._spares: dict[int, Tensor] = {}
        self._exchanges: deque[Iterator[None]] = deque()
        self._total = slots(device)

    def reset(self) -> None:
        """Before the first micro-batch of the first lane."""
        self._lane = self._first
        for counter in (self._losses, *self._counters.values()):
            counter.clear()
        self._open()

    def enter(self, lane: int, sums: Sums) -> None:
        """The lanes before this one are complete: they join the tree."""
        while self._lane < lane:  # a lane without samples joins as zeros, so that the tree is the same in every world
            self._add(sums)
            for bucket, counter in self._counters.items():
                counter.push(bucket.flat)
            self._lane += 1
            self._open()

    def arm(self, sums: Sums) -> None:
        """The last lane's buckets join the tree, and go to the other processes, as they fill up."""
        if self._lane == self._last:  # in a ragged last step, lanes without samples may follow
            super().arm(sums)
            self._total = self._add(sums)
            self._exchange(self._total)

    def finish(self, sums: Sums) -> None:
        """Take the last lanes in, and let the exchanges take turns until all are through."""
        if not self._armed:
            self.enter(self._last, sums)
            self.arm(sums)
        self._rest()
        # In turn: while one buffer's message is on its way, another one is added up.
        while self._exchanges:
            exchange = self._exchanges.popleft()
            if next(exchange, _DONE) is not _DONE:
                self._exchanges.append(exchange)
        sums.unpack(self._total[:SLOTS])

    def _open(self) -> None:
        """The gradients of a lane begin at zero."""
        self._next = 0
        for bucket, counter in self._counters.items():
            bucket.flat = counter.take()
            bucket.reset()

    def _add(self, sums: Sums) -> Tensor:
        """The lane's losses are complete; what they and those before them come to."""
        losses = self._losses.take()
        losses.whole[:SLOTS] = sums.take()
        self._losses.push(losses)
        return losses.whole

    def _full(self, bucket: Bucket) -> None:
        self._counters[bucket].push(bucket.flat)
        self._exchange(bucket.flat.whole)

    def _exchange(self, whole: Tensor) -> None:
        """Begin to add up a buffer over processes."""
        if self._group.world > 1:
            # Buffers come here in one order on every rank, and none leaves before `finish`: a tag names one buffer,
            # in later steps too.
            tag = len(self._exchanges)
            at_once = self._group.world == 2 or whole.nbytes <= _AT_ONCE
            if tag not in self._spares:
                received = whole if at_once else whole[: whole.numel() // 2]
                self._spares[tag] = torch.empty_like(received)
            add_up = doubling if at_once else halving
            exchange = add_up(whole, self._spares[tag], self._group, tag)
            next(exchange)  # its first message leaves while backward still runs
            self._exchanges.append(exchange)


_DONE = object()
_AT_ONCE = 256 << 10
"""Bytes up to which another message takes longer than more data."""


def doubling(whole: Tensor, spare: Tensor, group: Group, tag: int) -> Iterator[None]:
    """Sum a buffer over all ranks, in place, by as few messages as can be: each level of the tree exchanges all of it.

    Each yield is a message under way, so that several buffers can take turns. `spare` is as long as the buffer.
    """
    for distance in _distances(group):
        works = _swap(whole, spare, group, distance, tag)
        yield
        _wait(works)
        whole.add_(spare)


def halving(whole: Tensor, spare: Tensor, group: Group, tag: int) -> Iterator[None]:
    """The same sums by as little data as can be, in twice the messages. `spare` has half the buffer's length.

    Recursive halving, the nearest rank first, then doubling back (Thakur, Rabenseifner and Gropp 2005, "Optimization of
    collective communication operations in MPICH").
    """
    part, halves = whole, []
    for distance in _distances(group):
        lower, upper = part.chunk(2)
        # Of two partners one has this bit in its rank: each keeps the half that the other one gives.
        if group.rank & distance:
            part, give = upper, lower
        else:
            part, give = lower, upper
        received = spare[: part.numel()]
        works = _swap(give, received, group, distance, tag)
        yield
        _wait(works)
        part.add_(received)
        halves.append((part, give))
    # All the way back: what each has is summed over all ranks by now, and takes the place of the partner's partial sum.
    for distance, (have, lack) in zip(reversed(_distances(group)), reversed(halves), strict=True):
        works = _swap(have, lack, group, distance, tag)
        yield
        _wait(works)


def _distances(group: Group) -> list[int]:
    """From each rank to its partners, level by level."""
    return [1 << level for level in range(group.world.bit_length() - 1)]


def _swap(sent: Tensor, received: Tensor, group: Group, distance: int, tag: int) -> list[dist.Work]:
    """Exchange tensors with the rank at a distance."""
    peer = group.rank ^ distance
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, peer, group.main, tag),
            dist.P2POp(dist.irecv, received, peer, group.main, tag),
        ]
    )


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def require_lanes_apart(networks: Mapping[str, nn.Module], device: torch.device) -> None:
    """Raises Failure(78) for what makes one lane's numbers depend on which others the process has."""
    if device.type == "mps":
        raise _refused("there are no deterministic kernels on mps", "use another device")
    for name, layer in named_layers(networks):
        synchronized = isinstance(layer, SyncBatchNorm) and layer.training
        running = isinstance(layer, _NormBase) and layer.training and layer.running_mean is not None
        if synchronized or running:
            cause = f"{name} ({type(layer).__name__}) keeps statistics over all lanes that a process has"
            raise _refused(cause, "use a normalization without them (GroupNorm, track_running_stats=False)")


def require_still(changed: str | None) -> None:
    """Raises Failure(78) where a step has `changed` a buffer: each process would have it from its own lanes only."""
    if changed is not None:
        cause = f"a training step changed the buffer {changed}, in each process by its own lanes"
        raise _refused(cause, "change it outside forward passes, or register it with persistent=False if it is scratch")


def refusal(error: RuntimeError, what: str = "exact") -> Failure | None:
    """Failure(78) where torch says that a kernel is not deterministic, as `what` of the recipe asks for; else None."""
    text = str(error)
    if "deterministic" not in text:
        return None
    cause = text.splitlines()[0].partition(", but you set")[0]
    return _refused(cause, "use another operation, or another device", what)


def _refused(cause: str, hint: str, what: str = "exact") -> Failure:
    return Failure(Exit.BAD_RECIPE, f"{what}: {cause}", f"{hint}; or leave `{what}` out (docs/exactness.md)")
