"""Networks and optimizers to flat, named tensors and back, strictly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.boxes import local_of
from drivetrain.checkpoint.numbers import (
    GIVEN,
    HOST,
    begin_groups_anew,
    group_numbers,
    is_number,
    put_number,
    require_known,
    slot_name,
    state_numbers,
)
from drivetrain.checkpoint.snapshot import TensorBytes, put
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure

Optimizers = Mapping[str, torch.optim.Optimizer]
NETWORKS, OPTIMIZERS, AVERAGES = "networks", "optimizers", "averages"
_SHOWN = 12


@runtime_checkable
class Shaped(Protocol):
    """An optimizer whose state has other shapes than its parameters."""

    def state_boxes(self, parameter: nn.Parameter) -> Mapping[str, Box]:
        """What is here of each slot of a parameter's state."""
        ...


def capture(
    networks: Mapping[str, nn.Module], optimizers: Optimizers, others: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, Tensor]:
    """The live tensors by name: `networks/<network>/<name>`, `optimizers/<network>/<parameter>/<slot>`, and others by
    theirs (`averages/<network>/<name>`, `scaler/<name>`).

    They are not copied. A tensor with two names (tied weights) is there once, under its first. Of one that is cut there
    is what this rank holds.
    """
    here = {name: local_of(tensor) for name, tensor in _network_tensors(networks)}
    return here | dict(_optimizer_tensors(optimizers)) | dict(others)


