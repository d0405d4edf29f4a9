"""Which parameter gets which settings: every trainable parameter in exactly one group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from drivetrain.optim.recipe import Group, Optimizer
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Parameters:
    """Parameters of one network that share a peak learning rate and a weight decay."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    lr: float
    weight_decay: float


def assign(networks: Mapping[str, nn.Module], settings: Optimizer) -> dict[str, list[Parameters]]:
    """Groups of each network's trainable parameters; the first pattern that matches a dotted name takes it.

    Parameters with fewer than two dimensions (norms, biases) are not decayed unless their group gives a weight decay.
    Raises Failure(78) for a pattern that is no regular expression, or that takes no parameter of any network.
    """
    patterns = [_compile(group) for group in settings.groups]
    taken = [0] * len(patterns)
    result = {}
    for network, module in networks.items():
        buckets: dict[tuple[int, float, float], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            index = next((i for i, pattern in enumerate(patterns) if pattern.search(name)), None)
            if index is not None:
                taken[index] += 1
            key = (-1 if index is None else index, *_rates(parameter, settings, index))
            buckets.setdefault(key, []).append((name, parameter))
        result[network] = [
            Parameters(tuple(n for n, _ in members), tuple(p for _, p in members), lr, decay)
            for (_, lr, decay), members in sorted(buckets.items(), key=lambda item: item[0])
        ]
    _require_all_used(settings.groups, taken, networks)
    return result


def _compile(group: Group) -> re.Pattern[str]:
    try:
        return re.compile(group.match)
    except re.error as error:
        raise Failure(
            Exit.BAD_RECIPE, f"optimizer.groups: {group.match!r} is no regular expression: {error}", "mend the pattern"
        ) from None


def _rates(parameter: nn.Parameter, settings: Optimizer, index: int | None) -> tuple[float, float]:
    group = settings.groups[index] if index is not None else None
    lr = settings.lr if group is None or group.lr is None else group.lr
    if group is not None and group.weight_decay is not None:
        return lr, group.weight_decay
    return lr, settings.weight_decay if parameter.ndim >= 2 else 0.0


def _require_all_used(groups: Sequence[Group], taken: Sequence[int], networks: Mapping[str, nn.Module]) -> None:
    for group, count in zip(groups, taken, strict=True):
        if count == 0:
            names = [name for module in networks.values() for name, _ in module.named_parameters()]
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise Failure(
                Exit.BAD_RECIPE,
                f"optimizer.groups: {group.match!r} takes no trainable parameter",
                f"no name matches, or earlier groups took them all; the parameters are: {shown}",
            )
