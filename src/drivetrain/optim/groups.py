"""Which parameter gets which settings: every trainable parameter in exactly one group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import nn

from drivetrain.optim.recipe import Optimizer, ParameterGroup, Schedule
from drivetrain.spec.exits import Exit, Failure

_SHOWN = 8  # names of parameters in a message


@dataclass(frozen=True)
class Parameters:
    """Parameters of one network that share a peak learning rate, a weight decay and a schedule.

    `schedule` is None where it is the network's; `matrix` is whether the optimizer's `matrices` chooses them;
    `options` are what else the optimizer wants to know of them.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    lr: float
    weight_decay: float
    schedule: Schedule | None = None
    matrix: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class _Shared:
    """What the parameters of one group share. Groups are in this order, so it does not depend on the network's."""

    index: int
    lr: float
    weight_decay: float
    matrix: bool


def assign(networks: Mapping[str, nn.Module], settings: Optimizer) -> dict[str, list[Parameters]]:
    """Groups of each network's trainable parameters; the first pattern that matches a dotted name takes it.

    Parameters with fewer than two dimensions (norms, biases) are not decayed unless their group gives a weight decay.
    A pattern may take what other processes alone have: a network's attribute `trains_elsewhere` names it.
    Raises Failure(78) for a pattern that is no regular expression, or that takes no parameter of any network, for an
    optimizer of matrices without one, and for a rank, gap or scale of a group without one.
    """
    patterns = [_compile("groups", group.match) for group in settings.groups]
    groups = (*settings.groups, ParameterGroup(match=""))  # index -1: what no pattern takes
    taken, matrix_counts = [0] * len(patterns), [0] * len(groups)
    result = {}
    for network, module in networks.items():
        matrices = _matrices(module, settings)
        members: dict[_Shared, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in module.named_parameters():
            # Frozen ones are in no group: an optimizer would decay them.
            if not parameter.requires_grad:
                continue
            index = _first_match(patterns, name)
            if index >= 0:
                taken[index] += 1
            matrix = parameter in matrices
            matrix_counts[index] += matrix
            shared = _Shared(index, *_rates(parameter, settings, groups[index], matrix), matrix)
            members.setdefault(shared, []).append((name, parameter))
        # A pattern that fits another stage's layer alone is no mistake here, or ranks would disagree.
        for name in getattr(module, "trains_elsewhere", ()):
            if (index := _first_match(patterns, name)) >= 0:
                taken[index] += 1
        result[network] = []
        for shared in sorted(members):
            result[network].append(_group(shared, members[shared], groups[shared.index], settings))
    _require_all_used(settings.groups, taken, networks)
    if settings.matrices is not None:
        _require_matrices(settings, matrix_counts, networks)
    return result


def _compile(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Failure(
            Exit.BAD_RECIPE, f"optimizer.{field}: {pattern!r} is no regular expression: {error}", "mend the pattern"
        ) from None


def _first_match(patterns: Sequence[re.Pattern[str]], name: str) -> int:
    """The first pattern that takes this name; -1 for none."""
    for index, pattern in enumerate(patterns):
        if pattern.search(name):
            return index
    return -1


def _rates(parameter: nn.Parameter, settings: Optimizer, group: ParameterGroup, matrix: bool) -> tuple[float, float]:
    """Peak learning rate and weight decay."""
    lr = settings.peak(matrix) if group.lr is None else group.lr
    if group.weight_decay is not None:
        return lr, group.weight_decay
    return lr, settings.weight_decay if parameter.ndim >= 2 else 0.0


def _group(
    shared: _Shared, members: Sequence[tuple[str, nn.Parameter]], group: ParameterGroup, settings: Optimizer
) -> Parameters:
    names, parameters = zip(*members, strict=True)
    return Parameters(
        names=names,
        parameters=parameters,
        lr=shared.lr,
        weight_decay=shared.weight_decay,
        schedule=group.schedule,
        matrix=shared.matrix,
        options=settings.options(group),
    )


def _matrices(module: nn.Module, settings: Optimizer) -> frozenset[nn.Parameter]:
    """The weights that the optimizer treats as matrices."""
    choice = settings.matrices
    if choice is None:
        return frozenset()
    pattern = _compile(choice.field, choice.pattern)
    # The pattern names what is left out then: an output layer looks like any other matrix.
    if choice.hidden:
        return _hidden(module, pattern)
    found = set()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.ndim >= 2 and pattern.search(name):
            found.add(parameter)
    return frozenset(found)


def _hidden(module: nn.Module, outputs: re.Pattern[str]) -> frozenset[nn.Parameter]:
    """Weights that are 2-D, of no embedding, and of which no name (tied ones have several) is an output layer's."""
    found: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            others.update(part.parameters(recurse=False))
    # One name is enough to leave a tied weight out, so what is left out is subtracted when all names were seen.
    for name, parameter in module.named_parameters(remove_duplicate=False):
        kind = others if parameter.ndim != 2 or outputs.search(name) else found
        kind.add(parameter)
    return frozenset(found - others)


def _require_matrices(settings: Optimizer, counts: Sequence[int], networks: Mapping[str, nn.Module]) -> None:
    """`counts` are the matrices of each group, and last of what no group takes."""
    if not any(counts):
        cause, hint = settings.without_matrices(", ".join(networks), _some_names(networks))
        raise Failure(Exit.BAD_RECIPE, cause, hint)
    for group, count in zip(settings.groups, counts, strict=False):
        if group.needs_matrix and not count:
            raise Failure(
                Exit.BAD_RECIPE,
                f"optimizer.groups: {group.match!r} has a rank, gap or scale, but takes nothing that is projected",
                "name it in optimizer.match, too, or leave them out",
            )


def _require_all_used(
    groups: Sequence[ParameterGroup], taken: Sequence[int], networks: Mapping[str, nn.Module]
) -> None:
    for group, count in zip(groups, taken, strict=True):
        if count == 0:
            raise Failure(
                Exit.BAD_RECIPE,
                f"optimizer.groups: {group.match!r} takes no trainable parameter",
                f"no name matches, or earlier groups took them all; the parameters are: {_some_names(networks)}",
            )


def _some_names(networks: Mapping[str, nn.Module]) -> str:
    """The first parameters' names, for messages."""
    names = []
    for module in networks.values():
        names.extend(name for name, _ in islice(module.named_parameters(), _SHOWN + 1))
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
