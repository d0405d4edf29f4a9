"""torch's optimizers without its compiler: where nothing is compiled, they import it only to tell it what to leave be.
That takes more than a second of each start."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

_MARK = "__dynamo_disable"
"""Where torch's methods look for the function to call in their place, before they ask the compiler for it."""
_TOLD = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def spare_the_compiler() -> None:
    """Let optimizers be made, loaded and saved without it, for as long as nobody has imported it. Of a torch that tells
    its compiler otherwise nothing changes."""
    if "torch._dynamo" in sys.modules:
        return
    for name in _TOLD:
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None and not hasattr(method, _MARK):
            setattr(method, _MARK, partial(_call, method))


def plain_step(optimizer: Optimizer) -> None:
    """What its `step` does inside of all that torch has put around it: hooks, names for a profiler, and breaks of the
    compiler's graphs."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _call(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a method. Once the compiler is there torch's own way is taken from the next call on."""
    if disable := getattr(sys.modules.get("torch._dynamo"), "disable", None):
        delattr(method, _MARK)
        method = disable(method)
    return method(*arguments, **named)
