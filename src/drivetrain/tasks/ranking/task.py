"""Ranking: models over learned vectors of ids, and over numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.data.columns import Columns
from drivetrain.data.source import Source
from drivetrain.engine.losses import Losses
from drivetrain.engine.tables.module import Embeddings, Lookup, Table
from drivetrain.loop.metrics import Metric
from drivetrain.loop.task import Part, Task
from drivetrain.runtime.mistakes import returned
from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported
from drivetrain.tasks.ranking.batches import Batch, batch_of
from drivetrain.tasks.ranking.features import FeatureEncoder, SideTable, table_of
from drivetrain.tasks.ranking.lookups import open_lookups
from drivetrain.tasks.ranking.models import Ranker, Shapes, linear_flops
from drivetrain.tasks.ranking.negatives import Catalogue, Keys, with_negatives
from drivetrain.tasks.ranking.objectives import ChoiceObjective, LabelObjective, Objective
from drivetrain.tasks.ranking.recipe import Feature, Ranking, TwoTower
from drivetrain.tasks.ranking.vocabularies import vocabularies

Networks = Mapping[str, nn.Module]


class RankingTask(Task):
    """A model of features, trained to foresee labels or to choose the right item."""

    def __init__(self, settings: Ranking) -> None:
        self._settings = settings
        self._towers = settings.model if isinstance(settings.model, TwoTower) else None
        self._objective: Objective = LabelObjective(settings)
        if self._towers is not None:
            self._objective = ChoiceObjective(settings, self._towers)
        self._catalogue: Catalogue | None = None
        self._flops: float | None = None

    def prepare(self, source: Source, part: Part, *, by_length: bool = False) -> Source:
        """Columns as the arrays that features and labels are; for towers, perhaps with items that were not chosen."""
        if not hasattr(source, "encoded"):
            cause = f"task ranking reads columns, and was given a {type(source).__name__}"
            raise Failure(Exit.BAD_RECIPE, cause, "use a source of kind columns or clicks")
        encoded = source.encoded(self._encoder if part != "predict" else self._unlabelled)  # type: ignore[attr-defined]
        keys = self._keys
        if keys is None or part == "predict":
            return encoded
        assert self._towers is not None, "only towers have negatives"
        negatives = self._towers.negatives
        if self._catalogue is None:  # training sources come first
            self._catalogue = Catalogue(encoded, keys, negatives)
        return with_negatives(encoded, self._catalogue, keys, negatives)

    def networks(self) -> dict[str, nn.Module]:
        """Tables and model together, as "model"."""
        _require_free_names(self._settings)
        seed = int(torch.randint(1 << 62, ()))
        embeddings = Embeddings(self._tables(), self._lookups())
        embeddings.draw(seed)
        model = self._model()
        self._flops = float(linear_flops(model))
        return {"model": Ranker(embeddings, model)}

    def collate(self, samples: Sequence[Any]) -> Batch:
        """The batch of a source's columns."""
        assert isinstance(samples, Columns), "`prepare` sees to that"
        return batch_of(samples, self._towers.item if self._towers is not None else ())

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many samples have each label that is optional, or are learned from."""
        return self._objective.counts(batch)

    def loss(self, nets: Networks, batch: Batch) -> Losses:
        """Sums over samples, times their weights."""
        return self._objective.losses(self._outputs(nets, batch), batch)

    def metrics(self) -> dict[str, Metric]:
        """Losses, and what labels or choices are scored by."""
        return self._objective.metrics()

    def evaluate(self, nets: Networks, batch: Batch, metrics: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Add a batch; returns what is said of its samples and their labels, for towers nothing."""
        return self._objective.evaluate(self._outputs(nets, batch), batch, metrics)

    def predict(self, nets: Networks, batch: Batch) -> list[dict[str, Any]]:
        """The number of the row, and what is said of it: for labels by their names; for towers a `score`, and the
        vectors of `user` and `item`."""
        said = {"row": batch["rows"].tolist(), **self._objective.predict(self._outputs(nets, batch))}
        return [dict(zip(said, row, strict=True)) for row in zip(*said.values(), strict=True)]

    def flops_per_sample(self) -> float | None:
        """Those of linear layers; vectors are looked up, not multiplied."""
        return self._flops

    def _outputs(self, nets: Networks, batch: Batch) -> Mapping[str, Tensor]:
        outputs = nets["model"](batch["ids"], batch["id_weights"], batch["numbers"])
        if isinstance(self._settings.model, Custom):
            _require_outputs(nets["model"], outputs, self._settings)
        return outputs

    def _model(self) -> nn.Module:
        settings = self._settings
        shapes = Shapes(
            embedded={name: settings.dim_of(feature) for name, feature in settings.embedded.items()},
            numbers={name: feature.width for name, feature in settings.numbers.items()},
            labels={name: label.outputs for name, label in sorted(settings.labels.items())},
        )
        if isinstance(settings.model, Custom):
            return build_custom(settings.model, shapes=shapes)
        factory = imported(settings.model.factory)
        if self._towers is None:
            return factory(settings.model, shapes)
        pooling = {name: settings.features[name].pooling for name in self._towers.item}
        return factory(settings.model, shapes, pooling)

    def _tables(self) -> list[Table]:
        """Each table once, whoever shares it."""
        words = vocabularies(self._settings.features)
        tables: dict[str, Table] = {}
        for name in self._settings.embedded:
            table = table_of(self._settings, name, words.get(name, ()))
            tables[table.name] = table
        return list(tables.values())

    def _lookups(self) -> list[Lookup]:
        """Which table each feature reads. What several candidates have of it is pooled by the model."""
        lookups = []
        for name, feature in self._settings.embedded.items():
            of_candidates = self._towers is not None and name in self._towers.item
            pooling = "none" if of_candidates else feature.pooling
            lookups.append(Lookup(name, feature.table or name, pooling))
        return lookups

    @property
    def _keys(self) -> Keys | None:
        """What negatives are drawn by; None where none are."""
        towers, settings = self._towers, self._settings
        if towers is None or towers.negatives.kind == "in_batch":
            return None
        arrays = []
        for name in towers.item:
            arrays += _arrays_of(name, settings.features[name])
        label = next(iter(settings.labels), None)
        return Keys(
            user=f"ids.{towers.user[0]}",
            item=f"ids.{towers.item[0]}",
            features=tuple(arrays),
            label=None if label is None else f"labels.{label}",
        )

    @cached_property
    def _encoder(self) -> FeatureEncoder:
        return FeatureEncoder(self._settings, self._sides)

    @cached_property
    def _unlabelled(self) -> FeatureEncoder:
        return FeatureEncoder(self._settings, self._sides, labelled=False)

    @cached_property
    def _sides(self) -> dict[str, SideTable]:
        return open_lookups(self._settings)


