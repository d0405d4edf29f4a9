"""How an engine computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from drivetrain.engine.placement import Placement
from drivetrain.engine.recipe import Network

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Execution:
    """How an engine computes, whatever its networks: fixed for a whole attempt."""

    placement: Placement
    device: torch.device
    precision: str
    """fp32, bf16 or fp16, of forward and backward passes; single networks may have their own."""
    seed: int
    exact: int | None = None
    """The number of lanes, where numbers must not depend on how many processes share them."""
    skips: bool = False
    """Whether a step may be left out and training goes on, so that what it did to buffers is undone."""
    network_settings: Mapping[str, Network] = field(default_factory=lambda: defaultdict(Network))
    """The settings of each network; the defaults' for one that the recipe does not name."""
    schedule: str = "1f1b"
    """In which order the stages of a pipeline work on micro-batches, where there are some."""
    sums_in_parts: bool = False
    """Whether gradients of networks that are sharded are summed over ranks after each micro-batch."""

    def autocast(self, precision: str) -> AbstractContextManager:
        """While entered, forward passes compute so."""
        if precision not in _DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[precision])
