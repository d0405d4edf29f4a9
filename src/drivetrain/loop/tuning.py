"""Settings that change while a run trains: which may, what a change comes to, and where it takes hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.data.blend import Blend, Stage, coverage
from drivetrain.engine.recipe import waits_of
from drivetrain.optim.updater import Updater, build_updaters, retuned
from drivetrain.spec.affects import bits_digest, differences, leaves
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import Resolved, load
from drivetrain.spec.override import chosen
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.tree import dotted

if TYPE_CHECKING:
    from drivetrain.loop.parts import Parts

_RATES = r"(\.\w+)?(\.groups\[\d+\])?\.(lr|weight_decay|clip)"
_WEIGHT = re.compile(r"data\.train\.sources\[(\d+)\]\.weight")
_SETTABLE = re.compile(rf"optimizer{_RATES}|schedule\b.*|(evaluate|checkpoint)\.every\b.*|{_WEIGHT.pattern}")
SETTABLE = (
    "optimizer's lr, weight_decay and clip, schedule, evaluate.every, checkpoint.every, a training source's weight"
)


class Tuning:
    """The recipe as it stands after every `set`. The run's own recipe, its digest and its directory do not change."""

    def __init__(self, tree: Mapping[str, Any], folder: Path | None, texts: Sequence[str] = ()) -> None:
        """`tree` is the resolved recipe, `folder` that of its own modules, `texts` what was set so far (KEY=VALUE)."""
        self._folder = folder
        self._resolved = load(tree, texts, folder=folder)
        self._tried: tuple[str, Resolved] | None = None  # the last one that was looked at, and what it would come to

    @property
    def recipe(self) -> Recipe:
        """With everything that was set."""
        return self._resolved.recipe

    def effect(self, text: str, parts: Parts, step: int) -> dict[str, Any]:
        """What a `set` after this step comes to, as JSON data; nothing is changed yet.

        Learning rates hold from the next step on. The next step's samples are read already, so other weights hold from
        the one after it on. Raises Failure(78) where the value is wrong, or may not change while a run trains.
        """
        recipe = self._with(text).recipe
        paths = [change.path for change in differences(self.recipe, recipe)]
        if refused := [path for path in paths if not _SETTABLE.fullmatch(path)]:
            raise Failure(Exit.BAD_RECIPE, f"{refused[0]} cannot change while a run trains", f"there are {SETTABLE}")
        effect: dict[str, Any] = {"changed": paths}
        # Also one that the recipe has already, since a stage may say something else.
        named = {*paths, *chosen(self._resolved.tree, text)}
        places = [int(found[1]) for path in named if (found := _WEIGHT.fullmatch(path))]
        if places:
            order, start = parts.feed.order, parts.timetable.scale.batches.span(step + 1)[1]
            if not isinstance(order, Blend):
                raise Failure(Exit.BAD_RECIPE, "the run has one training source, so its weight says nothing", "")
            weights = list(order.weights_at(start))
            for place in places:
                weights[place] = recipe.data.train.sources[place].weight
            if start >= parts.timetable.total:
                raise Failure(Exit.BAD_RECIPE, "the samples of all steps that are left are chosen already", "")
            if not any(weights):
                raise Failure(Exit.BAD_RECIPE, "no training source has a weight above 0", "keep one")
            effect["stage"] = {"start": start, "weights": weights}
        _updaters(recipe, parts)  # raises where groups or schedule cannot be
        return effect

    def apply(self, text: str, effect: Mapping[str, Any], parts: Parts) -> Parts:
        """The parts with the change in them; all ranks do the same."""
        self._resolved, self._tried = self._with(text), None
        parts.engine.updaters.update(retuned(parts.engine.updaters, _updaters(self.recipe, parts)))
        evaluate, commit = self.recipe.evaluate.every, self.recipe.checkpoint.every
        parts = replace(parts, timetable=replace(parts.timetable, evaluate_every=evaluate, commit_every=commit))
        if "stage" not in effect:
            return parts
        order = parts.feed.order
        assert isinstance(order, Blend)
        order = order.staged(stage_of(effect))
        names = list(parts.coverage(0))
        feed = replace(parts.feed, order=order)
        return replace(parts, feed=feed, coverage=partial(coverage, order, names))

    def _with(self, text: str) -> Resolved:
        if self._tried is None or self._tried[0] != text:
            self._tried = text, load(self._resolved.tree, [text], folder=self._folder)
        return self._tried[1]


def settings_digest(recipe: Recipe) -> str:
    """A digest of what decides bits and of what may be set: a recipe that has another one was changed by hand."""
    settable = {dotted(path): value for path, value, _ in leaves(recipe) if _SETTABLE.fullmatch(dotted(path))}
    content = json.dumps([bits_digest(recipe), settable], sort_keys=True, default=list)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _updaters(recipe: Recipe, parts: Parts) -> dict[str, Updater]:
    timetable = parts.timetable
    networks, waits = parts.engine.networks, waits_of(recipe.networks)
    return build_updaters(networks, recipe.optimizer, recipe.schedule, timetable.total, timetable.scale, waits)


def stage_of(effect: Mapping[str, Any]) -> Stage:
    """The stage of the samples' order that a `set` has begun."""
    return Stage(effect["stage"]["start"], tuple(effect["stage"]["weights"]))
