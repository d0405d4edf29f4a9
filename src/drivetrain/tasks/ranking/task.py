"""Ranking: models over learned vectors of ids, and over numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from drivetrain.checkpoint.export import Exported
from drivetrain.data.columns import Columns
from drivetrain.data.source import ENDLESS, Source
from drivetrain.engine.losses import Losses
from drivetrain.engine.tables.module import Embeddings, Ids
from drivetrain.loop.metrics import Metric
from drivetrain.loop.step import Step
from drivetrain.loop.task import Part, Task
from drivetrain.runtime.mistakes import returned
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.batches import Batch, batch_of
from drivetrain.tasks.ranking.building import keys_of, lookups_of, model_of, programs_of, tables_of
from drivetrain.tasks.ranking.lookups import Encoders
from drivetrain.tasks.ranking.models import Ranker, linear_flops
from drivetrain.tasks.ranking.negatives import Catalogue, with_negatives
from drivetrain.tasks.ranking.objectives import ChoiceObjective, LabelObjective, Objective
from drivetrain.tasks.ranking.pareto import ParetoWeights
from drivetrain.tasks.ranking.programs import Reading, exported, is_of_program, tensors_for_programs
from drivetrain.tasks.ranking.recipe import Ranking, TwoTower

Networks = Mapping[str, nn.Module]


class RankingTask(Task):
    """A model of features, trained to foresee labels or to choose the right item."""

    nulls: tuple[str, ...] = ()
    """Texts that training read as no value: an export takes them for that, too."""

    def __init__(self, settings: Ranking) -> None:
        self._settings = settings
        self._towers = settings.model if isinstance(settings.model, TwoTower) else None
        self._objective: Objective = LabelObjective(settings)
        if self._towers is not None:
            self._objective = ChoiceObjective(settings, self._towers)
        self._weights = _weights_of(settings)
        self._catalogue: Catalogue | None = None
        self._flops: float | None = None
        self._encoders = Encoders(settings)

    def prepare(self, source: Source, part: Part, *, by_length: bool = False) -> Source:
        """Columns as the arrays that features and labels are; for towers, perhaps with items that were not chosen."""
        if not hasattr(source, "encoded"):
            cause = f"task ranking reads columns, and was given a {type(source).__name__}"
            raise Failure(Exit.BAD_RECIPE, cause, "use a source of kind columns, kafka or clicks")
        encoded = source.encoded(self._encoders.get(labelled=part != "predict"))  # type: ignore[attr-defined]
        keys = keys_of(self._settings, self._towers)
        if keys is None or part == "predict":
            return encoded
        assert self._towers is not None, "only towers have negatives"
        if len(encoded) >= ENDLESS:
            cause = "task.model.negatives: items are drawn among those of all training data, and a stream has no end"
            raise Failure(Exit.BAD_RECIPE, cause, "use kind in_batch")
        negatives = self._towers.negatives
        if self._catalogue is None:  # training sources come first
            self._catalogue = Catalogue(encoded, keys, negatives)
        return with_negatives(encoded, self._catalogue, keys, negatives)

    def networks(self) -> dict[str, nn.Module]:
        """Tables and model together, as "model"."""
        _require_free_names(self._settings)
        embeddings = Embeddings(tables_of(self._settings), lookups_of(self._settings, self._towers))
        model = model_of(self._settings, self._towers)
        self._flops = float(linear_flops(model))
        return {"model": Ranker(embeddings, model)}

    def collate(self, samples: Sequence[Any]) -> Batch:
        """The batch of a source's columns."""
        assert isinstance(samples, Columns), "`prepare` sees to that"
        return batch_of(samples, self._towers.item if self._towers is not None else ())

    def lookups(self, batch: Batch) -> dict[str, Ids]:
        """The ids of all features."""
        return {"model": Ids(batch["ids"], batch["id_weights"])}

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many samples have each label that is optional, or are learned from."""
        return self._objective.counts(batch)

    def loss(self, nets: Networks, batch: Batch) -> Losses:
        """Sums over samples, times their weights."""
        return self._objective.losses(self._outputs(nets, batch), batch)

    def update(self, step: Step) -> None:
        """All moves together, by losses that are added up, or weighed by their gradients."""
        step.minimize(step.networks, self.loss, self._weights)

    def metrics(self) -> dict[str, Metric]:
        """Losses, and what labels or choices are scored by."""
        return self._objective.metrics()

    def evaluate(self, nets: Networks, batch: Batch, metrics: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Add a batch; returns what is said of its samples and their labels, for towers nothing."""
        return self._objective.evaluate(self._outputs(nets, batch), batch, metrics)

    def predict(self, nets: Networks, batch: Batch) -> list[dict[str, Any]]:
        """The number of the row, and what is said of it: for labels by their names; for towers a `score`, and the
        vectors of `user` and `item`."""
        said = {"row": batch["rows"].tolist()}
        for name, tensor in self._objective.said(self._outputs(nets, batch)).items():
            said[name] = tensor.tolist()
        return [dict(zip(said, row, strict=True)) for row in zip(*said.values(), strict=True)]

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], list[Exported]]:
        """Programs that score raw values, two where there are towers, each with its weights and features."""

        def programs(tensors: Mapping[str, Tensor]) -> list[Exported]:
            ranker = self.networks()[network]
            assert isinstance(ranker, Ranker), "it is what `networks` makes"
            by = {name: lookup.by for name, lookup in self._settings.lookups.items()}
            encoder = self._encoders.get(labelled=False)
            reading = Reading(encoder.specs, encoder.sides, by, self.nulls)
            made = programs_of(self._settings, ranker.model, self._objective)
            return [exported(ranker, tensors, program, reading) for program in made]

        return programs

    def published_layout(self, network: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """The network's own tensors of an export, which has more for its program."""

        def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            beside = tensors_for_programs(self.networks()[network])
            return {name: each for name, each in tensors.items() if not is_of_program(name) and name not in beside}

        return own

    def flops_per_sample(self) -> float | None:
        """Those of linear layers; vectors are looked up, not multiplied."""
        return self._flops

    def _outputs(self, nets: Networks, batch: Batch) -> Mapping[str, Tensor]:
        outputs = nets["model"](batch["ids"], batch["id_weights"], batch["numbers"])
        if isinstance(self._settings.model, Custom):
            _require_outputs(nets["model"], outputs, self._settings, len(batch["rows"]))
        return outputs


def _weights_of(settings: Ranking) -> ParetoWeights | None:
    """What weighs the labels' losses; None where that is fixed."""
    if settings.weights is None:
        return None
    names = tuple(sorted(settings.labels))
    return ParetoWeights(names, tuple([settings.weights.least.get(name, 0.0) for name in names]))


def _require_free_names(settings: Ranking) -> None:
    """Raises Failure(78) where a label is called like something that torch's modules have, such as `type`: a part of a
    network cannot have that name."""
    for name in settings.labels:
        if hasattr(nn.ModuleDict, name):
            cause = f"task.labels.{name}: torch's modules have an attribute {name!r}"
            raise Failure(Exit.BAD_RECIPE, cause, f"call it otherwise, and give column: {name}")


def _require_outputs(network: nn.Module, outputs: Any, settings: Ranking, samples: int) -> None:
    """Raises Failure(70), which names the module's `forward`, where it does not give one tensor for each label, with as
    many numbers as the label's loss takes of each sample."""
    if cause := _unlike_labels(outputs, settings, samples):
        assert isinstance(network, Ranker)
        hint = "return a dict of logits by label, [samples] or [samples, classes]"
        raise returned(network.model.forward, f"the model gives {cause}", hint)


def _unlike_labels(outputs: Any, settings: Ranking, samples: int) -> str:
    """What of a model's outputs its labels' losses cannot take, and what they would; nothing where they can."""
    if not isinstance(outputs, Mapping) or set(outputs) != set(settings.labels):
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        return f"{found}, and the labels are {', '.join(sorted(settings.labels))}"
    for name, label in settings.labels.items():
        given = outputs[name]
        if not isinstance(given, Tensor):
            return f"a {type(given).__name__} for {name}, and its loss takes a tensor"
        if not given.is_floating_point():
            return f"{str(given.dtype).removeprefix('torch.')} for {name}, and its loss takes floating-point numbers"
        # [samples, 1] beside labels of [samples] would become [samples, samples], and a loss that means nothing.
        wanted = (samples,) if label.outputs == 1 else (samples, label.outputs)
        if given.shape != wanted:
            return f"{list(given.shape)} for {name}, and its loss takes {list(wanted)}"
    return ""
