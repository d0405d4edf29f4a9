"""Dropout whose numbers are those of the place: whoever holds a part of a tensor draws what the whole would have."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from drivetrain.engine.context import WHOLE, Positions
from drivetrain.runtime.hashing import FIRST, GOLDEN, lowbias32, plus, times
from drivetrain.spec.exits import Exit, Failure


class Dropout(nn.Dropout):
    """Like torch's, for activations [samples, positions, ...] or [samples, features].

    Each forward pass draws one number from the default generator; the mask is a hash of it and of the place in the
    sample. So ranks that hold some of the positions drop what a process that holds all of them would.
    """

    part: tuple[int, int] = (0, 1)
    """Which share of the positions that the network is given is here, of how many."""
    positions: Positions = WHOLE
    """Which ones of a sample it is given."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype: zeros with probability `p`, the rest divided by 1 - p."""
        if not self.training or not self.p:
            return input
        (index, parts), length = self.part, _folded(input.shape)[1]
        places = self.positions.here(length * parts, input.device)[index * length : (index + 1) * length]
        return input * kept(input, self.p, drawn_seed(input.device), places).to(input.dtype) * (1 / (1 - self.p))


def require_ours(axis: str, name: str, network: nn.Module, draws: str) -> None:
    """Raises Failure(78) for a dropout of torch's in a network that is cut along this axis; `draws` says what is wrong
    with its numbers there."""
    for path, module in network.named_modules():
        if isinstance(module, nn.Dropout) and module.p and not isinstance(module, Dropout):
            cause = f"parallel.{axis}: {name}.{path} is torch's Dropout, which draws {draws}"
            raise Failure(Exit.BAD_RECIPE, cause, "use drivetrain.Dropout, whose numbers are those of the place")


def drawn_seed(device: torch.device) -> Tensor:
    """What one forward pass draws: int32 [2]."""
    return torch.randint(-(1 << 31), 1 << 31, (2,), device=device).to(torch.int32)


def kept(x: Tensor, p: float, seed: Tensor, places: Tensor) -> Tensor:
    """Which numbers of [samples, positions, ...] stay (bool, the same shape).

    `places` [positions] are those of the positions in their sample, `seed` int32 [2]. A number
    is kept where its 32 hashed bits, as a signed number, are not below the threshold of `p`.
    """
    samples, _, features = (torch.arange(size, dtype=torch.int32, device=x.device) for size in _folded(x.shape))
    line = (
        lowbias32(plus(times(samples, GOLDEN), seed[0])).unsqueeze(1) ^ times(places.to(torch.int32), FIRST) ^ seed[1]
    )
    numbers = lowbias32(plus(lowbias32(line).unsqueeze(2), times(features, GOLDEN)))
    return (numbers >= int((p - 0.5) * 2**32)).view(x.shape)


def _folded(shape: torch.Size) -> tuple[int, int, int]:
    """Samples, positions, and the numbers of each position."""
    samples, positions, *_ = (*shape, 1, 1)
    return samples, positions, prod(shape[2:])