def _arrays_of(name: str, feature: Feature) -> list[str]:
    """The arrays that a feature is encoded as."""
    if feature.is_number:
        return [f"numbers.{name}"]
    if feature.weights is not None:
        return [f"ids.{name}", f"id_weights.{name}"]
    return [f"ids.{name}"]


def _require_free_names(settings: Ranking) -> None:
    """Raises Failure(78) where a table or a label is called like something that torch's modules have, such as `type`:
    a part of a network cannot have that name."""
    names = [("features", name, feature.table or name) for name, feature in settings.embedded.items()]
    names += [("labels", name, name) for name in settings.labels]
    for section, name, called in names:
        if hasattr(nn.ParameterDict, called) or hasattr(nn.ModuleDict, called):
            cause = f"task.{section}.{name}: torch's modules have an attribute {called!r}"
            raise Failure(Exit.BAD_RECIPE, cause, f"call it otherwise, and give column: {name}")


def _require_outputs(network: nn.Module, outputs: Any, settings: Ranking) -> None:
    """Raises Failure(70), which names the module's `forward`, where it does not give one tensor for each label."""
    wanted = ", ".join(sorted(settings.labels))
    if not isinstance(outputs, Mapping) or set(outputs) != set(settings.labels):
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        assert isinstance(network, Ranker)
        cause = f"the model gives {found}, and the labels are {wanted}"
        raise returned(
            network.model.forward, cause, "return a dict of logits by label, [samples] or [samples, classes]"
        )
