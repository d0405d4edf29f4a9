"""Losses by sample: of labels, and of candidates among which the right one is to stand out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.tasks.ranking.recipe import Label

_LEAST = 1e-7  # a power of 1 - p has no slope at zero


def label_losses(label: Label, said: Tensor, wanted: Tensor) -> Tensor:
    """The loss of each sample, float32 [samples]; 0 where its label is NaN.

    `said` are logits [samples], of softmax [samples, classes], of mse numbers [samples]; `wanted` float32 [samples].
    """
    said, there = said.float(), ~wanted.isnan()
    wanted = wanted.nan_to_num()
    if label.loss == "softmax":
        found = F.cross_entropy(said, wanted.long(), label_smoothing=label.label_smoothing, reduction="none")
    elif label.loss == "mse":
        found = (said - wanted).square()
    else:
        smoothed = wanted * (1 - label.label_smoothing) + label.label_smoothing / 2
        found = F.binary_cross_entropy_with_logits(said, smoothed, reduction="none")
        if label.loss == "focal":
            found = found * _focus(label, found, wanted)
    return torch.where(there, found, 0.0)


def _focus(label: Label, entropy: Tensor, wanted: Tensor) -> Tensor:
    """What a sample counts whose cross-entropy is this (Lin et al. 2017, "Focal loss for dense object detection")."""
    # 1 - p of what is wanted, since the entropy is -log p.
    focus = (-torch.expm1(-entropy)).clamp(min=_LEAST) ** label.gamma
    if label.alpha is None:
        return focus
    return focus * torch.where(wanted > 0, label.alpha, 1 - label.alpha)


class Choice(NamedTuple):
    """Samples with their candidates: `scores`, float32 [samples, candidates], -inf where there is none, and `right`,
    int64 [samples], which of them is the sample's own."""

    scores: Tensor
    right: Tensor


def drawn_choices(vectors: Mapping[str, Tensor], keys: Tensor, temperature: float) -> Choice:
    """Each sample's own item, the first of its candidates, among those that were drawn for it.

    `vectors` are those of `TwoTower.forward`, `keys`, int64 [samples, candidates], the items' ids, -1 where none was
    there to be drawn. An item that is the sample's own one is not among its negatives.
    """
    none = (keys < 0) | (keys == keys[:, :1])
    none[:, 0] = False
    scores = torch.einsum("ns,ncs->nc", vectors["user"], vectors["item"]) / temperature
    right = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return Choice(scores.masked_fill(none, -torch.inf), right)


def group_choices(vectors: Mapping[str, Tensor], keys: Tensor, temperature: float, group: int) -> Iterator[Choice]:
    """Each sample's own item among those of the `group` samples that it is one of; the last group may be smaller.

    A sample with the same item as another one is not among the other's negatives.
    """
    users, items = vectors["user"].split(group), vectors["item"][:, 0].split(group)
    for user, item, key in zip(users, items, keys[:, 0].split(group), strict=True):
        own = torch.eye(len(user), dtype=torch.bool, device=user.device)
        twice = (key.unsqueeze(0) == key.unsqueeze(1)) & ~own
        scores = (user @ item.T / temperature).masked_fill(twice, -torch.inf)
        yield Choice(scores, torch.arange(len(user), device=user.device))


def choice_losses(choice: Choice) -> Tensor:
    """The cross-entropy of each sample's own item among its candidates, float32 [samples]."""
    return F.cross_entropy(choice.scores, choice.right, reduction="none")


def places(choice: Choice) -> Tensor:
    """How many candidates are no worse than the right one, itself not counted, int64 [samples]: 0 for the best."""
    own = choice.scores.gather(1, choice.right.unsqueeze(1))
    return (choice.scores >= own).sum(1) - 1
