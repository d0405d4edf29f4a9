"""Gradients summed over processes while backward still runs.

torch's DDP is not used: it lays its buckets out anew after the first backward pass, and with three or more processes
the order in which gloo or NCCL adds a number depends on its place in the bucket. A resumed run, whose first step would
use the first layout again, would then differ from one that was never stopped. Here the layout is fixed for ever. It
also lets a task call any method of a network, any number of times, and a rank may have no sample at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.step_result import Sums

BUCKET_BYTES = 25 << 20
T = TypeVar("T", bound=Tensor)
_ALIGNMENT = 64  # bytes: each gradient starts on a cache line, as a tensor of its own would


class Flat(NamedTuple):
    """One tensor, and views of it in the shapes of some parameters."""

    whole: Tensor
    views: list[Tensor]


class Bucket:
    """Neighbouring gradients in one flat buffer, which travels as one message."""

    def __init__(self, parameters: list[nn.Parameter], shares: int = 1) -> None:
        """The buffer can be cut into `shares` equal parts that begin on cache lines (a power of two)."""
        step = _ALIGNMENT // gradient_type(parameters[0]).itemsize
        self._starts, length = [], 0
        for parameter in parameters:
            self._starts.append(length)
            length += -(-parameter.numel() // step) * step
        # Padded by zeros, which every rank has alike: a sum leaves them zero.
        self._length = -(-length // (step * shares)) * step * shares
        self.parameters = parameters
        self.missing = len(parameters)
        self.flat = self.make()

    def make(self) -> Flat:
        """Another buffer of this layout."""
        first = self.parameters[0]
        whole = torch.zeros(self._length, dtype=gradient_type(first), device=first.device)
        views = []
        for start, parameter in zip(self._starts, self.parameters, strict=True):
            views.append(whole[start : start + parameter.numel()].view_as(parameter))
        return Flat(whole, views)

    def reset(self) -> None:
        """Zero the buffer and make it the parameters' gradients."""
        self.flat.whole.zero_()
        self.missing = len(self.parameters)
        # Backward adds into a gradient that is there, in place: what it makes lies ready to be sent.
        for parameter, view in zip(self.parameters, self.flat.views, strict=True):
            parameter.grad = view


def gradient_type(parameter: nn.Parameter) -> torch.dtype:
    """Of a parameter's gradients: its own, or fp32 for one that is kept in bf16."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


class BucketReduction:
    """A reduction (see `engine.reduction`) that sends gradients bucket after bucket; how, says who inherits it.

    Buckets follow the reverse order of the parameters, which is about the order in which backward fills them. They are
    handed on in that order on every rank, whatever order they fill up in, since messages are matched by order.
    """

    in_backward = False

    def __init__(self, parameters: Iterable[nn.Parameter], limit: int, shares: int = 1) -> None:
        self.buckets = [Bucket(chunk, shares) for chunk in chunks(list(parameters)[::-1], limit)]
        self._armed = False
        self._next = 0
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def reset(self) -> None:
        """Before the first micro-batch: gradients are zero."""
        self._next = 0
        for bucket in self.buckets:
            bucket.reset()

    def enter(self, lane: int, sums: Sums) -> None:
        """A micro-batch of this lane comes next; `sums` hold what was before it."""

    def arm(self, sums: Sums) -> None:
        """Before the last backward, whose losses are in `sums` already: hand on every bucket as it fills up."""
        self._armed = True

    def finish(self, sums: Sums) -> None:
        """After the last backward: gradients and `sums` are those of all ranks. What no loss reached adds zero."""
        raise NotImplementedError

    def measure(self) -> Sequence[Tensor]:
        """Gradients lie here whole."""
        return ()

    def _full(self, bucket: Bucket) -> None:
        """Nothing more comes to this bucket."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Hand on the buckets that backward did not fill."""
        self._armed = False  # a backward pass that only looks, such as a check, sends nothing
        for bucket in self.buckets[self._next :]:
            self._full(bucket)
        self._next = len(self.buckets)

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def filled(_: Tensor) -> None:
            if not self._armed:  # another micro-batch will add to it
                return
            bucket.missing -= 1
            # A bucket that is full before an earlier one waits for that one.
            while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
                self._full(self.buckets[self._next])
                self._next += 1

        return filled


class Reducer(BucketReduction):
    """Sums over the processes of a group by its own collectives; None: there is one process."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None, limit: int = BUCKET_BYTES
    ) -> None:
        super().__init__(parameters, limit)
        self._group = group
        self._works: list[dist.Work] = []
        self._scalars = torch.empty(0)

    def arm(self, sums: Sums) -> None:
        """The losses go first, since they are there before the gradients."""
        super().arm(sums)
        self._scalars = sums.pack()
        self._send(self._scalars)

    def finish(self, sums: Sums) -> None:
        """Wait for all of them."""
        if not self._armed:  # after a probe; or no sample for this rank in a ragged last step: it adds zeros
            self.arm(sums)
        self._rest()
        self._wait()
        sums.unpack(self._scalars)

    def _wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()

    def _full(self, bucket: Bucket) -> None:
        self._send(bucket.flat.whole)

    def _send(self, tensor: Tensor) -> None:
        if self._group is None:
            return
        # Sums and not means: losses were divided by global counts before backward.
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)


def chunks(tensors: list[T], limit: int) -> Iterable[list[T]]:
    """Runs of one dtype and device, each of at most `limit` bytes (or a single tensor)."""
    for _, run in groupby(tensors, key=lambda tensor: (tensor.dtype, tensor.device)):
        chunk: list[T] = []
        size = 0
        for tensor in run:
            if chunk and size + tensor.nbytes > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(tensor)
            size += tensor.nbytes
        yield chunk
