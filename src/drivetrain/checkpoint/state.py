"""Networks and optimizers to flat, named tensors and back, strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.commit import FOLDER, Commits, Damaged, load
from drivetrain.checkpoint.tensors import parse_tensors, read_file
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

Optimizers = Mapping[str, torch.optim.Optimizer]
NETWORKS, OPTIMIZERS = "networks", "optimizers"
_SHOWN = 12


def capture(networks: Mapping[str, nn.Module], optimizers: Optimizers) -> dict[str, Tensor]:
    """The live tensors by name: `networks/<network>/<name>`, `optimizers/<network>/<parameter>/<slot>`.

    They are not copied. A tensor with two names (tied weights) is there once, under its first.
    """
    return dict(_network_tensors(networks)) | dict(_optimizer_tensors(optimizers))


def restore(tensors: Mapping[str, Tensor], networks: Mapping[str, nn.Module], optimizers: Optimizers) -> None:
    """Copy a commit's tensors into networks and optimizers.

    Without optimizers only the networks are restored. Raises Failure(76) where a name is missing or unexpected, or a
    shape or type differs; then nothing was changed.
    """
    wanted = dict(_network_tensors(networks))
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{NETWORKS}/")}
    require_same(wanted, given, "the commit")
    slots = _slots(tensors, optimizers) if optimizers else []
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
    for optimizer, parameter, slot, tensor in slots:
        optimizer.state[parameter][slot] = tensor.to(
            parameter.device if tensor.ndim else _step_device(optimizer, parameter)
        )


def initial_weights(path: Path, networks: Mapping[str, nn.Module], only: str | None) -> int:
    """Copy weights from a run (its newest commit), a commit, or a safetensors file; returns how many tensors.

    `only` names the one network that is filled; a safetensors file has the names of a single network. Raises
    Failure(66) where there is nothing at the path, 76 where names, shapes or types do not fit exactly.
    """
    chosen = {name: net for name, net in networks.items() if only in (None, name)}
    if not chosen:
        raise Failure(Exit.BAD_RECIPE, f"init.network: no network {only!r}", f"there are {sorted(networks)}")
    wanted = dict(_network_tensors(chosen))
    prefix = f"{NETWORKS}/{only}/" if only is not None else f"{NETWORKS}/"
    given = {name: tensor for name, tensor in _weights(path, chosen).items() if name.startswith(prefix)}
    require_same(wanted, given, str(path))
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
    return len(wanted)


def require_same(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Raises Failure(76) with every name that is missing, unexpected or of another shape or type."""
    problems = [f"missing {name} {tuple(wanted[name].shape)}" for name in wanted if name not in given]
    problems += [f"unexpected {name} {tuple(given[name].shape)}" for name in given if name not in wanted]
    for name in wanted.keys() & given.keys():
        (mine, other) = (wanted[name], given[name])
        if mine.shape != other.shape or mine.dtype != other.dtype:
            problems.append(f"{name} is {_described(other)}, the network has {_described(mine)}")
    if problems:
        shown = "; ".join(problems[:_SHOWN]) + (
            f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        )
        raise Failure(Exit.INCOMPATIBLE, f"{where} does not fit the networks: {shown}", "use the recipe that wrote it")


def network_tensors(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A commit's tensors by network, without optimizer state."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, network, rest = name.split("/", 2)
        if kind == NETWORKS:
            networks.setdefault(network, {})[rest] = tensor
    return networks


def _network_tensors(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for network, module in networks.items():
        persistent = module.state_dict(keep_vars=True)
        seen: set[int] = set()
        for name, tensor in persistent.items():
            if isinstance(tensor, Tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{NETWORKS}/{network}/{name}", tensor.detach()


def _optimizer_tensors(optimizers: Optimizers) -> Iterator[tuple[str, Tensor]]:
    for network, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                for slot, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        yield f"{OPTIMIZERS}/{network}/{name}/{slot}", value


def _slots(
    tensors: Mapping[str, Tensor], optimizers: Optimizers
) -> list[tuple[torch.optim.Optimizer, nn.Parameter, str, Tensor]]:
    """Where each tensor of optimizer state belongs; Failure(76) where nothing fits."""
    owners = {
        f"{OPTIMIZERS}/{network}/{name}": (optimizer, parameter)
        for network, optimizer in optimizers.items()
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
    }
    found = []
    for name, tensor in tensors.items():
        if name.startswith(f"{OPTIMIZERS}/"):
            owner, _, slot = name.rpartition("/")
            if owner not in owners or (tensor.ndim and tensor.shape != owners[owner][1].shape):
                raise Failure(
                    Exit.INCOMPATIBLE,
                    f"the commit's optimizer state {name} fits no parameter",
                    "use the recipe that wrote it",
                )
            found.append((*owners[owner], slot, tensor))
    return found


def _step_device(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.device:
    """Where 0-d state lies: fused optimizers keep their step count beside the parameter, others on the CPU."""
    return parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")


def _weights(path: Path, networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    if (path / FOLDER).is_dir():
        found = Commits(path, Group()).latest()
        if found is None:
            raise Failure(Exit.INPUT_MISSING, f"init.path: {path} has no commit", "train it first, or name another")
        return dict(found.state.tensors)
    try:
        if path.is_dir():
            return dict(load(path)[1].tensors)
        if path.is_file():
            (network,) = networks
            return {f"{NETWORKS}/{network}/{name}": tensor for name, tensor in parse_tensors(read_file(path)).items()}
    except (Damaged, ValueError) as error:
        raise Failure(Exit.BAD_DATA, f"init.path: {path} is damaged: {error}", "restore it from a copy") from error
    raise Failure(Exit.INPUT_MISSING, f"init.path: nothing at {path}", "name a run, a commit or a safetensors file")


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
