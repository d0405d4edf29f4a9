"""Contradictions between values that are each fine: pure checks on a whole recipe, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from drivetrain.spec.amount import Amount
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom
from drivetrain.spec.tree import Path_


class Contradiction(NamedTuple):
    """A path, what is wrong there, and whether it is a refusal (77)."""

    path: Path_
    message: str
    refused: bool = False


def contradictions(recipe: Recipe) -> list[Contradiction]:
    """All that does not go together. A section that could not be read is None: what depends on it is not checked."""
    checks = (_name, _batch, _sources, _units, _warmup, _best, _blend)
    return [found for check in checks for found in check(recipe)]


def _name(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", recipe.name):
        message = f"{shown(recipe.name)} is refused as a file name: letters, digits, '.', '_', '-', at most 100"
        yield Contradiction(("name",), message, refused=True)
    for name in recipe.data.validation if recipe.data else ():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            path = ("data", "validation", name)
            yield Contradiction(path, "names of validation sets are letters, digits, '_' and '-', at most 64")


def _batch(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.batch is None:
        return
    size, lanes = recipe.batch.size, recipe.lanes
    processes = recipe.launch.processes if recipe.launch else 1
    if recipe.batch.micro is not None and recipe.batch.micro > size:
        yield Contradiction(("batch", "micro"), f"{recipe.batch.micro} is more than batch.size {size}")
    if isinstance(lanes, int) and size % lanes:
        message = f"batch.size {size} is not a multiple of {lanes} lanes; lanes may be {_divisors(size)}"
        yield Contradiction(("lanes",), message)
    shared, what = (lanes, f"{lanes} lanes") if isinstance(lanes, int) else (size, f"batch.size {size}")
    if lanes is not None and shared % processes:
        message = f"{processes} do not share {what}; {_divisors(shared)} would"
        yield Contradiction(("launch", "processes"), message)


def _sources(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.data is None:
        return
    named: dict[Path_, Any] = {("data", "train", "sources", i): s for i, s in enumerate(recipe.data.train.sources)}
    named |= {("data", "validation", name): source for name, source in recipe.data.validation.items()}
    for path, source in named.items():
        without = not isinstance(source, Custom) and getattr(source, "context", 0) is None
        if without and recipe.task is not None:
            yield Contradiction(path, "needs a context (tokens in a sample), since the task gives none")


def source_names(sources: Sequence[Any]) -> list[str]:
    """What training sources are called: their names, or their places."""
    return [source.name or f"source{place}" for place, source in enumerate(sources)]


def _blend(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.data is None:
        return
    train, at = recipe.data.train, ("data", "train")
    names = source_names(train.sources)
    for place, name in enumerate(names):
        if name in names[:place]:
            yield Contradiction((*at, "sources", place), f"another source is called {name!r}")
    contexts = {getattr(source, "context", None) for source in train.sources if not isinstance(source, Custom)}
    if len(contexts) > 1:
        listed = ", ".join(sorted(map(str, contexts), key=lambda text: (len(text), text)))
        yield Contradiction((*at, "sources"), f"sources of one blend have one context, not {listed}")
    if not any(source.weight for source in train.sources):
        yield Contradiction((*at, "sources"), "every weight is 0")
    for place, stage in enumerate(train.stages):
        path = (*at, "stages", place, "weights")
        for unknown in sorted(stage.weights.keys() - set(names)):
            yield Contradiction((*path, unknown), f"no source is called {unknown!r}; there are {', '.join(names)}")
        if not any(stage.weights.values()):
            yield Contradiction(path, "every weight is 0")


def _units(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.task is None or getattr(recipe.task, "tokens_per_sample", None) is not None:
        return
    message = "this task's samples have no fixed number of tokens; use steps, samples or epochs"
    for path, amount in _amounts(recipe):
        if amount.tokens is not None:
            yield Contradiction((*path, "tokens"), message)


def _warmup(recipe: Recipe) -> Iterator[Contradiction]:
    budget = recipe.budget.given if recipe.budget is not None else {}
    for path, amount in _amounts(recipe):
        if path[-1] == "warmup" and amount.given.keys() == budget.keys():
            ((unit, length),) = amount.given.items()
            if length >= budget[unit]:
                yield Contradiction(path, f"a warm-up of {length:g} {unit} in a budget of {budget[unit]:g}")


def _best(recipe: Recipe) -> Iterator[Contradiction]:
    best = recipe.checkpoint.keep_best if recipe.checkpoint else None
    if best is None or recipe.data is None:
        return
    name, slash, metric = best.metric.partition("/")
    if not slash or not metric or name not in recipe.data.validation:
        sets = ", ".join(recipe.data.validation) or "none"
        path = ("checkpoint", "keep_best", "metric")
        yield Contradiction(path, f"is SET/METRIC with a validation set of this recipe: {sets}")


def _amounts(recipe: Recipe) -> Iterator[tuple[Path_, Amount]]:
    """Every amount of a recipe with its path."""
    found: dict[Path_, Any] = {("budget",): recipe.budget}
    for section, name in (("evaluate", "every"), ("checkpoint", "every"), ("checkpoint", "keep_every")):
        found[(section, name)] = getattr(getattr(recipe, section), name, None)
    for place, stage in enumerate(recipe.data.train.stages if recipe.data else ()):
        found[("data", "train", "stages", place, "from")] = stage.from_
    by_network = recipe.schedule if isinstance(recipe.schedule, dict) else {None: recipe.schedule}
    for network, schedule in by_network.items():
        path = ("schedule",) if network is None else ("schedule", network)
        found[(*path, "warmup")] = getattr(schedule, "warmup", None)
    yield from ((path, amount) for path, amount in found.items() if amount is not None)


def _divisors(number: int) -> str:
    """The smallest numbers that divide a number, in words; there are no more than 1024 lanes or processes."""
    found = [str(candidate) for candidate in range(1, min(number, 1024) + 1) if number % candidate == 0]
    return ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
