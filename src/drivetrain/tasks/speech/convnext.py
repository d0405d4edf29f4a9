"""Blocks on frames: what a frame is, and what is around it."""

from __future__ import annotations

from torch import Tensor, nn

_AROUND = 7  # frames that a block sees


class ConvNeXtBlock(nn.Module):
    """x + what a narrow look around and a wide look at the frame itself find.

    ConvNeXt's block (Liu et al. 2022, arXiv 2201.03545) in one dimension, as in Vocos (Siuzdak 2023, arXiv 2306.00814).
    With a `condition` its channels are scaled and shifted by it, each sample's own (Perez et al. 2018, arXiv
    1709.07871); it starts by changing nothing.
    """

    def __init__(self, width: int, condition: int = 0) -> None:
        super().__init__()
        self.around = nn.Conv1d(width, width, _AROUND, padding=_AROUND // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.activation = nn.GELU()
        self.narrow = nn.Linear(4 * width, width)
        self.film = _zero(nn.Linear(condition, 2 * width)) if condition else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """[batch, width, frames] to the same shape; the condition is [batch, condition]."""
        seen = self.norm(self.around(x).mT)
        if self.film is not None:
            scale, shift = self.film(condition).unsqueeze(1).chunk(2, dim=2)
            seen = seen * (1 + scale) + shift
        return x + self.narrow(self.activation(self.wide(seen))).mT


class Frames(nn.Module):
    """Frames of `few` channels to frames of `many`, through blocks."""

    def __init__(self, few: int, width: int, many: int, depth: int, condition: int = 0) -> None:
        super().__init__()
        self.first = nn.Conv1d(few, width, _AROUND, padding=_AROUND // 2)
        self.blocks = nn.ModuleList(ConvNeXtBlock(width, condition) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, many)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """[batch, few, frames] to [batch, many, frames]."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x, condition)
        return self.last(self.norm(x.mT)).mT


def _zero(linear: nn.Linear) -> nn.Linear:
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear
