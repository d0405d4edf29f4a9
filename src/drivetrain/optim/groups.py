"""Which parameter gets which settings: every trainable parameter in exactly one group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from drivetrain.optim.recipe import Group, Muon, Optimizer, Schedule
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Parameters:
    """Parameters of one network that share a peak learning rate, a weight decay and a schedule.

    `schedule` is None where it is the network's; `matrix` is whether Muon takes them.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    lr: float
    weight_decay: float
    schedule: Schedule | None = None
    matrix: bool = False


def assign(networks: Mapping[str, nn.Module], settings: Optimizer) -> dict[str, list[Parameters]]:
    """Groups of each network's trainable parameters; the first pattern that matches a dotted name takes it.

    Parameters with fewer than two dimensions (norms, biases) are not decayed unless their group gives a weight decay.
    Raises Failure(78) for a pattern that is no regular expression, or that takes no parameter of any network, and for
    Muon without a matrix.
    """
    patterns = [_compile("groups", group.match) for group in settings.groups]
    groups = (*settings.groups, Group(match=""))  # index -1: what no pattern takes
    taken = [0] * len(patterns)
    result = {}
    for network, module in networks.items():
        matrices = _matrices(module, settings) if isinstance(settings, Muon) else frozenset()
        buckets: dict[tuple[int, float, float, bool], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            index = next((i for i, pattern in enumerate(patterns) if pattern.search(name)), -1)
            if index >= 0:
                taken[index] += 1
            matrix = parameter in matrices
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
            )
            for (index, lr, decay, matrix), members in sorted(buckets.items(), key=lambda item: item[0])
        ]
    _require_all_used(settings.groups, taken, networks)
    if isinstance(settings, Muon) and not any(part.matrix for parts in result.values() for part in parts):
        raise Failure(
            Exit.BAD_RECIPE,
            f"optimizer: muon takes no weight of {', '.join(networks)}: none is 2-D, no embedding and not of adamw",
            "choose another kind, or a narrower optimizer.adamw",
        )
    return result


def _compile(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Failure(
            Exit.BAD_RECIPE, f"optimizer.{field}: {pattern!r} is no regular expression: {error}", "mend the pattern"
        ) from None


def _rates(parameter: nn.Parameter, settings: Optimizer, group: Group, matrix: bool) -> tuple[float, float]:
    """Peak learning rate and weight decay."""
    lr = settings.peak(matrix) if group.lr is None else group.lr
    if group.weight_decay is not None:
        return lr, group.weight_decay
    return lr, settings.weight_decay if parameter.ndim >= 2 else 0.0


def _matrices(module: nn.Module, settings: Muon) -> frozenset[nn.Parameter]:
    """The weights that Muon takes: 2-D, of no embedding, and no name of theirs (tied ones have several) is AdamW's."""
    pattern = _compile("adamw", settings.adamw)
    embeddings = [m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    others = {parameter for embedding in embeddings for parameter in embedding.parameters(recurse=False)}
    named = list(module.named_parameters(remove_duplicate=False))
    others |= {parameter for name, parameter in named if parameter.ndim != 2 or pattern.search(name)}
    return frozenset(parameter for _, parameter in named) - others


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
