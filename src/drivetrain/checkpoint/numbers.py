"""Numbers that optimizers of the user's own keep beside tensors, as tensors of a commit.

Their names end in what they are: `optimizers/<network>/<parameter>/<slot>#int`. Those of a parameter group stand at
`optimizers/<network>/[<group>]/<key>#float`; a group has the numbers that it was built with under `given`, and what
differs from these was counted since. What else an optimizer comes to keep no commit could hold: it is refused, unless
its class has it in `drivetrain_caches`. The name of a tensor that lies on the host, where its parameter lies on an
accelerator, ends in `#host`: it comes back there.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from drivetrain.spec.custom import article
from drivetrain.spec.exits import Exit, Failure

GIVEN = "given"
"""The key of a parameter group that marks an optimizer of the user's own: its values as it was built, by key."""
_ATTRIBUTES = "_given_attributes"
"""Where such an optimizer has what its attributes were when it was built."""
_OURS = frozenset({"params", "names", "lr", "peak", "weight_decay", "full_decay", "matrix", GIVEN})
"""What is not the optimizer's in a group."""
_TYPES: Mapping[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    type(None): torch.bool,
}
_MARKS = {f"#{cls.__name__}": cls for cls in _TYPES}
HOST = "#host"
"""How the name of a tensor on the host ends, where its parameter is not."""
CACHES = "drivetrain_caches"
"""Where a class of the user's own names its attributes that a resume may lose, since they follow from the rest."""
_HINT = "a commit holds tensors and numbers in `state[parameter]`, and numbers in parameter groups"
_CACHED = f"what follows from these anyway the class may name: {CACHES} = ('name',)"


def is_number(name: str) -> bool:
    """Whether a commit's tensor is a number by its name."""
    return name.endswith(tuple(_MARKS))


def slot_name(slot: str, value: Any, parameter: Tensor | None = None) -> str:
    """What a slot of an optimizer's state is called in a commit; `parameter`: that of an optimizer of the user's own,
    whose state it is."""
    if type(value) in _TYPES:
        return f"{slot}#{type(value).__name__}"
    if parameter is not None and isinstance(value, Tensor) and value.is_cpu and not parameter.is_cpu:
        return slot + HOST
    return slot


def number_tensor(value: bool | int | float | None) -> Tensor:
    """A number as a tensor without dimensions: int64, float64 or bool."""
    # None is stored as False: its name says what it was.
    return torch.tensor(value or 0, dtype=_TYPES[type(value)])


def mark(optimizer: torch.optim.Optimizer) -> None:
    """Mark an optimizer of the user's own, just built: what it keeps from here on is looked at."""
    for group in optimizer.param_groups:
        # Deep, since a list that the optimizer changes in place would change here, too.
        group[GIVEN] = {key: copy.deepcopy(value) for key, value in group.items() if key not in _OURS}
    setattr(optimizer, _ATTRIBUTES, _attributes(optimizer))


