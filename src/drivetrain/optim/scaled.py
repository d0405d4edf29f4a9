"""Updates along the gradient itself, channel by channel as long as a base made its projection: APOLLO's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drivetrain.optim.parts import Part
from drivetrain.optim.projections import SIDES, computed

_TINY = 1e-30


def scaled_descent(
    gradient: Tensor, projected: Tensor, update: Tensor, state: Mapping[str, Tensor], part: Part, growth: float
) -> Tensor:
    """The descent along a gradient (the rows that are here, columns), each channel scaled as the base's `update` is to
    the projection that it was made of.

    It is not longer than `growth` times the last one, whose length over all ranks is the state's "length"
    (Chen et al. 2024, arXiv 2410.01623, section 4.2).
    """
    projected, update = computed(projected), computed(update)
    # Lengths are taken along the projected sides, so that a channel is a column of L' G or a row of G R.
    along = [dim for dim, side in enumerate(SIDES) if side in state]
    lengths = torch.linalg.vector_norm(projected, dim=along, keepdim=True)
    ratios = torch.linalg.vector_norm(update, dim=along, keepdim=True) / lengths.clamp_min(_TINY)
    moved = computed(gradient) * -ratios
    length = part.sum(moved.square().sum()).sqrt()
    # All on the device: a comparison in Python would make the host wait for each matrix. Zero: there was no last one.
    most = torch.where(state["length"] > 0, growth * state["length"], length)
    factor = (most / length.clamp_min(_TINY)).clamp(max=1.0)
    state["length"].copy_(length * factor)
    return moved * factor
