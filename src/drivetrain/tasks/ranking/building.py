"""What a recipe's features and labels come to: tables, what is looked up in them, the model over both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from drivetrain.engine.tables.module import Lookup, Table
from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.registry import imported
from drivetrain.tasks.ranking.features import table_of, vocabularies
from drivetrain.tasks.ranking.models import Inputs, Shapes
from drivetrain.tasks.ranking.models import TwoTower as TwoTowers
from drivetrain.tasks.ranking.negatives import Keys
from drivetrain.tasks.ranking.objectives import Objective
from drivetrain.tasks.ranking.programs import Program
from drivetrain.tasks.ranking.recipe import Feature, Ranking, TwoTower


def model_of(settings: Ranking, towers: TwoTower | None) -> nn.Module:
    """The model over what features come to."""
    embedded = {name: settings.dim_of(feature) for name, feature in settings.embedded.items()}
    numbers = {name: feature.width for name, feature in settings.numbers.items()}
    labels = {name: label.outputs for name, label in sorted(settings.labels.items())}
    shapes = Shapes(embedded=embedded, numbers=numbers, labels=labels)
    if isinstance(settings.model, Custom):
        return build_custom(settings.model, shapes=shapes)
    factory = imported(settings.model.factory)
    if towers is None:
        return factory(settings.model, shapes)
    pooling = {name: settings.features[name].pooling for name in towers.item}
    return factory(settings.model, shapes, pooling)


def tables_of(settings: Ranking) -> list[Table]:
    """Each table once, whoever shares it."""
    words = vocabularies(settings.features)
    tables: dict[str, Table] = {}
    for name in settings.embedded:
        table = table_of(settings, name, words.get(name, ()))
        tables[table.name] = table
    return list(tables.values())


def lookups_of(settings: Ranking, towers: TwoTower | None) -> list[Lookup]:
    """Which table each feature reads. What several candidates have of it is pooled by the model."""
    lookups = []
    for name, feature in settings.embedded.items():
        of_candidates = towers is not None and name in towers.item
        lookups.append(Lookup(name, feature.table or name, "none" if of_candidates else feature.pooling))
    return lookups


def programs_of(settings: Ranking, model: nn.Module, objective: Objective) -> list[Program]:
    """What a service is given: one program, or of towers two. A model of your own may look at each id of a list, so it
    has all lists padded, as in training."""
    lookups = {name: Lookup(name, each.table or name, each.pooling) for name, each in settings.embedded.items()}
    if not isinstance(model, TwoTowers):
        whole: set[str] = set()
        if isinstance(settings.model, Custom):
            whole = {name for name, feature in settings.embedded.items() if feature.length is not None}

        def said(inputs: Inputs) -> Mapping[str, Tensor]:
            return objective.said(model(inputs))

        return [Program(settings.features, tuple(lookups.values()), said, frozenset(whole))]
    towers = settings.model
    sides = {"user": (towers.user, model.of_users), "item": (towers.item, model.of_items)}
    programs = []
    for side, (names, vectors) in sides.items():
        own = {name: settings.features[name] for name in sorted(names)}
        looked_up = tuple([lookup for name, lookup in lookups.items() if name in own])
        programs.append(Program(own, looked_up, partial(_named, side, vectors), folder=side))
    return programs


def _named(name: str, made: Callable[[Inputs], Tensor], inputs: Inputs) -> dict[str, Tensor]:
    return {name: made(inputs)}


def keys_of(settings: Ranking, towers: TwoTower | None) -> Keys | None:
    """What negatives are drawn by; None where none are."""
    if towers is None or towers.negatives.kind == "in_batch":
        return None
    arrays: list[str] = []
    for name in towers.item:
        arrays += _arrays_of(name, settings.features[name])
    label = next(iter(settings.labels), None)
    return Keys(
        user=f"ids.{towers.user[0]}",
        item=f"ids.{towers.item[0]}",
        features=tuple(arrays),
        label=None if label is None else f"labels.{label}",
    )


def _arrays_of(name: str, feature: Feature) -> list[str]:
    """The arrays that a feature is encoded as."""
    if feature.is_number:
        return [f"numbers.{name}"]
    if feature.weights is not None:
        return [f"ids.{name}", f"id_weights.{name}"]
    return [f"ids.{name}"]
