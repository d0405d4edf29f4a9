"""Settings that change while a run trains: which may, what a change comes to, and where it takes hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from drivetrain.checkpoint.numbers import mark
from drivetrain.checkpoint.recipe import each_init
from drivetrain.data.blend import Blend
from drivetrain.data.orders import stage_of
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import Placement
from drivetrain.engine.recipe import waits_of
from drivetrain.engine.tables.build import RowRates, moved_alone, retune
from drivetrain.ledger.records import Effect, Stage
from drivetrain.loop.progress import Timetable
from drivetrain.loop.reader import Reader
from drivetrain.optim.network_optimizer import NetworkOptimizer, build_network_optimizers, retuned, without_layers
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.affects import bits_digest, differences, leaves, reads_scores
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import Resolved, load
from drivetrain.spec.override import chosen
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.settable import SETTABLE, WEIGHT, is_settable
from drivetrain.spec.tree import dotted


class LiveRecipe:
    """The recipe as it stands after every `set`. The run's own recipe, its digest and its directory do not change."""

    def __init__(self, resolved: Resolved, texts: Sequence[str] = ()) -> None:
        """`texts` is what was set so far (KEY=VALUE). Raises RecipeMistakes (78) where it fits no more."""
        self._folder = resolved.folder
        self._resolved = resolved
        if texts:
            self._resolved = self._load(resolved.tree, texts)
        self._tried: tuple[str, Resolved] | None = None  # the last text that was looked at, and what it would come to

    @property
    def recipe(self) -> Recipe:
        """With everything that was set."""
        return self._resolved.recipe

    def chosen(self, text: str) -> list[str]:
        """The keys that a text names, also those that it leaves as they are."""
        return chosen(self._resolved.tree, text)

    def with_text(self, text: str) -> Recipe:
        """What the recipe would be; nothing is changed yet. Raises RecipeMistakes (78) where the text is wrong."""
        if self._tried is None or self._tried[0] != text:
            self._tried = text, self._load(self._resolved.tree, [text])
        return self._tried[1].recipe

    def accept(self, text: str) -> None:
        """From now on the recipe has this."""
        # Looked at again where another text came in between: what is accepted is what `effect` has told of.
        self.with_text(text)
        assert self._tried is not None
        (_, self._resolved), self._tried = self._tried, None

    def _load(self, tree: Mapping[str, Any], texts: Sequence[str]) -> Resolved:
        return load(tree, texts, folder=self._folder)


class Tuning:
    """Changes of settings while a run trains: what each comes to, and where it takes hold."""

    def __init__(
        self, live: LiveRecipe, timetable: Timetable, horizon: Horizon, engine: Engine, reader: Reader
    ) -> None:
        self.timetable = timetable
        """With the intervals that were set last."""
        self._live = live
        self._horizon = horizon
        self._engine = engine
        self._reader = reader

    def effect(self, text: str, step: int) -> Effect:
        """What a `set` after this step comes to; nothing is changed yet.

        Learning rates hold from the next step on. The next step's samples are read already, so other weights hold from
        the one after it on. Raises Failure(78) where the value is wrong, or may not change while a run trains.
        """
        recipe = self._live.with_text(text)
        paths = [change.path for change in differences(self._live.recipe, recipe)]
        if refused := [path for path in paths if not is_settable(path)]:
            raise Failure(Exit.BAD_RECIPE, f"{refused[0]} cannot change while a run trains", f"there are {SETTABLE}")
        # Also a weight that the recipe has already, since a stage may say something else.
        weights = self._weights({*paths, *self._live.chosen(text)}, recipe, step)
        stage = None
        if weights:
            stage = Stage(start=self._stage_start(step), weights=tuple(weights))
        self._optimizers_of(recipe)  # raises where groups or schedule cannot be
        return Effect(changed=tuple(paths), stage=stage)

    def apply(self, text: str, effect: Effect, step: int) -> None:
        """Put a change in place after this step; all ranks do the same."""
        self._live.accept(text)
        recipe = self._live.recipe
        optimizers = self._engine.network_optimizers
        optimizers.update(retuned(optimizers, self._optimizers_of(recipe)))
        if tables := self._engine.placement.tables:
            for name in optimizers:
                retune(tables, name, row_rates_of(recipe, name, self._horizon))
        self.timetable = replace(
            self.timetable,
            evaluate_every=recipe.evaluate.every,
            commit_every=recipe.checkpoint.every,
            scores_every=reads_scores(recipe),
        )
        if effect.stage is not None:
            order = self._reader.batches.order
            assert isinstance(order, Blend)
            # The next step's batch is here, and its counts are known to all: the new order begins after it.
            self._reader.change_order(order.staged(stage_of(effect.stage)), step + 2)

    def _optimizers_of(self, recipe: Recipe) -> dict[str, NetworkOptimizer]:
        """Fresh ones, which nothing moves by."""
        engine = self._engine
        return optimizers_of(recipe, engine.networks, self._horizon, engine.placement)

    def end_at(self, step: int) -> None:
        """The budget ends at this step, since the streams do: what is due at the end is due there."""
        self.timetable = replace(self.timetable, steps=step)

    def _weights(self, paths: Iterable[str], recipe: Recipe, step: int) -> list[float]:
        """All sources' weights from the next stage on; none where no weight is set. Raises Failure(78) as `effect`."""
        places = []
        for path in paths:
            match = WEIGHT.fullmatch(path)
            if match:
                places.append(int(match[1]))
        if not places:
            return []
        order, start = self._reader.batches.order, self._stage_start(step)
        if not isinstance(order, Blend):
            raise Failure(Exit.BAD_RECIPE, "the run has one training source, so its weight says nothing", "")
        if not self.timetable.scale.batches.even:
            raise Failure(Exit.BAD_RECIPE, "batch.cost has cut all steps of the run by the weights that it has", "")
        weights = list(order.weights_at(start))
        for place in places:
            weights[place] = recipe.data.train.sources[place].weight
        if start >= self.timetable.total:
            raise Failure(Exit.BAD_RECIPE, "the samples of all steps that are left are chosen already", "")
        if not any(weights):
            raise Failure(Exit.BAD_RECIPE, "no training source has a weight above 0", "keep one")
        return weights

    def _stage_start(self, step: int) -> int:
        """The first position whose sample is not chosen yet, after this step."""
        return self.timetable.scale.batches.span(step + 1)[1]


