"""The shipped models: DeepFM, MMoE, two towers; all over vectors of ids and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.engine.tables.module import Embeddings
from drivetrain.tasks.ranking import recipe


@dataclass(frozen=True)
class Shapes:
    """What a model is given and has to give, all in the order of the names: how long the vectors of each feature are,
    how many numbers each other feature has, and how many outputs each label wants."""

    embedded: Mapping[str, int]
    numbers: Mapping[str, int]
    labels: Mapping[str, int]

    @property
    def width(self) -> int:
        """All vectors and numbers of a sample together."""
        return sum(self.embedded.values()) + sum(self.numbers.values())


class Inputs(NamedTuple):
    """What a model is given of samples, by feature: `embedded`, [samples, dim], with pooling "none" [samples, length,
    dim]; `numbers`, float32 [samples] or [samples, width]; `ids`, as the batch has them."""

    embedded: Mapping[str, Tensor]
    numbers: Mapping[str, Tensor]
    ids: Mapping[str, Tensor]


class Ranker(nn.Module):
    """Tables of vectors, and a model of what they hold of a sample."""

    def __init__(self, embeddings: Embeddings, model: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.model = model

    def forward(
        self, ids: Mapping[str, Tensor], id_weights: Mapping[str, Tensor], numbers: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """What the model gives of a batch's `ids`, `id_weights` and `numbers`."""
        return self.model(Inputs(self.embeddings(ids, id_weights), numbers, ids))


class DeepFM(nn.Module):
    """The products of all pairs of vectors, what is linear in them, and what a deep network makes of them, added up."""

    def __init__(self, settings: recipe.DeepFM, shapes: Shapes) -> None:
        super().__init__()
        self._shapes = shapes
        # All alike: the recipe's own check (`DeepFM.mistakes`) has refused anything else.
        (dim,) = set(shapes.embedded.values())
        self.deep = layers(shapes.width, settings.hidden, settings.dropout)
        self.out = Outputs(settings.hidden[-1] + dim + shapes.width, shapes.labels)

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each label, [samples] or [samples, classes]."""
        vectors = torch.stack([inputs.embedded[name] for name in self._shapes.embedded], dim=1)
        # The sum over all pairs of the products of their numbers: half of (the sum's square - the squares' sum).
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)) / 2
        whole = side_by_side(inputs, self._shapes)
        return self.out(torch.cat([self.deep(whole), pairs, whole], dim=1))


class MMoE(nn.Module):
    """Experts see all of a sample. Each label mixes them by a gate of its own, and has layers of its own behind."""

    def __init__(self, settings: recipe.MMoE, shapes: Shapes) -> None:
        super().__init__()
        self._shapes = shapes
        experts = [layers(shapes.width, settings.expert, settings.dropout) for _ in range(settings.experts)]
        self.experts = nn.ModuleList(experts)
        gates, towers = {}, {}
        for name, outputs in shapes.labels.items():
            gates[name] = nn.Linear(shapes.width, settings.experts)
            behind = layers(settings.expert[-1], settings.tower, settings.dropout)
            towers[name] = nn.Sequential(behind, Outputs(settings.tower[-1], {name: outputs}))
        self.gates = nn.ModuleDict(gates)
        self.towers = nn.ModuleDict(towers)

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each label, [samples] or [samples, classes]."""
        whole = side_by_side(inputs, self._shapes)
        said = torch.stack([expert(whole) for expert in self.experts], dim=1)
        found: dict[str, Tensor] = {}
        for name, gate in self.gates.items():
            mixed = (gate(whole).softmax(-1).unsqueeze(-1) * said).sum(1)
            # A tower's outputs have the label's name already, as those of the other models do.
            found |= self.towers[name](mixed)
        return found


