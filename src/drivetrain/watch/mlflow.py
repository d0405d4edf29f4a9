"""MLflow: every parcel is acknowledged, and a point that comes again is the same point to its database."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from drivetrain.spec.exits import Exit
from drivetrain.spec.tree import pairs
from drivetrain.watch.recipe import Mlflow
from drivetrain.watch.tracker_mark import TrackerRow
from drivetrain.watch.trackers import About, require

_METRICS, _PARAMS = 1000, 100  # in one request
_LONGEST_VALUE = 500  # characters of a parameter
_OURS = "drivetrain.id"  # tag by which a run is found again


class MlflowTracker:
    """Numbers are metrics by step, the recipe is parameters, attempts and exits are tags and the run's status."""

    name = "mlflow"
    holds = False

    def __init__(self, settings: Mlflow) -> None:
        """Raises Failure(78) where the package is missing."""
        require("mlflow")
        self.target = f"{settings.uri or os.environ.get('MLFLOW_TRACKING_URI')} {settings.experiment}"
        self._settings = settings
        self._client: Any = None
        self._entities: Any = None
        self._run = ""

    def open(self, about: About) -> int:
        """Find the run by its tag, or make it; complete its parameters."""
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=self._settings.uri)
        name = self._settings.experiment
        if found := self._client.get_experiment_by_name(name):
            experiment = found.experiment_id
        else:
            experiment = self._client.create_experiment(name)
        # Found by our own tag: a request to make it, whose answer was lost, has made it.
        if runs := self._client.search_runs([experiment], f"tags.`{_OURS}` = '{about.id}'", max_results=1):
            run = runs[0]
        else:
            run = self._client.create_run(experiment, tags={_OURS: about.id}, run_name=about.name)
        self._run = run.info.run_id
        # MLflow refuses to change a parameter: only those are sent that it lacks.
        given = {key: text for key, text in _flat(about.config) if key not in run.data.params}
        params = [self._entities.Param(key, text) for key, text in given.items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run, params=params[start : start + _PARAMS])
        return 0

    def send(self, rows: Sequence[TrackerRow]) -> None:
        """Log the rows, then what they say about the run."""
        metrics = []
        for row in rows:
            for name, value in row.values.items():
                metrics.append(self._entities.Metric(_key(name), float(value), round(row.time * 1000), row.step))
        for start in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _METRICS])
        for row in rows:
            for name, text in row.notes.items():
                self._client.set_tag(self._run, f"drivetrain.{name}", text)
            if row.kind == "attempt":
                self._client.update_run(self._run, status="RUNNING")
            elif row.kind == "exit":
                status = _STATUS.get(int(row.values["event/exit"]), "FAILED")
                self._client.set_terminated(self._run, status, end_time=round(row.time * 1000))

    def close(self) -> None:
        """Nothing is held back."""


_STATUS = {int(Exit.DONE): "FINISHED", int(Exit.STOPPED): "KILLED"}


def _key(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)[:250]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of the recipe by dotted path."""
    if isinstance(value, (Mapping, list)) and value:
        for key, part in pairs(value):
            yield from _flat(part, f"{path}.{key}" if path else str(key))
    elif path:
        yield _key(path), str(value)[:_LONGEST_VALUE]