def named_tensors(networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The live tensors of networks by NETWORK/NAME; a DTensor where one is cut."""
    return {name.removeprefix(f"{NETWORKS}/"): tensor for name, tensor in _network_tensors(networks)}


def restore(
    tensors: Mapping[str, Tensor],
    networks: Mapping[str, nn.Module],
    optimizers: Optimizers,
    others: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Copy a commit's tensors into networks, optimizers and others.

    Without optimizers, or others, these stay as they are. Raises Failure(76) where a name is missing or unexpected, or
    a shape or type differs; then nothing was changed.
    """
    wanted = capture(networks, {}, others)
    given: dict[str, Tensor] = {}
    given_others: dict[str, Tensor] = {}
    kinds = _kinds(others)
    for name, tensor in tensors.items():
        kind = name.partition("/")[0]
        if kind == NETWORKS:
            given[name] = tensor
        elif kind in kinds:
            given_others[name] = tensor
    given |= given_others
    require_same(wanted, given, "the commit")
    # All is looked at before anything is changed.
    slots: list[tuple[torch.optim.Optimizer, nn.Parameter, str, Tensor]] = []
    if optimizers:
        slots = _slots(tensors, optimizers)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
    for optimizer, parameter, slot, tensor in slots:
        # A copy, in torch's own alignment: matrix products round otherwise where a file's bytes happen to lie.
        held = tensor.to(_slot_device(optimizer, parameter, slot), copy=True)
        optimizer.state[parameter][slot.removesuffix(HOST)] = held
    if optimizers:
        _put_numbers(tensors, optimizers)


def put_back(
    pieces: Iterable[TensorBytes],
    networks: Mapping[str, nn.Module],
    optimizers: Optimizers,
    others: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Make everything what it was when these pieces were taken. Optimizer state that has begun since begins anew.

    Raises Failure(83) where a piece has changed in memory meanwhile; what was put back then is of no use.
    """
    held = {piece.name: piece for piece in pieces}
    tensors = capture(networks, optimizers, others)
    known = {name: tensor for name, tensor in tensors.items() if name in held}
    # The user's own optimizers may have dropped or replaced what they had, and a number is nothing to put bytes into.
    lost = {name: piece for name, piece in held.items() if not _takes(known.get(name), piece)}
    fresh = {name: torch.empty(piece.shape, dtype=piece.dtype) for name, piece in lost.items()}
    changed = put({name: held[name] for name in known | fresh}, known | fresh)
    if changed is not None:
        hint = "a bit has flipped: suspect this machine's memory; the commit before is whole"
        raise Failure(Exit.CORRUPTION_SUSPECTED, f"the copy of {changed} has changed in memory", hint, tensor=changed)
    _forget_begun(held, optimizers)
    for optimizer, parameter, slot, tensor in _slots(fresh, optimizers):
        optimizer.state[parameter][slot.removesuffix(HOST)] = tensor.to(_slot_device(optimizer, parameter, slot))
    _put_numbers(known | fresh, optimizers)


def _forget_begun(held: Collection[str], optimizers: Optimizers) -> None:
    """Take away the state that has begun since then: the optimizer begins it anew, as it did then."""
    for owner, optimizer, parameter in _owners(optimizers):
        slots, own = optimizer.state.get(parameter, {}), _own_parameter(optimizer, parameter)
        begun = [slot for slot, value in slots.items() if f"{owner}/{slot_name(slot, value, own)}" not in held]
        if slots and len(begun) == len(slots):
            del optimizer.state[parameter]
        elif GIVEN in optimizer.param_groups[0]:
            for slot in begun:
                del slots[slot]


def _takes(tensor: Tensor | None, piece: TensorBytes) -> bool:
    """Whether a live tensor, where there is one, is what these bytes were taken from, and keeps them."""
    if tensor is None or is_number(piece.name):
        return False
    return tuple(tensor.shape) == piece.shape and tensor.dtype == piece.dtype


def require_fitting(tensors: Mapping[str, Tensor], networks: Mapping[str, nn.Module]) -> None:
    """Raises Failure(76) where a commit's networks are others than these, as `restore`."""
    given = {name: tensor for name, tensor in tensors.items() if name.partition("/")[0] == NETWORKS}
    require_same(capture(networks, {}), given, "the commit")


def require_same(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Raises Failure(76) with every name that is missing, unexpected, renamed, or of another shape or type."""
    problems = _unmatched(wanted, given)
    for name in wanted:
        if name in given and _described(wanted[name]) != _described(given[name]):
            problems.append(f"{name} is {_described(given[name])}, the network has {_described(wanted[name])}")
    if not problems:
        return
    shown = "; ".join(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        shown += f"; and {len(problems) - _SHOWN} more"
    failure = Failure(Exit.INCOMPATIBLE, f"{where} does not fit the networks: {shown}", "use the recipe that wrote it")
    failure.details = "\n".join(problems)
    raise failure


def _unmatched(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Every name that is on one side only; one that is missing may have been renamed, where another looks like it."""
    unexpected = {name: _described(tensor) for name, tensor in given.items() if name not in wanted}
    problems: list[str] = []
    for name, tensor in wanted.items():
        if name in given:
            continue
        looks = _described(tensor)
        problem = f"missing {name} {looks}"
        twins = [other for other, its in unexpected.items() if its == looks]
        if twins:
            del unexpected[twins[0]]
            problem += f", perhaps renamed from {twins[0]}"
        problems.append(problem)
    for name, looks in unexpected.items():
        problems.append(f"unexpected {name} {looks}")
    return problems


def averaged(tensors: Mapping[str, Tensor], networks: Iterable[str]) -> dict[str, Tensor]:
    """A commit's tensors with these networks' averages in the weights' places. Raises Failure(66) where it has none."""
    kinds = tuple(f"{AVERAGES}/{network}/" for network in networks)
    averages: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(kinds):
            weight = name.replace(AVERAGES, NETWORKS, 1)
            # Of weights that are kept in bf16 they are fp32.
            averages[weight] = tensor.to(tensors[weight].dtype) if weight in tensors else tensor
    if not averages:
        raise Failure(Exit.INPUT_MISSING, "the commit has no averaged weights", "its recipe has no `average`")
    return {**tensors, **averages}


def has_any(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> set[str]:
    """Of the kinds of others, those that a commit has something of."""
    return _kinds(tensors) & _kinds(others)


def _kinds(tensors: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in tensors}


class MutationTracker:
    """Parameters and others, and whether they were changed: torch counts each tensor's changes in place. Buffers are
    the engine's to know, since not every kernel counts what it changes of them."""

    def __init__(self, networks: Mapping[str, nn.Module], others: Mapping[str, Tensor]) -> None:
        parameters: list[nn.Parameter] = []
        for network in networks.values():
            parameters += network.parameters()
        self._all = [*parameters, *others.values()]
        self._still = [parameter for parameter in parameters if not parameter.requires_grad]
        self._at_start = _versions(self._still)
        self._at_boundary: list[int] = []
        self.stand()

    def stand(self) -> None:
        """This is a boundary."""
        self._at_boundary = _versions(self._all)

    @property
    def moved(self) -> bool:
        """Whether anything was changed since the boundary: within a step, by a forward pass or by the task itself."""
        return self._at_boundary != _versions(self._all)

    @property
    def private(self) -> bool:
        """Whether training changes parameters that no optimizer moves: each rank may have its own."""
        return self._at_start != _versions(self._still)


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    """Torch's count of changes in place of each tensor."""
    return [tensor._version for tensor in tensors]


def network_tensors(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A commit's tensors by network, without optimizer state."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == NETWORKS:
            network, _, own = rest.partition("/")
            networks.setdefault(network, {})[own] = tensor
    return networks


def _network_tensors(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for network, module in networks.items():
        persistent = module.state_dict(keep_vars=True)
        seen: set[int] = set()
        for name, tensor in persistent.items():
            if not isinstance(tensor, Tensor):
                raise Failure(
                    Exit.BAD_RECIPE,
                    f"network {network} keeps {name}, which is no tensor, in its state_dict",
                    "keep it as a buffer: get_extra_state would be lost on a resume",
                )
            # Tied weights have several names, and would be written, and copied back, as often.
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{NETWORKS}/{network}/{name}", tensor.detach()


def _optimizer_tensors(optimizers: Optimizers) -> Iterator[tuple[str, Tensor]]:
    for owner, optimizer, parameter in _owners(optimizers):
        own = _own_parameter(optimizer, parameter)
        for slot, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"{owner}/{slot_name(slot, value, own)}", value
    for network, optimizer in _own(optimizers):
        owners = {owner: parameter for owner, _, parameter in _owners({network: optimizer})}
        yield from state_numbers(optimizer, owners)
        yield from group_numbers(f"{OPTIMIZERS}/{network}", optimizer)


def state_boxes(optimizers: Optimizers) -> dict[str, Box]:
    """Where optimizer state that has other shapes than its parameters lies in the whole, by the names that commits give
    it, whether it has begun or not."""
    found: dict[str, Box] = {}
    for owner, optimizer, parameter in _owners(optimizers):
        if isinstance(optimizer, Shaped):
            for slot, box in optimizer.state_boxes(parameter).items():
                found[f"{owner}/{slot}"] = box
    return found


def _own(optimizers: Optimizers) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """The optimizers of the user's own: they may keep numbers beside tensors."""
    for network, optimizer in optimizers.items():
        if any(GIVEN in group for group in optimizer.param_groups):
            yield network, optimizer


def _number_places(optimizers: Optimizers) -> dict[str, dict[str, Any]]:
    """Where numbers of the user's own optimizers belong, by what their names begin with."""
    places: dict[str, dict[str, Any]] = {}
    for network, optimizer in _own(optimizers):
        for owner, _, parameter in _owners({network: optimizer}):
            places[owner] = optimizer.state[parameter]
        for place, group in enumerate(optimizer.param_groups):
            places[f"{OPTIMIZERS}/{network}/[{place}]"] = group
    return places


def _put_numbers(tensors: Mapping[str, Tensor], optimizers: Optimizers) -> None:
    """Put a commit's numbers where they belong; groups of which it has none are as they were built."""
    for _, optimizer in _own(optimizers):
        begin_groups_anew(optimizer)
    places = _number_places(optimizers)
    for name, tensor in tensors.items():
        if name.startswith(f"{OPTIMIZERS}/") and is_number(name):
            put_number(places[name.rpartition("/")[0]], name, tensor)


def _owners(optimizers: Optimizers) -> Iterator[tuple[str, torch.optim.Optimizer, nn.Parameter]]:
    """Every parameter that an optimizer moves, and what the names of its state begin with."""
    for network, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            require_known(optimizer, group)
            for name, parameter in zip(group["names"], group["params"], strict=True):
                yield f"{OPTIMIZERS}/{network}/{name}", optimizer, parameter


def _slots(
    tensors: Mapping[str, Tensor], optimizers: Optimizers
) -> list[tuple[torch.optim.Optimizer, nn.Parameter, str, Tensor]]:
    """Where each tensor of optimizer state belongs; Failure(76) where nothing fits."""
    owners = {owner: (optimizer, parameter) for owner, optimizer, parameter in _owners(optimizers)}
    numbers = _number_places(optimizers)
    found = []
    for name, tensor in tensors.items():
        if name.startswith(f"{OPTIMIZERS}/"):
            owner, _, slot = name.rpartition("/")
            if is_number(name) and owner in numbers:
                continue
            if owner not in owners or not _fits(tensor, slot, *owners[owner]):
                raise Failure(
                    Exit.INCOMPATIBLE,
                    f"the commit's optimizer state {name} fits no parameter",
                    "use the recipe that wrote it",
                )
            found.append((*owners[owner], slot, tensor))
    return found


def _fits(tensor: Tensor, slot: str, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> bool:
    """Whether optimizer state may be a parameter's: anything where the optimizer is the user's own; what one says that
    has `state_boxes`; otherwise 0-d, or of its shape, where dimensions may be reduced to 1.

    Adafactor keeps moments of rows and columns: (rows, 1) and (1, columns) for a parameter of (rows, columns).
    """
    if GIVEN in optimizer.param_groups[0]:
        return True
    if isinstance(optimizer, Shaped):
        box = optimizer.state_boxes(parameter).get(slot)
        return box is not None and box.shape == tuple(tensor.shape)
    if tensor.ndim == 0:
        return True
    if tensor.ndim != parameter.ndim:
        return False
    return all(size in (1, full) for size, full in zip(tensor.shape, parameter.shape, strict=True))


def _own_parameter(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> nn.Parameter | None:
    """The parameter, where the optimizer is the user's own."""
    return parameter if GIVEN in optimizer.param_groups[0] else None


def _slot_device(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, slot: str) -> torch.device:
    """Where state lies: beside the parameter, but for what its name says lay on the host, and for step counts: fused
    optimizers of torch alone keep these beside the parameter, and those of the user's own where they were."""
    if slot.endswith(HOST):
        return torch.device("cpu")
    if slot == "step" and _own_parameter(optimizer, parameter) is None and not optimizer.defaults.get("fused"):
        return torch.device("cpu")
    return parameter.device


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