class TwoTower(nn.Module):
    """A network for the user's features, and one for the item's: the better they suit, the larger their product."""

    def __init__(self, settings: recipe.TwoTower, shapes: Shapes, pooling: Mapping[str, str]) -> None:
        """`pooling` says what becomes of the vectors of an item's feature."""
        super().__init__()
        self._key, self._pooling = settings.item[0], dict(pooling)
        self._user, self._item = _only(shapes, settings.user), _only(shapes, settings.item)
        hidden = (*settings.hidden, settings.size)
        self.user = layers(self._user.width, hidden, settings.dropout, last=nn.Identity)
        self.item = layers(self._item.width, hidden, settings.dropout, last=nn.Identity)

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """Vectors of length 1: `user`, [samples, size], and `item`, [samples, candidates, size]."""
        # Where items are drawn, each sample has several: the key has one id for each, however long lists of other
        # features are.
        candidates = inputs.ids[self._key].shape[1]
        embedded = {}
        for name in self._item.embedded:
            embedded[name] = _pooled(inputs.embedded[name], inputs.ids[name], candidates, self._pooling[name])
        return {"user": self.of_users(inputs), "item": self.of_items(inputs._replace(embedded=embedded))}

    def of_users(self, inputs: Inputs) -> Tensor:
        """Vectors of length 1, [..., size], by the features of users."""
        # float32, whatever the precision: of vectors of length 1 half precision leaves too little of a product.
        return F.normalize(self.user(side_by_side(inputs, self._user)).float(), dim=-1)

    def of_items(self, inputs: Inputs) -> Tensor:
        """Vectors of length 1, [..., size], by the features of items, each pooled already."""
        return F.normalize(self.item(side_by_side(inputs, self._item)).float(), dim=-1)


class Outputs(nn.Module):
    """One linear layer for all labels."""

    def __init__(self, width: int, labels: Mapping[str, int]) -> None:
        super().__init__()
        self._labels = dict(labels)
        self.linear = nn.Linear(width, sum(labels.values()))

    def forward(self, hidden: Tensor) -> dict[str, Tensor]:
        """From [samples, width] to each label's [samples] or, where it has several outputs, [samples, outputs]."""
        parts = self.linear(hidden).split(list(self._labels.values()), dim=-1)
        found = {}
        for (name, outputs), part in zip(self._labels.items(), parts, strict=True):
            # No views: where parameters are sharded, one that is changed in place would lose what gathers them.
            found[name] = part.clone() if outputs > 1 else part.squeeze(-1).clone()
        return found


def layers(width: int, hidden: Sequence[int], dropout: float, last: type[nn.Module] | None = None) -> nn.Sequential:
    """Linear layers, a ReLU and dropout behind each; behind the last one `last`, if that is given."""
    parts: list[nn.Module] = []
    for number, size in enumerate(hidden, 1):
        parts.append(nn.Linear(width, size))
        if number == len(hidden) and last is not None:
            parts.append(last())
        else:
            parts += [nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*parts)


def side_by_side(inputs: Inputs, shapes: Shapes) -> Tensor:
    """The vectors and numbers that the shapes name, [samples, width], or [samples, candidates, width]."""
    parts = [inputs.embedded[name] for name in shapes.embedded]
    for name, width in shapes.numbers.items():
        numbers = inputs.numbers[name]
        parts.append(numbers.unsqueeze(-1) if width == 1 else numbers)
    return torch.cat(parts, dim=-1)


def linear_flops(network: nn.Module) -> int:
    """FLOPs of the linear layers for one sample, forward and backward: two and four for each weight."""
    # Looked up rows multiply nothing.
    return 6 * sum(part.weight.numel() for part in network.modules() if isinstance(part, nn.Linear))


def _only(shapes: Shapes, names: Iterable[str]) -> Shapes:
    """Those of some features."""
    chosen = set(names)
    embedded = {name: dim for name, dim in shapes.embedded.items() if name in chosen}
    numbers = {name: width for name, width in shapes.numbers.items() if name in chosen}
    return Shapes(embedded, numbers, {})


def _pooled(vectors: Tensor, ids: Tensor, candidates: int, pooling: str) -> Tensor:
    """From each id's vector, [samples, candidates * length, dim], to each candidate's, [samples, candidates, dim]."""
    lists = vectors.unflatten(1, (candidates, -1))
    total = lists.sum(2)
    if pooling == "mean":
        there = (ids >= 0).unflatten(1, (candidates, -1)).sum(2)
        # Places without an id have vectors of zeros, which a sum may have and a mean may not count.
        total = total / there.clamp(min=1).unsqueeze(-1)
    return total
