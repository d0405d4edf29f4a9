"""The metrics of an evaluation, lane by lane: those that the task fills, and those that the recipe has beside them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.loop.metric_states import holds_states, made_ready, packed, put_merged, states_of, unpacked
from drivetrain.loop.metrics import LossMeans, values
from drivetrain.loop.task import Task
from drivetrain.runtime.group import Group
from drivetrain.runtime.mistakes import is_out_of_memory, returned, with_place
from drivetrain.spec.code.blame import place_of, words
from drivetrain.spec.custom import Custom, article, build_custom
from drivetrain.spec.exits import Exit, Failure

_MERGED = "extend torchmetrics.Metric, or have `state`, `merge` and `value` as drivetrain.Metric"
_FED = "let it return what their `update` takes, as a tuple; () where a batch has nothing for them"


@dataclass(frozen=True)
class LaneMetrics:
    """One lane's: `filled` by the task's `evaluate`, `fed` with what that returns."""

    filled: Mapping[str, Any]
    fed: Mapping[str, Any]


class MetricSets:
    """Makes metrics, feeds and merges them: those of a task, and those that a recipe names."""

    def __init__(self, task: Task, customs: Mapping[str, Custom]) -> None:
        """`customs` are the recipe's, by name."""
        self._task = task
        self._customs = customs

    def fresh(self, device: torch.device) -> LaneMetrics:
        """Metrics that have seen nothing, for batches on this device.

        Raises Failure(78) where one cannot be merged, 70 where the task gives no metrics by name, and what
        `build_custom` raises.
        """
        filled = self._task.metrics()
        if not isinstance(filled, Mapping):
            cause = f"the task's metrics gives a {type(filled).__name__}"
            raise returned(self._task.metrics, cause, "return a dict of metrics by name")
        made = LaneMetrics(filled, {name: build_custom(own) for name, own in self._customs.items()})
        for name, metric in (*made.filled.items(), *made.fed.items()):
            if inspect.isclass(metric):
                cause = f"the metric {name!r} is the class {metric.__name__}, and no object of it"
                raise returned(self._task.metrics, cause, f"make one: {metric.__name__}(...)")
            if holds_states(metric):
                made_ready(metric, device)
            elif not all(callable(getattr(metric, method, None)) for method in ("state", "merge", "value")):
                what = article(type(metric).__name__)
                cause = f"the metric {name!r}, {what}, holds nothing that processes could merge"
                raise Failure(Exit.BAD_RECIPE, cause, _MERGED)
        return made

    def feed(self, metrics: LaneMetrics, given: Any) -> None:
        """Give the recipe's metrics what the task's `evaluate` has returned for a batch.

        Raises Failure(78) where it is nothing, or nothing that they take.
        """
        if not metrics.fed:
            return
        if not isinstance(given, tuple):
            what = "nothing" if given is None else f"{article(type(given).__name__)} and no tuple"
            named = ", ".join(f"evaluate.metrics.{name}" for name in metrics.fed)
            cause = f"evaluate of the task {type(self._task).__name__} returns {what}, and {named} is to be fed with it"
            if place := place_of(self._task.evaluate):
                cause += f", at {place}"
            raise Failure(Exit.BAD_RECIPE, cause, _FED)
        for name, metric in metrics.fed.items() if given else ():
            try:
                metric.update(*given)
            except Exception as error:
                raise self._unfed(name, given, error) from error

    def merged(self, lanes: Sequence[LaneMetrics], group: Group, *, speaks: bool) -> LaneMetrics:
        """The metrics of all ranks' lanes, added up in their order. Every rank calls it; one that does not speak has
        scored what another one has.

        Raises Failure(78) where one holds what cannot be sent.
        """
        if group.world == len(lanes) == 1:
            return lanes[0]
        total = self.fresh(torch.device("cpu"))
        own = []
        if speaks:
            own = [{"filled": _states(lane.filled), "fed": _states(lane.fed)} for lane in lanes]
        # Ranks in order, and each one's lanes in order: that is the order of all lanes, however they are shared out.
        states: list[dict[str, Any]] = []
        for message in group.gather_bytes(_packed(own)):
            states += unpacked(message)
        if isinstance(total.filled, LossMeans):  # a lane without samples has heard of no loss
            for lane in states:
                total.filled.know(lane["filled"])
        for part, metrics in (("filled", total.filled), ("fed", total.fed)):
            for name, metric in metrics.items():
                _merge(metric, [lane[part][name] for lane in states if name in lane[part]])
        return total

    def values(self, metrics: LaneMetrics, *, few: bool = False) -> dict[str, float]:
        """What they come to, as `values` tells it. Raises Failure(78) where two are called alike."""
        fresh = self.fresh(torch.device("cpu"))
        filled = values(metrics.filled, fresh.filled, few=few)
        fed = values(metrics.fed, fresh.fed, few=few)
        if twice := sorted(filled.keys() & fed.keys()):
            cause = f"evaluate.metrics.{twice[0]}: the task has a metric of this name"
            raise Failure(Exit.BAD_RECIPE, cause, "give it another name")
        return filled | fed

    def _unfed(self, name: str, given: tuple[Any, ...], error: Exception) -> Exception:
        """What `update` raised, as the failure of this metric to take what it was given."""
        if isinstance(error, Failure) or is_out_of_memory(error):
            return error
        custom = self._customs[name]
        told = ", ".join(map(_described, given))
        cause = f"evaluate.metrics.{name} ({custom.kind}) does not take ({told}): {words(error)}"
        hint = f"that is what evaluate of the task {type(self._task).__name__} returns"
        return with_place(Failure(Exit.BAD_RECIPE, cause, hint), error, custom.folder)


def _states(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _state(metric) for name, metric in metrics.items()}


def _state(metric: Any) -> Any:
    return states_of(metric) if holds_states(metric) else metric.state()


def _packed(states: Any) -> bytes:
    try:
        return packed(states)
    except TypeError as error:
        raise Failure(Exit.BAD_RECIPE, f"metrics cannot be merged: {error}", _MERGED) from error


def _merge(metric: Any, states: Sequence[Any]) -> None:
    if holds_states(metric):
        put_merged(metric, states)
        return
    for state in states:
        metric.merge(state)


def _described(given: Any) -> str:
    return f"{type(given).__name__}{list(given.shape)}" if hasattr(given, "shape") else type(given).__name__
