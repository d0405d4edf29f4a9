"""Metrics of an evaluation: additive states, so that processes and lanes merge in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from drivetrain.loop.metric_states import holds_states, was_updated
from drivetrain.runtime.mistakes import with_place
from drivetrain.spec.code.blame import words
from drivetrain.spec.custom import article
from drivetrain.spec.exits import Exit, Failure

_SINGLE = "give it an average, return one number from `compute`, or a dict, of which each is a metric NAME.KEY"
_ARGUMENTS = "see that it is updated with what it takes"


class Metric(Protocol):
    """What an evaluation needs of a metric: numbers that add up, and what they come to."""

    def state(self) -> list[float]:
        """The numbers gathered by one lane, always as many; they are added up in the order of the lanes."""
        ...

    def merge(self, state: list[float]) -> None:
        """Add another lane's numbers."""
        ...

    def value(self) -> float:
        """The metric itself; NaN where nothing was gathered."""
        ...


class Mean:
    """A weighted mean: total / count * scale."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._total = 0.0
        self._count = 0.0

    def add(self, total: float, count: float) -> None:
        """Add a sum over `count` things."""
        self._total += total
        self._count += count

    def state(self) -> list[float]:
        """Total and count."""
        return [self._total, self._count]

    def merge(self, state: list[float]) -> None:
        """Add another lane's total and count."""
        self.add(*state)

    def value(self) -> float:
        """The mean, NaN where nothing was added."""
        return self._total / self._count * self._scale if self._count else float("nan")


class LossMeans(dict[str, Any]):
    """The mean of each loss by its name. How a task names its losses is known once they were computed, so a mean is
    made for each one that comes."""

    def know(self, names: Iterable[str]) -> None:
        """Have a mean for each of these losses."""
        for name in names:
            self.setdefault(name, Mean())

    def __or__(self, others: Mapping[str, Metric]) -> LossMeans:  # type: ignore[override]
        """These and others: it still takes what losses come."""
        return LossMeans({**self, **others})


def values(metrics: Mapping[str, Any], fresh: Mapping[str, Any], *, few: bool = False) -> dict[str, float]:
    """What metrics come to; empty where none has gathered anything, such as of samples without labels.

    `fresh` are the same as they are made. A mean that was there for a loss of which nothing was heard is left out. One
    that comes to several numbers by name, a dict, is as many metrics: NAME.KEY. `few`: they have seen so few samples
    that one of torchmetrics' may have nothing to compute, which is no mistake. Raises Failure(78) where one cannot be
    computed, or comes to no number, or to several without names.
    """
    found: dict[str, float] = {}
    idle: list[str] = []
    for name, metric in metrics.items():
        told, untouched = {name: math.nan}, _as_made(name, metric, fresh)
        if not (untouched and holds_states(metric)):  # torchmetrics warns of one that was never updated
            told = _told(name, metric, few)
        if untouched and all(map(math.isnan, told.values())):
            idle += told
        found |= told
    if len(idle) == len(found):
        return {}
    if isinstance(metrics, LossMeans):
        for name in idle:
            del found[name]
    return found


class NotComputed(Failure):
    """One of torchmetrics' metrics raised where it was computed."""


def _told(name: str, metric: Any, few: bool) -> dict[str, float]:
    try:
        return numbers(name, computed(name, metric))
    except NotComputed:
        if few:
            return {name: math.nan}
        raise


def computed(name: str, metric: Any) -> Any:
    """What a metric comes to, as it tells it. Raises NotComputed where one of torchmetrics' raises."""
    if not holds_states(metric):
        return metric.value()
    try:
        return metric.compute()
    except Exception as error:
        failure = NotComputed(Exit.BAD_RECIPE, f"the metric {name!r} cannot be computed: {words(error)}", _ARGUMENTS)
        raise with_place(failure, error) from error


def numbers(name: str, told: Any) -> dict[str, float]:
    """What a metric tells, as numbers by name. Raises Failure(78) where it is no number, or several without names."""
    if isinstance(told, Mapping):
        found: dict[str, float] = {}
        for key, part in told.items():
            found |= numbers(f"{name}.{key}", part)
        return found
    try:
        return {name: float(told)}  # also of an array or tensor of one number
    except (TypeError, ValueError, RuntimeError):
        what = type(told).__name__
        if hasattr(told, "shape"):
            what = f"{what} of shape {list(told.shape)}"
        cause = f"the metric {name!r} comes to {article(what)}, which is no single number"
        raise Failure(Exit.BAD_RECIPE, cause, _SINGLE) from None


def _as_made(name: str, metric: Any, fresh: Mapping[str, Any]) -> bool:
    """Whether a metric has gathered nothing."""
    if holds_states(metric):
        return not was_updated(metric)
    return name in fresh and list(metric.state()) == list(fresh[name].state())
