"""Labels: what each is learned and scored by, and which commit is the best by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.spec.importing.easyrec.columns import plain_name
from drivetrain.spec.importing.easyrec.loss_weights import LossWeights
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.training import SET
from drivetrain.spec.importing.easyrec.training_scores import TrainingScores
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.importing.findings import FILL_IN, Gap
from drivetrain.spec.tree import Path_

LABELS: Path_ = ("task", "labels")
MATCHING = ("dssm", "dssm_v2", "dat", "mind")
"""Models that choose among items: every row is a choice, and none has a label."""
_LOSSES: Mapping[str, str] = {
    "binary_cross_entropy": "bce",
    "binary_focal_loss": "focal",
    "softmax_cross_entropy": "softmax",
    "l2_loss": "mse",
}
_NO_LOSS: Mapping[str, str] = {"jrc_loss": "no loss compares the samples of a session (JRC)"}
_YES = ("bce", "focal")
_METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "auc": ("auc", _YES),
    "multiclass_auc": ("multiclass_auc", ("softmax",)),
    "mean_absolute_error": ("mae", (*_YES, "mse")),
    "mean_squared_error": ("mse", (*_YES, "mse")),
    "accuracy": ("accuracy", (*_YES, "softmax")),
    "grouped_auc": ("grouped_auc", _YES),
    "xauc": ("xauc", (*_YES, "mse")),
    "grouped_xauc": ("grouped_xauc", (*_YES, "mse")),
    "normalized_entropy": ("normalized_entropy", _YES),
}
"""Metrics by their names there: ours, and the losses of which it says something."""
_NO_METRIC: Mapping[str, str] = {
    "recall_at_k": "is a metric of two_tower",
}
_PAIRS = "all pairs are compared"
_OPTIONS: Mapping[str, tuple[tuple[str, Any, str], ...]] = {
    "auc": (("thresholds", None, "auc is exact, not by thresholds"),),
    "multiclass_auc": (
        ("thresholds", None, "it is exact, not by thresholds"),
        ("average", "macro", "the mean over classes is not weighted"),
    ),
    "accuracy": (("threshold", 0.5, "yes is from 0.5 on"), ("top_k", 1, "only the likeliest class counts")),
    "xauc": (("sample_ratio", None, _PAIRS), ("max_pairs", None, _PAIRS), ("in_batch", None, _PAIRS)),
    "grouped_xauc": (("max_pairs_per_group", None, _PAIRS),),
    "normalized_entropy": (("eta", None, "a rate of 0 or 1 has no entropy to divide by, and is told"),),
}
"""Options of metrics, with the value that is how it is here (None: any is), and why."""


class LabelTaker:
    """Takes the labels of a model, and remembers what each is called there."""

    def __init__(self, reader: Reader, root: Node, model: Node, kind: str) -> None:
        self._reader = reader
        self._data = root.node("data_config") or Node("DataConfig", root.line, path="data_config")
        self._model = model
        self._kind = kind
        self._group: str | None = None
        inner = model.node(kind)
        self._weights = LossWeights(reader, model, len(inner.nodes("task_towers")) if inner else 0)
        self.training = TrainingScores(reader)
        self.named: dict[str, str] = {}

    def take_only(self) -> None:
        """The first of `label_fields`, with the losses and metrics of the whole model."""
        fields = self._data.values("label_fields")
        if not fields:
            what = "no label_fields are given: the columns to foresee, each with its loss"
            self._reader.findings.gaps.append(Gap((*LABELS, FILL_IN, "loss"), what, "bce"))
            return
        self._reader.used(self._data, "label_fields")
        self._take(self._model, fields[0], self._data, "label_fields", fields[0])
        for other in fields[1:]:
            self._reader.lose(self._data, "label_fields", f"the model has one label; nothing foresees {other!r}")

    def take_tower(self, tower: Node) -> None:
        """That of one task of several."""
        reader, name = self._reader, tower.given("tower_name") or tower.given("label_name")
        if not name:
            reader.mistake(tower, "tower_name", "is left out, and so is label_name: nothing says what it foresees")
            return
        reader.used(tower, "tower_name", "label_name")
        self._take(tower, name, tower, "label_name", tower.given("label_name"))
        self._weights.take(tower, plain_name(name))
        reader.lose(tower, "sample_weight_name", "one column weighs the samples of all labels (task.sample_weight)")
        if tower.value("task_space_indicator_label"):
            what = "a null in an optional label leaves a sample out: write one where the indicator is 0"
            reader.lose(tower, "task_space_indicator_label", what)
            for name in ("in_task_space_weight", "out_task_space_weight"):
                reader.lose(tower, name, "belongs to the indicator")
        reader.used(tower, "task_space_indicator_label", "in_task_space_weight", "out_task_space_weight")

    def _take(self, node: Node, name: str, source: Node, field: str, column: str | None) -> None:
        """One label. `node` has its losses and metrics, the `field` of `source` its column."""
        label = plain_name(name)
        path = (*LABELS, label)
        self.named[name] = label
        if column and column != label:
            self._reader.take(source, field, (*path, "column"), column)
        self._take_metrics(node, path, self._take_loss(node, path))

    def _take_loss(self, node: Node, path: Path_) -> str:
        """The loss of a label, by our name."""
        reader, chosen = self._reader, None
        for each in node.nodes("losses"):
            name = each.chosen("loss") or ""
            if self._kind in MATCHING:
                reader.spare_whole(each, "says that every row is a choice; here the label says which is one")
            elif name in _LOSSES and chosen is None:
                chosen = each
            else:
                reader.lose_whole(each, _NO_LOSS.get(name, "a label has one loss, the first one"))
        if chosen is not None:
            return self._take_chosen(node, chosen, path)
        if node.has("losses") and self._kind not in MATCHING:
            reader.gap(node, "losses", (*path, "loss"), "a loss in place of what has none here", "bce")
        else:
            reader.take(node, "losses", (*path, "loss"), "bce")
        return "bce"

    def _take_chosen(self, node: Node, holder: Node, path: Path_) -> str:
        reader, name = self._reader, holder.chosen("loss") or ""
        inner, loss = holder.node(name), _LOSSES[name]
        assert inner is not None, "a chosen field is there"
        reader.take(holder, name, (*path, "loss"), loss)
        options = ("gamma", "alpha") if loss == "focal" else tuple(inner.fields)
        for option in options:
            reader.take(inner, option, (*path, option), inner.value(option))
        classes = node.value("num_class")
        if loss == "softmax" and classes > 1:
            reader.take(node, "num_class", (*path, "classes"), classes)
        elif loss == "softmax":
            reader.gap(node, "num_class", (*path, "classes"), "how many classes there are", 2)
        elif classes > 1:
            reader.lose(node, "num_class", f"{loss} has one output")
        reader.used(node, "num_class")
        return loss

    def _take_metrics(self, node: Node, path: Path_, loss: str) -> None:
        """Training samples are scored by all metrics of the label, so it has both kinds."""
        found = [self._metric(each, loss) for each in node.nodes("metrics")]
        for each in node.nodes("train_metrics"):
            metric = self._metric(each, loss)
            found.append(metric)
            if metric is None:
                self._reader.used(each, "decay_step", "decay_rate")
            else:
                self.training.take(each)
        names = [name for name in dict.fromkeys(found) if name is not None]
        if names:
            field = "metrics" if node.has("metrics") else "train_metrics"
            self._reader.take(node, field, (*path, "metrics"), names)

    def _metric(self, holder: Node, loss: str) -> str | None:
        """Our name of a metric; None, and told, where there is none for this loss."""
        name = holder.chosen("metric")
        inner = holder.node(name) if name else None
        if name is None or inner is None:
            return None
        if name in _METRICS and loss in _METRICS[name][1]:
            self._reader.used(holder, name)
            self._take_options(name, inner)
            return _METRICS[name][0]
        self._reader.lose_whole(inner, _NO_METRIC.get(name, f"says nothing of {loss} here"))
        return None

    def _take_options(self, name: str, node: Node) -> None:
        reader = self._reader
        for option, same, why in _OPTIONS.get(name, ()):
            if same is None or node.value(option) == same:
                reader.spare(node, option, why)
            else:
                reader.lose(node, option, why)
        if not name.startswith("grouped_"):
            return
        column = node.value("grouping_key")
        if self._group is None:
            self._group = column
            reader.take(node, "grouping_key", ("task", "group"), column)
        elif self._group != column:
            reader.lose(node, "grouping_key", f"grouped metrics have one column (task.group): {self._group!r}")
        reader.used(node, "grouping_key")


def take_best(reader: Reader, root: Node, named: Mapping[str, str], kind: str) -> None:
    """The commit that stays for being the best, as `export_config` chooses it."""
    node = root.node("export_config")
    if node is None:
        return
    best = node.value("exporter_type") == "best"
    metric = _metric_of(node.value("best_exporter_metric"), named, kind)
    if best and metric is not None:
        path = ("checkpoint", "keep_best")
        mode = "max" if node.value("metric_larger_is_better") else "min"
        reader.take(node, "best_exporter_metric", (*path, "metric"), f"{SET}/{metric}")
        reader.take(node, "metric_larger_is_better", (*path, "mode"), mode)
        reader.used(node, "exporter_type")
    elif best:
        reader.lose(node, "best_exporter_metric", "is no metric of the recipe: say checkpoint.keep_best")
    reader.spare(node, "exporter_type", "`drivetrain export RUN` takes the newest commit, or --commit STEP")
    for name in ("best_exporter_metric", "metric_larger_is_better"):
        reader.spare(node, name, "counts where exporter_type is best")


def _metric_of(name: str, named: Mapping[str, str], kind: str) -> str | None:
    """Our name of a metric as evaluations there have it: NAME, or NAME_TASK where there are several tasks."""
    if kind in ("dssm", "dssm_v2"):
        number = name.removeprefix("recall@")
        return f"recall_{number}" if number.isdigit() else None
    if len(named) == 1:
        return _METRICS[name][0] if name in _METRICS else None
    for task, label in named.items():
        stem = name.removesuffix(f"_{task}")
        if stem != name and stem in _METRICS:
            return f"{label}.{_METRICS[stem][0]}"
    return None
