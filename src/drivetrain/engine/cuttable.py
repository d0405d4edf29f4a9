"""What networks have to be so that a mesh can cut them. Torch's engines find out late, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from drivetrain.engine.tables.module import Embeddings
from drivetrain.spec.exits import Exit, Failure

Places = dict[nn.Parameter, list[str]]
"""The names of each parameter."""


def require_apart(networks: Mapping[str, nn.Module]) -> None:
    """Raises Failure(78) where networks share a parameter: each would be cut by itself, and have its own."""
    owners: dict[nn.Parameter, str] = {}
    for name, network in networks.items():
        for path, parameter in network.named_parameters():
            first = owners.setdefault(parameter, f"{name}.{path}")
            if not first.startswith(f"{name}."):
                cause = f"parallel: {first} and {name}.{path} are one tensor, and networks are cut one by one"
                raise Failure(Exit.BAD_RECIPE, cause, "make one network of them, or use parallel.replicate alone")


def require_unwatched(name: str, network: nn.Module) -> None:
    """Raises Failure(78) where a parameter has hooks: what takes its place on a mesh would not have them."""
    for path, parameter in network.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            cause = f"parallel: {name}.{path} has hooks of its own, which a tensor that is cut does not keep"
            raise Failure(Exit.BAD_RECIPE, cause, "use hooks of modules, or parallel.replicate alone")


def require_shardable(name: str, network: nn.Module, units: Sequence[str]) -> None:
    """Raises Failure(78) where parameters cannot be shared out by rows, unit by unit (the network is the last one)."""
    places: Places = {}
    of_unit: dict[str, list[nn.Parameter]] = {}
    roots = {network.get_submodule(path) for path in units}
    for unit in ("", *units):
        for path, parameter in _parameters_of(network.get_submodule(unit), roots, unit):
            places.setdefault(parameter, []).append(path)
            of_unit.setdefault(unit, []).append(parameter)
    for unit, parameters in of_unit.items():
        _require_rows(name, parameters, places)
        _require_one_type(name, unit, parameters, places)
    _require_in_one_unit(name, of_unit, places)


def _parameters_of(module: nn.Module, roots: Iterable[nn.Module], path: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Those that lie in a unit, and in no unit within it. Tables are not among them."""
    if isinstance(module, Embeddings):
        return
    yield from module.named_parameters(prefix=path, recurse=False)
    for own, child in module.named_children():
        if child not in roots:
            yield from _parameters_of(child, roots, f"{path}.{own}".lstrip("."))


def _require_rows(name: str, parameters: Iterable[nn.Parameter], places: Places) -> None:
    for parameter in parameters:
        at = f"parallel: {name}.{places[parameter][0]}"
        if parameter.numel() == 0:
            cause = f"{at} has shape {list(parameter.shape)}: there is nothing to share out"
            raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or use parallel.replicate alone")
        if not parameter.is_contiguous():
            cause = f"{at} does not lie row by row in memory (strides {parameter.stride()}), so that it has no rows"
            raise Failure(Exit.BAD_RECIPE, cause, "make it contiguous where the task builds the network")


def _require_one_type(name: str, unit: str, parameters: Iterable[nn.Parameter], places: Places) -> None:
    """The gradients of a unit are summed in one message."""
    first: dict[torch.dtype, str] = {}
    for parameter in parameters:
        if parameter.requires_grad and parameter.dim():
            first.setdefault(parameter.dtype, places[parameter][0])
    if len(first) > 1:
        told = " and ".join(f"{path} is {str(dtype).removeprefix('torch.')}" for dtype, path in first.items())
        cause = f"parallel: {told}: what trains in {unit or 'the rest'} of {name} has several types"
        raise Failure(Exit.BAD_RECIPE, cause, "name units of one type each in the task's parallel_plan")


def _require_in_one_unit(name: str, of_unit: Mapping[str, Iterable[nn.Parameter]], places: Places) -> None:
    seen: dict[nn.Parameter, str] = {}
    for unit, parameters in of_unit.items():
        for parameter in parameters:
            if seen.setdefault(parameter, unit) != unit and parameter.dim():
                told = " and ".join(places[parameter][:2])
                cause = f"parallel: {told} of {name} are one tensor, and lie in units that are gathered one by one"
                hint = "name units in the task's parallel_plan that have it whole; with none the network is one unit"
                raise Failure(Exit.BAD_RECIPE, cause, hint)
