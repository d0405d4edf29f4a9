"""Which parameter gets which settings: every trainable parameter in exactly one group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from drivetrain.optim.recipe import OUTPUTS, GaLore, GaLoreGroup, Muon, Optimizer, ParameterGroup, Schedule
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Parameters:
    """Parameters of one network that share a peak learning rate, a weight decay and a schedule.

    `schedule` is None where it is the network's; `matrix` is whether Muon takes them, or GaLore projects them;
    `options` are what else the optimizer wants to know of them.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    lr: float
    weight_decay: float
    schedule: Schedule | None = None
    matrix: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


def assign(networks: Mapping[str, nn.Module], settings: Optimizer) -> dict[str, list[Parameters]]:
    """Groups of each network's trainable parameters; the first pattern that matches a dotted name takes it.

    Parameters with fewer than two dimensions (norms, biases) are not decayed unless their group gives a weight decay.
    Raises Failure(78) for a pattern that is no regular expression, or that takes no parameter of any network, for Muon
    and GaLore without a matrix, and for a rank, gap or scale of a group without one.
    """
    patterns = [_compile("groups", group.match) for group in settings.groups]
    groups = (*settings.groups, ParameterGroup(match=""))  # index -1: what no pattern takes
    taken, projected = [0] * len(patterns), [0] * len(groups)
    result = {}
    for network, module in networks.items():
        matrices = _matrices(module, settings)
        buckets: dict[tuple[int, float, float, bool], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            index = next((i for i, pattern in enumerate(patterns) if pattern.search(name)), -1)
            if index >= 0:
                taken[index] += 1
            matrix = parameter in matrices
            projected[index] += matrix
            key = (index, *_rates(parameter, settings, groups[index], matrix), matrix)
            buckets.setdefault(key, []).append((name, parameter))
        result[network] = [
            Parameters(
                names=tuple(n for n, _ in members),
                parameters=tuple(p for _, p in members),
                lr=lr,
                weight_decay=decay,
                schedule=groups[index].schedule,
                matrix=matrix,
                options=settings.options(groups[index]),
            )
            for (index, lr, decay, matrix), members in sorted(buckets.items(), key=lambda item: item[0])
        ]
    _require_all_used(settings.groups, taken, networks)
    if isinstance(settings, (Muon, GaLore)):
        _require_matrices(settings, projected, networks)
    return result


def _compile(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Failure(
            Exit.BAD_RECIPE, f"optimizer.{field}: {pattern!r} is no regular expression: {error}", "mend the pattern"
        ) from None


def _rates(parameter: nn.Parameter, settings: Optimizer, group: ParameterGroup, matrix: bool) -> tuple[float, float]:
    """Peak learning rate and weight decay."""
    lr = settings.peak(matrix) if group.lr is None else group.lr
    if group.weight_decay is not None:
        return lr, group.weight_decay
    return lr, settings.weight_decay if parameter.ndim >= 2 else 0.0


def _matrices(module: nn.Module, settings: Optimizer) -> frozenset[nn.Parameter]:
    """The weights that Muon takes, or that GaLore projects."""
    if isinstance(settings, Muon):
        return _hidden(module, _compile("adamw", settings.adamw))
    if not isinstance(settings, GaLore):
        return frozenset()
    if settings.match is None:
        return _hidden(module, re.compile(OUTPUTS))
    pattern = _compile("match", settings.match)
    named = module.named_parameters(remove_duplicate=False)
    return frozenset(parameter for name, parameter in named if parameter.ndim >= 2 and pattern.search(name))


def _hidden(module: nn.Module, outputs: re.Pattern[str]) -> frozenset[nn.Parameter]:
    """Weights that are 2-D, of no embedding, and of which no name (tied ones have several) is an output layer's."""
    embeddings = [m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    others = {parameter for embedding in embeddings for parameter in embedding.parameters(recurse=False)}
    named = list(module.named_parameters(remove_duplicate=False))
    others |= {parameter for name, parameter in named if parameter.ndim != 2 or outputs.search(name)}
    return frozenset(parameter for _, parameter in named) - others


def _require_matrices(settings: Muon | GaLore, projected: Sequence[int], networks: Mapping[str, nn.Module]) -> None:
    """`projected` counts the matrices of each group, and of what no group takes."""
    if not any(projected) and isinstance(settings, Muon):
        raise Failure(
            Exit.BAD_RECIPE,
            f"optimizer: muon takes no weight of {', '.join(networks)}: none is 2-D, no embedding and not of adamw",
            "choose another kind, or a narrower optimizer.adamw",
        )
    if not any(projected):
        why = "none is 2-D, no embedding and no output layer"
        if isinstance(settings, GaLore) and settings.match is not None:
            why = f"{settings.match!r} matches none with two dimensions or more that trains"
        raise Failure(
            Exit.BAD_RECIPE,
            f"optimizer: galore projects no weight of {', '.join(networks)}: {why}",
            f"mend optimizer.match; the parameters are: {_shown(networks)}",
        )
    for group, count in zip(settings.groups, projected, strict=False):
        if isinstance(group, GaLoreGroup) and not count and (group.rank or group.gap or group.scale):
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
                f"no name matches, or earlier groups took them all; the parameters are: {_shown(networks)}",
            )


def _shown(networks: Mapping[str, nn.Module]) -> str:
    names = [name for module in networks.values() for name, _ in module.named_parameters()]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
