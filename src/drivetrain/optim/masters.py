"""What optimizers move where weights are bf16: fp32 parameters in their place, kept between steps or made for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.optim.parts import Part
from drivetrain.optim.rounding import key_of, round_by_place
from drivetrain.spec.box import Box

MASTERS = "masters"
"""What the names of masters in commits begin with."""
CHUNK_BYTES = 64 << 20
"""fp32 copies that are there at a time, where none lasts; a single tensor may be larger."""


def wide(parameter: Tensor) -> bool:
    """Whether it is bf16 and takes gradients of another type, as a recipe wants it. Without that torch has one type."""
    return parameter.dtype == torch.bfloat16 and getattr(parameter, "grad_dtype", torch.bfloat16) != torch.bfloat16


class Weight(NamedTuple):
    """A bf16 parameter of a network; `part` is what is here of it, on the network's own memory."""

    parameter: nn.Parameter
    part: Part


@dataclass(frozen=True)
class Master:
    """An fp32 parameter, `moved` by an optimizer, and the bf16 `weight` (what is here of it) that it is rounded to."""

    name: str
    moved: nn.Parameter
    weight: nn.Parameter
    box: Box


class Masters:
    """Those of all networks that have bf16 weights, by NETWORK/NAME.

    Where they are not `lasting` they have no memory between steps: an optimizer keeps its state by them, and for a step
    a bounded number of them is made of the weights.
    """

    def __init__(
        self, weights: Mapping[str, Weight], seed: int, *, lasting: bool = True, stochastic: bool = False
    ) -> None:
        """They begin at the weights as they are; every one trains, until `forget_still`."""
        self.lasting = lasting
        self.stochastic = stochastic
        self._seed, self._at = seed, (0, 0)
        self._weights = dict(weights)
        self._all: dict[str, Master] = {}
        for name, (_, part) in weights.items():
            self._all[name] = Master(name, nn.Parameter(self._value(part.here)), part.here, part.box)
        self._of = {master.moved: master for master in self._all.values()}

    @property
    def parts(self) -> dict[nn.Parameter, Part]:
        """What optimizers move in place of the networks' parameters."""
        found: dict[nn.Parameter, Part] = {}
        for name, master in self._all.items():
            parameter, part = self._weights[name]
            found[parameter] = Part(master.moved, part.box, part.group)
        return found

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a commit keeps."""
        if not self.lasting:
            return {}
        return {f"{MASTERS}/{name}": master.moved.detach() for name, master in self._all.items()}

    @property
    def moved(self) -> dict[str, nn.Parameter]:
        """Those that last, by NETWORK/NAME."""
        if not self.lasting:
            return {}
        return {name: master.moved for name, master in self._all.items()}

    def forget_still(self) -> None:
        """Keep none for parameters that do not train."""
        for name, (parameter, _) in self._weights.items():
            if not parameter.requires_grad:
                # Out of commits, too: it is the weight itself, which never moves, in twice the bytes.
                del self._of[self._all.pop(name).moved]

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew at the weights as they are now."""
        for master in self._all.values():
            if self.lasting:
                master.moved.copy_(master.weight)

    def begin(self, step: int, call: int) -> None:
        """What is rounded from here on belongs to this `minimize` of a step."""
        self._at = step, call

    def weights(self, moved: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """What is here of the networks' parameters, in place of what an optimizer moves."""
        return [self._of[parameter].weight for parameter in moved]

    def step(self, optimizer: torch.optim.Optimizer, move: Callable[[], None]) -> None:
        """Move weights by their gradients; `move` makes a step of all that the optimizer's groups have then."""
        if self.lasting:
            everything = chain.from_iterable(group["params"] for group in optimizer.param_groups)
            self._move([self._of[moved] for moved in everything], move)
            return
        for chunk in self._chunks(optimizer):
            with _narrowed(optimizer, {master.moved for master in chunk}):
                self._move(chunk, move)

    @torch.no_grad()
    def _move(self, masters: Sequence[Master], move: Callable[[], None]) -> None:
        for master in masters:
            if not self.lasting:
                master.moved.data = master.weight.float()
            master.moved.grad = master.weight.grad
        move()
        for master in masters:
            # What has no gradient stands still; rounded by chance again, it would not.
            if master.moved.grad is not None:
                self._round(master)
            master.moved.grad = None
            if not self.lasting:
                master.moved.data = self._value(master.weight)

    def _round(self, master: Master) -> None:
        if self.stochastic:
            key = key_of(self._seed, *self._at, master.name)
            round_by_place(master.moved.detach(), master.box, key, master.weight.detach())
        else:
            master.weight.copy_(master.moved)

    def _value(self, weight: Tensor) -> Tensor:
        """fp32 numbers for a weight; where none lasts, something of its shape without memory of its own."""
        if self.lasting:
            return weight.detach().float()
        # One number seen as a whole tensor: an optimizer asks shapes, and keeps its state by the parameter itself.
        return torch.zeros((), device=weight.device).expand(weight.shape)

    def _chunks(self, optimizer: torch.optim.Optimizer) -> Iterator[list[Master]]:
        chunk: list[Master] = []
        size = 0
        for group in optimizer.param_groups:
            for moved in group["params"]:
                if chunk and size + moved.nbytes > CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
                chunk.append(self._of[moved])
                size += moved.nbytes
        yield chunk


@contextmanager
def _narrowed(optimizer: torch.optim.Optimizer, some: set[nn.Parameter]) -> Iterator[None]:
    """While entered, an optimizer has only some of its parameters."""
    everything = [group["params"] for group in optimizer.param_groups]
    for group, parameters in zip(optimizer.param_groups, everything, strict=True):
        group["params"] = [parameter for parameter in parameters if parameter in some]
    try:
        yield
    finally:
        # The same lists come back, since others hold on to them.
        for group, parameters in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = parameters
