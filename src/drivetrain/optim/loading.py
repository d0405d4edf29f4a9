"""State with types of its own, through torch's `load_state_dict`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch


def load_typed(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any], own: Callable[[str], bool]) -> None:
    """After torch has loaded a state, and cast all of it to the parameters' type: take over the slots that are `own` as
    they were given."""
    # A state dict tells parameters by their places, group by group, in the order in which the groups hold them.
    places = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for place, parameter in zip(places, parameters, strict=True):
        for slot, tensor in state_dict["state"].get(place, {}).items():
            if own(slot):
                # A copy: a step moves state in place, and what was loaded is still the caller's.
                optimizer.state[parameter][slot] = tensor.to(parameter.device, copy=True)