def require_known(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
    """Raises Failure(78) where a parameter group is not one that the optimizer was built with."""
    if "names" not in group:
        raise _unkept(f"{type(optimizer).__name__} has added a parameter group")


def require_kept(optimizer: torch.optim.Optimizer, owners: Mapping[str, Any]) -> None:
    """Raises Failure(78) where an optimizer of the user's own keeps what no commit could hold: a resume would lose it.

    `owners` are the parameters by what the names of their state begin with.
    """
    name = type(optimizer).__name__
    # By identity: tensors hash by it.
    parameters = set(owners.values())
    for key in optimizer.state:
        if key not in parameters:
            raise _unkept(f"{name} keeps state under {_shown(key)}, which is none of its parameters")
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key in _OURS or type(value) in _TYPES or _same(group[GIVEN].get(key), value):
                continue
            what = article(type(value).__name__)
            raise _unkept(f"{name} keeps {key!r}, {what} that changes, in its parameter groups")
    before, now = getattr(optimizer, _ATTRIBUTES), _attributes(optimizer)
    for key in now:
        if before.get(key) != now[key]:
            cause = f"{name} keeps something that changes in its attribute {key!r}"
            raise Failure(Exit.BAD_RECIPE, cause, f"{_HINT}; {_CACHED}")


def state_numbers(optimizer: torch.optim.Optimizer, owners: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The numbers of each parameter's state. Raises what `require_kept` does, also where that has something else."""
    require_kept(optimizer, owners)
    for owner, parameter in owners.items():
        for slot, value in optimizer.state.get(parameter, {}).items():
            what = f"{type(optimizer).__name__} keeps {slot!r}, {article(type(value).__name__)}, for {owner}"
            if not isinstance(slot, str) or "/" in slot or is_number(slot) or slot.endswith(HOST):
                raise _unkept(f"{what}: not under such a name")
            if type(value) in _TYPES:
                yield f"{owner}/{slot_name(slot, value)}", _held(value, what)
            elif not isinstance(value, Tensor):
                raise _unkept(what)


def group_numbers(network: str, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The numbers of parameter groups that are no longer what they were built with."""
    for place, group in enumerate(optimizer.param_groups):
        given = group[GIVEN]
        for key, value in group.items():
            if key in _OURS or type(value) not in _TYPES or (key in given and _same(given[key], value)):
                continue
            what = f"{type(optimizer).__name__} keeps {key!r} in its parameter groups"
            yield f"{network}/[{place}]/{slot_name(key, value)}", _held(value, what)


def begin_groups_anew(optimizer: torch.optim.Optimizer) -> None:
    """Make the numbers of parameter groups what they were built with."""
    for group in optimizer.param_groups:
        given = group[GIVEN]
        for key in list(group):
            if key not in _OURS and key not in given:
                del group[key]
        group.update({key: value for key, value in given.items() if type(value) in _TYPES})


def put_number(place: dict[str, Any], name: str, tensor: Tensor) -> None:
    """Put a number back into a parameter's state, or into a group, by the last part of its name."""
    slot, _, kind = name.rpartition("/")[2].rpartition("#")
    cls = _MARKS[f"#{kind}"]
    place[slot] = None if cls is type(None) else cls(tensor.item())


def _held(value: Any, what: str) -> Tensor:
    try:
        return number_tensor(value)
    except (OverflowError, ValueError, RuntimeError):
        raise _unkept(f"{what}: {value} has more than 64 bits") from None


def _same(given: Any, value: Any) -> bool:
    return type(given) is type(value) and _print(given) == _print(value)


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer keeps beside its state and its groups, by name."""
    moved = [optimizer.state, optimizer.param_groups, *optimizer.param_groups]
    for group in optimizer.param_groups:
        moved += [group["params"], *group["params"]]
    known = {id(thing) for thing in moved}
    lost = _torchs().union(getattr(type(optimizer), CACHES, ()))
    return {key: _print(value, known) for key, value in vars(optimizer).items() if key not in lost}


def _print(value: Any, known: frozenset[int] | set[int] = frozenset()) -> Any:
    """Something that is equal as long as a value has not changed; None for what cannot be told, or is known."""
    if id(value) in known:
        return None
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return tuple(value.shape), value.dtype, zlib.crc32(whole)  # type: ignore[arg-type]
    if isinstance(value, torch.Generator):
        return _print(value.get_state())
    if isinstance(value, torch.optim.Optimizer):
        return _print(dict(value.state), known)
    if isinstance(value, Mapping):
        return [(_shown(key), _print(part, known)) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_print(part, known) for part in value]
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))) or hasattr(value, "dtype"):
        return repr(value)  # of numbers: 0.0 is not -0.0, and nan is nan
    return None


def _shown(key: Any) -> str:
    return "a tensor" if isinstance(key, Tensor) else repr(key)


def _unkept(cause: str) -> Failure:
    return Failure(Exit.BAD_RECIPE, cause, _HINT)


@cache
def _torchs() -> frozenset[str]:
    """Attributes that torch, or what we do, gives every optimizer."""
    ours = (_ATTRIBUTES, "found_inf", "grad_scale", "step")
    rare = ("_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused")
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)]))).union(ours, rare)
