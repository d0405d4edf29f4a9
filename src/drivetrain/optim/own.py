"""Optimizers and schedules of the user's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from drivetrain.optim.recipe import OwnOptimizer, OwnSchedule
from drivetrain.optim.schedules import Factor, Span
from drivetrain.spec.code.blame import is_out_of_memory, own_place, words
from drivetrain.spec.custom import Custom, build_custom, found_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.signatures import takes

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def own_optimizer(settings: OwnOptimizer, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer of the user's own, over these parameter groups.

    Raises Failure(78) where it heeds no learning rate or weight decay, or wants a closure; and what `build_custom`
    raises.
    """
    custom: Custom = settings.own
    factory = found_custom(custom)
    decays = any(group["weight_decay"] for group in groups)
    for name, wanted in (("lr", True), ("weight_decay", decays)):
        if wanted and not takes(factory, name):
            cause = f"{custom.told} takes no {name}, so what the recipe says of it would be without effect"
            raise Failure(Exit.BAD_RECIPE, cause, f"leave optimizer.{name} out, or choose another optimizer")
    if _needs_closure(factory):
        cause = f"{custom.told} computes losses by itself (its step needs a closure), which no step here can give it"
        raise Failure(Exit.BAD_RECIPE, cause, "choose another optimizer")
    built = build_custom(custom, params=list(groups), lr=settings.lr, weight_decay=settings.weight_decay)
    if not hasattr(built, "param_groups"):
        cause = f"{custom.told} has no parameter groups: its constructor does not call super().__init__(params, ...)"
        raise Failure(Exit.BAD_RECIPE, cause, "let it do so")
    return built


def own_schedule(settings: OwnSchedule, span: Span) -> Factor:
    """A schedule of the user's own: a function of the samples consumed and of where the schedule ends (in samples), and
    of the scores so far where it has `every`. Raises Failure(78) in a step where it gives no factor."""
    custom: Custom = settings.own
    built = build_custom(custom)
    factor = getattr(built, "factor", built)
    _require_scores(factor, custom.told, settings)

    def checked(position: int) -> float:
        scores = []
        if settings.every is not None:
            told = span.scores(settings.every, position)
            scores.append({name: list(found) for name, found in told.items()})  # theirs to change
        place = span.place(position)
        value = _plain(factor(place, span.total, *scores))
        if not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
            cause = f"{custom.told} gives {value!r} at {place} samples"
            raise Failure(Exit.BAD_RECIPE, cause, "a schedule gives a factor on the peak learning rate: 0 or more")
        return span.rise(position) * value

    return checked


def refused(optimizer: torch.optim.Optimizer, error: Exception) -> Exception:
    """What the step of an optimizer of the user's own has raised: where none of their code was under way, the failure
    of a class that does not take such weights or gradients (78)."""
    if isinstance(error, Failure) or is_out_of_memory(error) or own_place(error) is not None:
        return error
    kind = type(optimizer)
    cause = f"{kind.__module__}:{kind.__qualname__} cannot make a step: {words(error)}"
    return Failure(Exit.BAD_RECIPE, cause, "choose another optimizer, or other parameters for it")


def _plain(value: Any) -> Any:
    """A number of numpy's, or a tensor of one, as Python's own."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _require_scores(function: Any, kind: str, settings: OwnSchedule) -> None:
    """Raises Failure(78) where a function, or a class's `factor`, is to read scores and has no place for them, or the
    other way round."""
    if isinstance(function, partial):  # of the recipe's arguments, which come after what it is called with
        function = function.func
    try:
        third = next(islice(inspect.signature(function).parameters.values(), 2, None), None)
    except ValueError:  # of what is written in another language nobody can tell
        return
    any_number = third is not None and third.kind is third.VAR_POSITIONAL
    named = third is not None and third.name == "scores"
    if settings.every is not None and not (named or any_number):
        cause = f"{kind} takes no scores, so schedule.every would be without effect"
        raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or let the third parameter be scores")
    if settings.every is None and third is not None and named and not any_number and third.default is third.empty:
        cause = f"{kind} reads scores, and schedule.every does not say how often they are made"
        raise Failure(Exit.BAD_RECIPE, cause, "give every, such as {epochs: 1}")


def _needs_closure(factory: Any) -> bool:
    parameters = list(inspect.signature(factory.step).parameters.values())
    return len(parameters) > 1 and parameters[1].default is parameters[1].empty and parameters[1].kind not in _ANY
