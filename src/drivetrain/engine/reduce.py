"""Gradients summed over processes while backward still runs.

torch's DDP is not used: it lays its buckets out anew after the first backward pass, and with three or more processes
the order in which gloo or NCCL adds a number depends on its place in the bucket. A resumed run, whose first step would
use the first layout again, would then differ from one that was never stopped. Here the layout is fixed for ever. It
also lets a task call any method of a network, any number of times, and a rank may have no sample at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 25 << 20
_ALIGNMENT = 64  # bytes: each gradient starts on a cache line, as a tensor of its own would


class Bucket:
    """Neighbouring gradients in one flat buffer, summed by one collective."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first = parameters[0]
        step = _ALIGNMENT // first.element_size()
        starts, length = [], 0
        for parameter in parameters:
            starts.append(length)
            length += -(-parameter.numel() // step) * step
        self.flat = torch.zeros(length, dtype=first.dtype, device=first.device)
        self.parameters = parameters
        self.views = [
            self.flat[start : start + p.numel()].view_as(p) for start, p in zip(starts, parameters, strict=True)
        ]
        self.missing = len(parameters)

    def reset(self) -> None:
        """Zero the buffer and make it the parameters' gradients."""
        self.flat.zero_()
        self.missing = len(self.parameters)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


class Reducer:
    """Sums the gradients of some parameters over the processes of a group, bucket after bucket.

    Buckets follow the reverse order of the parameters, which is about the order in which backward fills them. They are
    sent in that order on every rank, whatever order they fill up in, since collectives are matched by order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, limit: int = BUCKET_BYTES) -> None:
        self._group = group
        self._buckets = [Bucket(chunk) for chunk in _chunks(list(parameters)[::-1], limit)]
        self.armed = False
        self._next = 0
        self._works: list[dist.Work] = []
        self._scalars = torch.empty(0)
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def reset(self) -> None:
        """Before the first micro-batch: gradients are zero."""
        self._next = 0
        for bucket in self._buckets:
            bucket.reset()

    def arm(self, scalars: Tensor) -> None:
        """Before the last backward: send the scalars, and from now on every bucket as it fills up."""
        self.armed = True
        self._scalars = scalars
        self._send(scalars)

    def finish(self) -> Tensor:
        """After the last backward: send what is left, wait, and return the summed scalars.

        A parameter that no loss reached adds zero.
        """
        self.armed = False
        for bucket in self._buckets[self._next :]:
            self._send(bucket.flat)
        self._next = len(self._buckets)
        for work in self._works:
            work.wait()
        self._works.clear()
        return self._scalars

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def filled(_: Tensor) -> None:
            if not self.armed:
                return
            bucket.missing -= 1
            while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._send(self._buckets[self._next].flat)
                self._next += 1

        return filled

    def _send(self, tensor: Tensor) -> None:
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)


def _chunks(parameters: list[nn.Parameter], limit: int) -> Iterable[list[nn.Parameter]]:
    """Runs of one dtype and device, each of at most `limit` bytes (or a single parameter)."""
    for _, run in groupby(parameters, key=lambda p: (p.dtype, p.device)):
        chunk: list[nn.Parameter] = []
        size = 0
        for parameter in run:
            if chunk and size + parameter.nbytes > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(parameter)
            size += parameter.nbytes
        yield chunk
