"""Memory for networks that were built without."""

from __future__ import annotations

import torch
from torch import nn


def to_empty(network: nn.Module, device: torch.device) -> nn.Module:
    """Give a network of the meta device memory that holds nothing yet; tied weights stay tied."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    # Parameters stay the objects that they are: who shares one, and torch's FSDP, go on with it.
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return network.to_empty(device=device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
