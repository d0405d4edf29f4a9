"""A network on stages, called as a whole where nothing is learned: in evaluations, and before a schedule is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.stages import Chunk, Stages
from drivetrain.runtime.mesh import Mesh
from drivetrain.runtime.mistakes import misused
from drivetrain.spec.exits import Exit, Failure

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
_MOST_DIMENSIONS = 8
_HEADER = 3 + 2 * _MOST_DIMENSIONS
"""Numbers that tell of a tensor: its type, along which dimension `tensor` cuts it, how many it has, how long each of
them is here, and how long in all."""


def call_whole(network: nn.Module, stages: Stages, mesh: Mesh) -> Relay:
    """Make a network that was cut callable in place: every rank calls it with the same inputs, and has its output."""
    relay = Relay(stages, mesh)
    network.forward = relay
    return relay


class Relay:
    """Passes what each stage makes on to the next one, and the last one's output to all. Nothing is pickled."""

    def __init__(self, stages: Stages, mesh: Mesh) -> None:
        self._stages = stages
        self._mesh = mesh
        self._group = mesh.across(("pipeline",))
        self._chunks = {chunk.number: chunk for chunk in stages.chunks}

    def __call__(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """The network's output."""
        if torch.is_grad_enabled():
            cause = "parallel.pipeline: a network on stages was called where gradients are asked for"
            raise misused(cause, "move it by step.minimize and the task's own loss, of inputs and loss_from")
        return self._from_last(self.passed(lambda chunk, received: chunk(inputs, received, **kwargs)))

    def passed(self, run: Callable[[Chunk, Tensor | None], Tensor]) -> Tensor | None:
        """What the last stage has made, where that is here: each one was `run` with what the one before has made."""
        places, here, x = self._stages.places, self._stages.here, None
        for number, place in enumerate(places):
            if number and places[number - 1] != place:
                if place == here:
                    x = self._received(places[number - 1])
                elif places[number - 1] == here:
                    assert x is not None
                    self._send(x, place)
            if place == here:
                x = run(self._chunks[number], x)
        return x if here == self._stages.last else None

    def _rank(self, place: int) -> int:
        return dist.get_global_rank(self._group, place)

    def _send(self, x: Tensor, place: int) -> None:
        dist.send(self._told(x), dst=self._rank(place), group=self._group)
        dist.send(x.contiguous(), dst=self._rank(place), group=self._group)

    def _received(self, place: int) -> Tensor:
        header = self._header()
        dist.recv(header, src=self._rank(place), group=self._group)
        x = self._room(header)
        dist.recv(x, src=self._rank(place), group=self._group)
        return x

    def _from_last(self, x: Tensor | None) -> Tensor:
        """The output, on every rank: where logits are cut along `tensor`, as a DTensor of parts."""
        from drivetrain.checkpoint.boxes import local_of

        src = self._rank(self._stages.last)
        if self._stages.here == self._stages.last:
            assert x is not None
            dist.broadcast(self._told(x), src=src, group=self._group)
            dist.broadcast(local_of(x).contiguous(), src=src, group=self._group)
            return x
        header = self._header()
        dist.broadcast(header, src=src, group=self._group)
        local = self._room(header)
        dist.broadcast(local, src=src, group=self._group)
        _, cut, dimensions, *shapes = header.tolist()
        if cut < 0:
            return local
        from torch.distributed.tensor import DTensor, Shard

        whole = torch.empty(shapes[_MOST_DIMENSIONS : _MOST_DIMENSIONS + dimensions], device="meta")
        devices, placed = self._mesh.devices["tensor"], (Shard(cut),)
        # With its shape: parts need not be as long as each other.
        return DTensor.from_local(local, devices, placed, run_check=False, shape=whole.shape, stride=whole.stride())

    def _header(self) -> Tensor:
        return torch.zeros(_HEADER, dtype=torch.int64, device=self._mesh.device)

    def _told(self, x: Tensor) -> Tensor:
        """What a stage that gets this has to know of it."""
        from torch.distributed.tensor import DTensor, Shard

        cut, local = -1, x
        if isinstance(x, DTensor):
            (placement,) = x.placements
            if not isinstance(placement, Shard):
                cause = f"parallel.pipeline: a stage makes a tensor that is {placement} along tensor"
                raise Failure(Exit.BAD_RECIPE, cause, "use parallel.sequence: true, or tensor without pipeline")
            cut, local = placement.dim % x.ndim, x.to_local()
        if local.dtype not in _TYPES or local.ndim > _MOST_DIMENSIONS:
            cause = f"parallel.pipeline: a stage makes a tensor {local.dtype} of {local.ndim} dimensions"
            raise Failure(Exit.BAD_RECIPE, cause, f"pass on one of {_TYPES}")
        header = self._header()
        spare = [0] * (_MOST_DIMENSIONS - local.ndim)
        numbers = [_TYPES.index(local.dtype), cut, local.ndim, *local.shape, *spare, *x.shape, *spare]
        return header.copy_(torch.tensor(numbers))

    def _room(self, header: Tensor) -> Tensor:
        """Memory for what a header tells of."""
        kind, _, dimensions, *shape = header.tolist()
        return torch.empty(shape[:dimensions], dtype=_TYPES[kind], device=self._mesh.device)
