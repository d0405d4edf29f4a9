"""Conditional flow matching: a velocity that takes a latent from where it starts to what it is to be.

Lipman et al. 2022, "Flow matching for generative modeling", arXiv 2210.02747, the conditional optimal transport path of
section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.convnext import Frames

_LEFT = 1e-4  # of the start at the end: the paper's sigma_min
_WAVES = 32  # by which time is told
_FASTEST = 1000.0


class Flow(nn.Module):
    """The velocity [batch, latent, frames] of a latent at a time [batch] from 0 to 1, given log mel bands."""

    def __init__(self, settings: recipe.Flow, latent: int, bands: int) -> None:
        super().__init__()
        width = settings.width
        self.time = nn.Sequential(nn.Linear(2 * _WAVES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.frames = Frames(latent + bands, width, latent, settings.depth, condition=width)

    def forward(self, latent: Tensor, time: Tensor, heard: Tensor) -> Tensor:
        """Where a latent goes that was made from `heard`, float32 [batch, bands, frames]."""
        return self.frames(torch.cat([latent, heard], dim=1), self.time(waves(time))).float()


def waves(time: Tensor) -> Tensor:
    """A time [batch] as sines and cosines [batch, 2 * 32], slow ones first."""
    speeds = torch.linspace(0, math.log(_FASTEST), _WAVES, device=time.device).exp()
    angles = time.unsqueeze(1) * speeds
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def path(start: Tensor, end: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Where on the way from start to end [batch, latent, frames] a time [batch] is, and the velocity there.

    Equations 22 and 23.
    """
    kept = 1 - _LEFT
    passed = time[:, None, None]
    return (1 - kept * passed) * start + passed * end, end - kept * start


def solved(
    velocity: Callable[[Tensor, Tensor], Tensor], start: Tensor, steps: int, solver: recipe.Solver = "midpoint"
) -> Tensor:
    """Where `start` is at time 1 that moves by `velocity(place, time [batch])` from time 0 on.

    By equal steps of Euler's method, or of the midpoint method (Hairer et al. 1993, section II.1).
    """
    place, length = start, 1 / steps
    for number in range(steps):
        now = start.new_full((len(start),), number * length)
        speed = velocity(place, now)
        if solver == "midpoint":
            speed = velocity(place + length / 2 * speed, now + length / 2)
        place = place + length * speed
    return place
