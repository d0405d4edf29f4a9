"""What is minimized and scored: labels, each by its own loss, or the choice of the right item among candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from drivetrain.engine.losses import Losses
from drivetrain.loop.metrics import Metric
from drivetrain.tasks.ranking.batches import Batch, weights_of
from drivetrain.tasks.ranking.losses import Choice, choice_losses, drawn_choices, group_choices, label_losses, places
from drivetrain.tasks.ranking.metrics import Average, Scored, label_metric
from drivetrain.tasks.ranking.recipe import Label, Ranking, TwoTower

Outputs = Mapping[str, Tensor]
"""What a network gives of a batch."""


class Objective(Protocol):
    """What a network's outputs are good for."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many samples each loss is a sum over, by the unit that `losses` names."""
        ...

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """Sums over samples."""
        ...

    def metrics(self) -> dict[str, Metric]:
        """Fresh metrics."""
        ...

    def evaluate(self, outputs: Outputs, batch: Batch, metrics: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Add a batch; as `Task.evaluate`."""
        ...

    def said(self, outputs: Outputs) -> dict[str, Tensor]:
        """What is said of each sample, by name."""
        ...


class LabelObjective:
    """Each label by its own loss, all added up. A sample's loss is multiplied by its weight; what they are averaged
    over is the number of samples that have the label."""

    def __init__(self, settings: Ranking) -> None:
        # By name: the order in which a recipe has them must decide no bit.
        self._labels = dict(sorted(settings.labels.items()))

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many samples have each label that not all of them need to have."""
        found = {}
        for name, label in self._labels.items():
            if label.optional:
                found[_unit(name, label)] = int((~batch["labels"][name].isnan()).sum())
        return found

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """The sum of each label's loss over samples, times their weights, by the label's name, "loss" where it is the
        only one."""
        found = {}
        for name, label in self._labels.items():
            each = label_losses(label, outputs[name], batch["labels"][name])
            found[self._called(name, "loss", alone=name)] = _sum(each, batch), _unit(name, label), label.weight
        return Losses(**found)

    def metrics(self) -> dict[str, Metric]:
        """The loss and the metrics of each label: LABEL.METRIC, METRIC where there is one label only."""
        found: dict[str, Metric] = {}
        for name, label in self._labels.items():
            found[self._called(name, "loss")] = Average()
            for metric in label.scored_by:
                found[self._called(name, metric)] = label_metric(metric, label)
        return found

    def evaluate(self, outputs: Outputs, batch: Batch, metrics: Mapping[str, Any]) -> tuple[Any, ...]:
        """Add the samples that have the label. Returns what is said of them and their labels, where there are several
        labels as dicts by label."""
        said, wanted = {}, {}
        weights = weights_of(batch)
        for name, label in self._labels.items():
            there = ~batch["labels"][name].isnan()
            outputs_there, wanted[name] = outputs[name][there].float(), batch["labels"][name][there]
            said[name] = _said(label, outputs_there)
            scored = Scored(
                scores=outputs_there.cpu().numpy(),
                labels=wanted[name].cpu().numpy(),
                weights=_those(weights, there),
                groups=_those(batch.get("groups"), there),
            )
            # In float64, as all that metrics add up.
            losses = label_losses(label, outputs_there, wanted[name]).double().cpu().numpy()
            metrics[self._called(name, "loss")].add(losses, scored.counted)
            for metric in label.scored_by:
                metrics[self._called(name, metric)].add(scored)
        if len(self._labels) == 1:
            (name,) = self._labels
            return said[name], wanted[name]
        return said, wanted

    def said(self, outputs: Outputs) -> dict[str, Tensor]:
        """The probability of yes, those of all classes, or the number, by label."""
        return {name: _said(label, outputs[name].float()) for name, label in self._labels.items()}

    def _called(self, name: str, what: str, alone: str | None = None) -> str:
        """What something of a label is called: by the label too where there are several."""
        if len(self._labels) == 1:
            return what
        return alone or f"{name}.{what}"


class ChoiceObjective:
    """The right item among candidates, by cross-entropy: over all samples or, where there is a label, over those of
    which it says yes."""

    def __init__(self, settings: Ranking, model: TwoTower) -> None:
        self._label = next(iter(settings.labels), None)
        self._model = model

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many samples are learned from."""
        if self._label is None:
            return {}
        return {"chosen": int((batch["labels"][self._label] > 0).sum())}

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """The sum over what was chosen, times the samples' weights."""
        each = torch.cat([choice_losses(choice) for choice in self._choices(outputs, batch)])
        if self._label is None:
            return Losses(loss=(_sum(each, batch), "samples"))
        # Not a product with 0: a loss that is infinite where nobody has chosen would become NaN.
        each = torch.where(batch["labels"][self._label] > 0, each, 0.0)
        return Losses(loss=(_sum(each, batch), "chosen"))

    def metrics(self) -> dict[str, Metric]:
        """The loss, and how often the right item is among the best ones."""
        return {"loss": Average(), **{f"recall_{best}": Average() for best in self._model.recall}}

    def evaluate(self, outputs: Outputs, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add what was chosen."""
        choices = list(self._choices(outputs, batch))
        counted = weights_of(batch)
        if counted is None:
            counted = torch.ones_like(outputs["user"][:, 0])
        if self._label is not None:
            counted = torch.where(batch["labels"][self._label] > 0, counted, 0.0)
        each = counted.double().cpu().numpy()
        losses = torch.cat([choice_losses(choice) for choice in choices]).double()
        metrics["loss"].add(losses.cpu().numpy(), each)
        better = torch.cat([places(choice) for choice in choices])
        for best in self._model.recall:
            metrics[f"recall_{best}"].add((better < best).double().cpu().numpy(), each)

    def said(self, outputs: Outputs) -> dict[str, Tensor]:
        """How well user and item suit each other, from -1 to 1, and the vectors of both."""
        user, item = outputs["user"], outputs["item"][:, 0]
        return {"score": (user * item).sum(-1), "user": user, "item": item}

    def _choices(self, outputs: Outputs, batch: Batch) -> Iterator[Choice]:
        model = self._model
        keys = batch["ids"][model.item[0]]
        if model.negatives.kind == "in_batch":
            return group_choices(outputs, keys, model.temperature, model.negatives.group)
        return iter([drawn_choices(outputs, keys, model.temperature)])


def _said(label: Label, outputs: Tensor) -> Tensor:
    """Outputs as probabilities, or as the number that they are."""
    if label.is_binary:
        return outputs.sigmoid()
    return outputs.softmax(-1) if label.loss == "softmax" else outputs


def _sum(losses: Tensor, batch: Batch) -> Tensor:
    weights = weights_of(batch)
    return losses.sum() if weights is None else (losses * weights).sum()


def _unit(name: str, label: Label) -> str:
    """What a label's loss is averaged over."""
    return f"{name}_labels" if label.optional else "samples"


def _those(tensor: Tensor | None, there: Tensor) -> np.ndarray | None:
    """What samples that are there have, on the host; None where there is nothing."""
    return None if tensor is None else tensor[there].cpu().numpy()
