"""Batches to the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on the device; on the CPU the batch itself. Copies do not wait."""
    if device.type == "cpu":
        return batch
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)
