"""Networks, or each of their repeated blocks, for torch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from drivetrain.engine.parallel_plan import matching
from drivetrain.engine.tables.module import Embeddings
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Compile


def compile_network(network: nn.Module, how: Compile) -> None:
    """Have a network compiled when it is first called."""
    _leave_out_tables(network)
    if _is_torchs(network):
        network.forward = _compiled(network, how)
    else:
        network.compile(dynamic=how.dynamic)


def compile_blocks(name: str, network: nn.Module, units: Sequence[str], how: Compile) -> list[str]:
    """Have the modules compiled that `units` name, as patterns do, when they are first called; their names. Of those
    that lie within one another the outermost are.

    Called once layers are split, before modules are sharded: what gathers them stays outside. Raises Failure(78) where
    there are none, and for patterns that name nothing.
    """
    _leave_out_tables(network)
    paths: list[str] = []
    for path in matching(network, units, f"the parallel plan of {name}"):
        if not any(path.startswith(f"{outer}.") for outer in paths):
            paths.append(path)
    if not paths:
        cause = f"compile: {name} has no repeated blocks that could be compiled"
        raise Failure(
            Exit.BAD_RECIPE, cause, "name them in the units of the task's parallel_plan, or use scope network"
        )
    for path in paths:
        module = network.get_submodule(path)
        # In place of the method, and not of the module: names, hooks and what FSDP makes of the class stay.
        module.forward = _compiled(module, how)
    return paths


def _compiled(module: nn.Module, how: Compile) -> Callable[..., Any]:
    """A module's forward pass. Equal modules share a graph: it belongs to their class's code."""
    if _is_torchs(module):
        return partial(torch.compile(_frame(type(module)), dynamic=how.dynamic), module)
    return torch.compile(module.forward, dynamic=how.dynamic)


def _is_torchs(module: nn.Module) -> bool:
    """Whether its forward pass is torch's own, such as that of nn.Sequential. The compiler passes torch's frames over,
    and asked for such a method itself it makes a frame for each module, of which none can share a graph."""
    return "forward" not in vars(module) and type(module).forward.__module__.partition(".")[0] == "torch"


@cache
def _frame(kind: type[nn.Module]) -> Callable[..., Any]:
    """A frame of ours around the forward pass of a class, with code of its own that has the class's name."""
    return FunctionType(_forward.__code__.replace(co_name=kind.__name__), globals(), kind.__name__)


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(module).forward(module, *args, **kwargs)


def _leave_out_tables(network: nn.Module) -> None:
    """Keep tables of embeddings out of graphs: whoever holds their rows is asked for them in between."""
    for module in network.modules():
        if isinstance(module, Embeddings):
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[assignment] - of its type