def optimizers_of(
    recipe: Recipe, networks: Mapping[str, nn.Module], horizon: Horizon, placement: Placement
) -> dict[str, NetworkOptimizer]:
    """The networks' optimizers as a recipe wants them, over what this rank holds. Raises what
    `build_network_optimizers` raises."""
    waits, alone = waits_of(recipe.networks), moved_alone(networks, placement.tables, still_of(recipe, networks))
    layers = {name: network for name, network in networks.items() if name not in alone}
    optimizer, schedule = _without(recipe.optimizer, alone), _without(recipe.schedule, alone)
    built = build_network_optimizers(layers, optimizer, schedule, horizon, waits, placement.parts)
    for name in alone:
        own = recipe.optimizer[name] if isinstance(recipe.optimizer, Mapping) else recipe.optimizer
        built[name] = without_layers(name, own, horizon.since(waits.get(name, 0)))
    built = {name: built[name] for name in networks if name in built}
    for network_optimizer in built.values():
        if network_optimizer.own:
            mark(network_optimizer.optimizer)
    if placement.masters:
        built = {name: replace(each, masters=placement.masters) for name, each in built.items()}
    return built


def _without(section: Any, networks: Collection[str]) -> Any:
    """A section that may be given by network, without that of these."""
    if not isinstance(section, Mapping):
        return section
    return {name: own for name, own in section.items() if name not in networks}


def row_rates_of(recipe: Recipe, network: str, horizon: Horizon) -> RowRates:
    """How a recipe wants a network's rows to move; `horizon` is the run's."""
    schedule = recipe.schedule[network] if isinstance(recipe.schedule, Mapping) else recipe.schedule
    return RowRates(recipe.embeddings, schedule, horizon.since(waits_of(recipe.networks).get(network, 0)))


def still_of(recipe: Recipe, networks: Collection[str]) -> set[str]:
    """Those of the networks of which the recipe freezes all."""
    found = {name for name, own in recipe.networks.items() if own.freeze}
    for each in each_init(recipe.init):
        if each.freeze is True:
            found |= {name for name in networks if each.part in (None, name)}
    return found


def settings_digest(recipe: Recipe) -> str:
    """A digest of what decides bits and of what may be set: a recipe that has another one was changed by hand."""
    found = {dotted(path): value for path, value, _ in leaves(recipe, digested=True)}
    settable = {path: value for path, value in found.items() if is_settable(path)}
    content = json.dumps([bits_digest(recipe), settable], sort_keys=True, default=list)
    return hashlib.sha256(content.encode()).hexdigest()[:12]
