"""Contradictions between values that are each fine: pure checks on a whole recipe, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from drivetrain.spec.amount import Amount
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom

Contradiction = tuple[tuple, str]


def contradictions(recipe: Recipe) -> list[Contradiction]:
    """Paths and messages of all that does not go together."""
    checks = (_name, _batch, _sources, _units, _warmup)
    return [found for check in checks for found in check(recipe)]


def _name(recipe: Recipe) -> Iterator[Contradiction]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", recipe.name):
        yield ("name",), f"{recipe.name!r} is refused as a file name: letters, digits, '.', '_', '-', at most 100"
    for name in recipe.data.validation:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            yield ("data", "validation", name), "names of validation sets are letters, digits, '_' and '-'"


def _batch(recipe: Recipe) -> Iterator[Contradiction]:
    size, lanes, processes = recipe.batch.size, recipe.lanes, recipe.launch.processes
    if recipe.batch.micro is not None and recipe.batch.micro > size:
        yield ("batch", "micro"), f"{recipe.batch.micro} is more than batch.size {size}"
    if lanes == "auto":
        if size % processes:
            yield ("launch", "processes"), f"{processes} do not share batch.size {size}; {_fitting(size)} would"
    else:
        if size % lanes:
            yield ("lanes",), f"batch.size {size} is not a multiple of {lanes} lanes; lanes may be {_fitting(size)}"
        if lanes % processes:
            yield ("launch", "processes"), f"{processes} do not share {lanes} lanes; {_fitting(lanes)} would"


def _sources(recipe: Recipe) -> Iterator[Contradiction]:
    if len(recipe.data.train.sources) > 1:
        yield ("data", "train", "sources"), "one training source in this version"
    named = {("data", "train", "sources", i): source for i, source in enumerate(recipe.data.train.sources)}
    named |= {("data", "validation", name): source for name, source in recipe.data.validation.items()}
    for path, source in named.items():
        if not isinstance(source, Custom) and getattr(source, "context", 0) is None:
            yield path, "needs a context (tokens in a sample), since the task gives none"


def _units(recipe: Recipe) -> Iterator[Contradiction]:
    if getattr(recipe.task, "tokens_per_sample", None) is not None:
        return
    for path, amount in _amounts(recipe):
        if amount.tokens is not None:
            yield (*path, "tokens"), "this task's samples have no fixed number of tokens; use steps, samples or epochs"


def _warmup(recipe: Recipe) -> Iterator[Contradiction]:
    for path, amount in _amounts(recipe):
        if path[-1] == "warmup" and amount.given.keys() == recipe.budget.given.keys():
            ((unit, length),) = amount.given.items()
            if length >= recipe.budget.given[unit]:
                yield path, f"a warm-up of {length:g} {unit} in a budget of {recipe.budget.given[unit]:g}"


def _amounts(recipe: Recipe) -> Iterator[tuple[tuple, Amount]]:
    """Every amount of a recipe with its path."""
    yield ("budget",), recipe.budget
    if recipe.evaluate.every:
        yield ("evaluate", "every"), recipe.evaluate.every
    if recipe.checkpoint.every:
        yield ("checkpoint", "every"), recipe.checkpoint.every
    schedules: dict[tuple, Any] = (
        {("schedule", name): part for name, part in recipe.schedule.items()}
        if isinstance(recipe.schedule, dict)
        else {("schedule",): recipe.schedule}
    )
    for path, schedule in schedules.items():
        if schedule.warmup:
            yield (*path, "warmup"), schedule.warmup


def _fitting(number: int) -> str:
    """The divisors of a number, in words."""
    found = [str(candidate) for candidate in range(1, number + 1) if number % candidate == 0]
    return ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")
