"""One place along a pipeline whose other places are not there: what it is sent, and what it passes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.pipelining import schedules

from drivetrain.checkpoint.boxes import local_of
from drivetrain.engine.pipeline import Pipelined
from drivetrain.engine.relay import Relay
from drivetrain.engine.stages import Chunk
from drivetrain.plan.meter import Meter, replaced


class Passed(NamedTuple):
    """What one stage passes on to the next: shape and type of a rank's part."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class StageMessages:
    """What a place along a pipeline hears and says while it is traced. `last` is what the place before passes on, and
    then what this one does; None at the first place until its stage has run."""

    def __init__(self, before: Passed | None, meter: Meter) -> None:
        self.last = before
        self._meter = meter
        self._seen: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """While entered, messages between stages are those of nobody, and micro-batches come in their order.

        Their numbers go through a schedule as tensors, which have no numbers here. Every schedule gives a stage its
        micro-batches in order, for the forward pass and for the loss.
        """
        forward, loss = Pipelined.forward, Pipelined._loss

        def numbered(pipelined: Pipelined, chunk: Chunk, _: int, received: Tensor | None) -> Tensor:
            return forward(pipelined, chunk, self._next(pipelined, "forward", chunk.number), received)

        def scored(pipelined: Pipelined, output: Tensor, _: Tensor) -> Tensor:
            return loss(pipelined, output, self._next(pipelined, "loss", 0))  # type: ignore[arg-type] - a number

        with ExitStack() as stack:
            for owner, name, value in (
                (Relay, "_send", lambda _, x, place: self._say(x)),
                (Relay, "_received", lambda _, place: self._hear()),
                (Pipelined, "forward", numbered),
                (Pipelined, "_loss", scored),
                (schedules, "_batch_p2p", self._batch),
            ):
                stack.enter_context(replaced(owner, name, value))
            yield

    def _next(self, pipelined: Pipelined, what: str, chunk: int) -> int:
        number = self._seen[what, chunk]
        self._seen[what, chunk] += 1
        return number % len(pipelined.now.passes)

    def _say(self, x: Tensor) -> None:
        local = local_of(x)
        self.last = Passed(tuple(local.shape), local.dtype)

    def _hear(self) -> Tensor:
        assert self.last is not None, "places are traced in their order"
        return torch.empty(self.last.shape, dtype=self.last.dtype)

    def _batch(self, operations: list[Any], desc: str | None = None) -> list[_Work]:
        tensors = [one.tensor for one in operations]
        self._meter.sent += sum(one.tensor.nbytes for one in operations if one.op is torch.distributed.isend)
        self._meter.name("communication", tensors, anew=False)
        return [_Work(tensors)]


class _Work:
    """A message under way holds its tensors as long as somebody holds it, also once it has been waited for."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> None:
        """It has arrived."""
