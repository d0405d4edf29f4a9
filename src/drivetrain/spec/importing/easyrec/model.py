"""The model: which features it has, its labels with their losses and metrics, and its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.importing.easyrec.features import Column, plain_name
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.training import SET
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.importing.findings import Gap

GROUP = "model"
_MODEL = ("task", "model")
_LABELS = ("task", "labels")
_OWN = "or a module of yours as module:Name, which gets the same features"
NEAREST: Mapping[str, str] = {
    "dlrm": "nearest is deepfm",
    "multi_tower": "nearest is deepfm",
    "multi_tower_din": "nearest is deepfm, without attention over sequences",
    "mask_net": "nearest is deepfm",
    "wide_and_deep": "nearest is deepfm, which has products of pairs besides",
    "dcn_v1": "nearest is deepfm",
    "dcn_v2": "nearest is deepfm",
    "xdeepfm": "nearest is deepfm, whose products are of pairs",
    "wukong": "nearest is deepfm",
    "simple_multi_task": "nearest is mmoe",
    "dbmtl": "nearest is mmoe, whose labels do not build on each other",
    "ple": "nearest is mmoe, whose experts are all shared",
    "dc2vr": "nearest is mmoe",
    "pepnet": "nearest is mmoe",
    "dat": "nearest is two_tower, without its augmented vectors",
    "mind": "nearest is two_tower, with one vector for a user",
    "rocket_launching": "nearest is deepfm: one model, that learns from no other",
}
"""Models without a kind of ours, with what is near."""
NO_RANKING: Mapping[str, str] = {
    "tdm": "it searches a tree of items that is built beside training",
    "dlrm_hstu": "its samples are histories of users, with several candidates each",
    "ultra_hstu": "its samples are histories of users, with several candidates each",
    "hstu_match": "its samples are histories of users, with several candidates each",
    "sid_rqvae": "it quantizes vectors of items: nothing is ranked",
    "sid_rqkmeans": "it quantizes vectors of items: nothing is ranked",
}
"""Models that are no task of ours."""


@dataclass(frozen=True)
class Groups:
    """The features of the model: in each group, their names there, and what becomes of lists of them."""

    by_name: Mapping[str, list[str]]
    pooling: Mapping[str, str | None]


def read_groups(reader: Reader, model: Node, kept: bool) -> Groups:
    """All groups of features. `kept`: the model is one of its user's own, which gets every vector of a sequence."""
    groups: dict[str, list[str]] = {}
    pooling: dict[str, str | None] = {}
    for group in model.nodes("feature_groups"):
        names = list(group.values("feature_names"))
        poolings = _poolings(reader, group, kept)
        for name in names:
            pooling.setdefault(name, "none" if kept and _is_sequence(group) else None)
        for inner in group.nodes("sequence_groups"):
            own = inner.values("feature_names")
            names += own
            for name in own:
                pooling[name] = poolings.get(inner.value("group_name"), "none" if kept else "mean")
            reader.used(inner, "group_name", "feature_names")
            reader.lose(inner, "embedding_name_suffix", _SUFFIX)
        groups[group.value("group_name")] = names
        reader.used(group, "group_name", "feature_names", "group_type")
        reader.lose(group, "embedding_name_suffix", _SUFFIX)
    return Groups(groups, pooling)


_SUFFIX = "a feature has one table, whatever the group: declare it twice, with a table for each"


def _is_sequence(group: Node) -> bool:
    return "SEQUENCE" in (group.value("group_type") or "")


def _poolings(reader: Reader, group: Node, kept: bool) -> dict[str, str]:
    """What becomes of each of a group's sequences."""
    found: dict[str, str] = {}
    for encoder in group.nodes("sequence_encoders"):
        name = encoder.chosen("seq_module")
        node = encoder.node(name) if name else None
        if name is None or node is None:
            continue
        if name == "pooling_encoder" and node.value("pooling_type") in ("sum", "mean"):
            found[node.value("input")] = node.value("pooling_type")
            reader.used(node, "input", "pooling_type", "name")
            if node.value("max_seq_length"):
                reader.lose(node, "max_seq_length", "a feature's own length says how many ids are read")
            reader.used(node, "max_seq_length")
        else:
            rest = "your model gets each vector" if kept else "a sequence's vectors are averaged"
            found.setdefault(node.value("input"), "none" if kept else "mean")
            reader.lose_whole(node, f"no shipped model has attention over a sequence: {rest}")
    return found


class ModelTaker:
    """Takes the model of a configuration, once it is known which features are read."""

    def __init__(self, reader: Reader, root: Node, model: Node, groups: Groups) -> None:
        self._reader = reader
        self._root = root
        self._model = model
        self._groups = groups
        self.kind = model.chosen(GROUP) or ""
        self.labels: dict[str, str] = {}  # by the names of metrics there, those of ours

    @property
    def inner(self) -> Node:
        """The chosen model's own message."""
        node = self._model.node(self.kind)
        assert node is not None, "a chosen field is there"
        return node

    def take(self, columns: Mapping[str, Column], taken: Iterable[str]) -> None:
        """The labels, and the model's kind with its layers."""
        read = [key for key in taken]
        if self.kind in ("dssm", "dssm_v2"):
            self._take_towers(columns, read)
            return
        towers = self.inner.nodes("task_towers") if "task_towers" in self.inner.fields else []
        if towers:
            for tower in towers:
                self._take_label(tower, tower.value("tower_name"), tower.value("label_name"))
        else:
            self._take_only_label()
        if self.kind == "deepfm":
            self._take_deepfm()
        elif self.kind == "mmoe":
            self._take_mmoe()
        else:
            what = f"there is no {self.kind}: {NEAREST[self.kind]}, {_OWN}"
            self._reader.gap(self._model, self.kind, (*_MODEL, "kind"), what, "own:Model")
            self._reader.lose_whole(self.inner, f"no model of this kind is shipped; {NEAREST[self.kind]}")

    # -- labels

    def _take_only_label(self) -> None:
        """The first of `label_fields`, with the losses and metrics of the whole model."""
        data = self._root.node("data_config")
        named = data.values("label_fields") if data else []
        if not named or data is None:
            what = "none is given: the columns to foresee, each with its loss"
            self._reader.findings.gaps.append(Gap((*_LABELS, "FILL_IN", "loss"), what, "bce"))
            return
        self._reader.used(data, "label_fields")
        self._take_label(self._model, named[0], named[0])
        for other in named[1:]:
            self._reader.lose(
                data, "label_fields", f"{other!r} is nothing that the model foresees; a column needs no word"
            )

    def _take_label(self, node: Node, name: str, column: str | None) -> None:
        """One label; `node` has its losses and metrics."""
        reader = self._reader
        plain = plain_name(name)
        path = (*_LABELS, plain)
        self.labels[name] = plain
        field = "label_name" if node is not self._model else "losses"
        if node is not self._model:
            reader.used(node, "tower_name", "label_name")
        if column and column != plain:
            if node is self._model:
                data = self._root.node("data_config")
                assert data is not None, "it named the label"
                reader.take(data, "label_fields", (*path, "column"), column)
            else:
                reader.take(node, field, (*path, "column"), column)
        loss = self._take_loss(node, path)
        self._take_metrics(node, path, loss)
        if node is not self._model:
            self._take_task(node, path)

    def _take_task(self, tower: Node, path: tuple[str, ...]) -> None:
        """What a task of several has besides."""
        reader = self._reader
        if tower.value("weight") != 1.0:
            reader.take(tower, "weight", (*path, "weight"), tower.value("weight"))
        reader.used(tower, "weight")
        if "sample_weight_name" in tower.fields and tower.has("sample_weight_name"):
            reader.lose(tower, "sample_weight_name", "one column weighs the samples of all labels (task.sample_weight)")
        indicator = tower.value("task_space_indicator_label")
        if indicator:
            what = "a null in an optional label leaves a sample out: write one where the indicator is 0"
            reader.lose(tower, "task_space_indicator_label", what)
            for name in ("in_task_space_weight", "out_task_space_weight"):
                reader.lose(tower, name, "belongs to the indicator")
        reader.used(tower, "task_space_indicator_label", "in_task_space_weight", "out_task_space_weight")

    def _take_loss(self, node: Node, path: tuple[str, ...]) -> str:
        """The loss of a label, by our name."""
        reader = self._reader
        losses = [(each.chosen("loss"), each) for each in node.nodes("losses")]
        named = [(name, each) for name, each in losses if name in _LOSSES]
        for name, each in losses:
            if (name, each) not in named[:1]:
                reader.lose_whole(each, _NO_LOSS.get(name or "", "a label has one loss, and the first one is taken"))
        if self.kind in _MATCH or not named:
            if named:
                reader.spare_whole(named[0][1], "says that every row is a choice; bce learns from the label")
            elif losses:
                reader.gap(node, "losses", (*path, "loss"), "a loss in place of what has none here", "bce")
                return "bce"
            reader.take(node, "losses", (*path, "loss"), "bce")
            return "bce"
        name, holder = named[0]
        assert name is not None, "it is one of those that are known"
        inner, loss = holder.node(name), _LOSSES[name]
        assert inner is not None, "a chosen field is there"
        classes = node.value("num_class")
        reader.take(holder, name, (*path, "loss"), loss)
        for theirs in ("label_smoothing", "gamma", "alpha"):
            if theirs in inner.fields or (loss == "focal" and theirs != "label_smoothing"):
                reader.take(inner, theirs, (*path, theirs), inner.value(theirs))
        if loss == "softmax" and classes > 1:
            reader.take(node, "num_class", (*path, "classes"), classes)
        elif loss == "softmax":
            reader.gap(node, "num_class", (*path, "classes"), "how many classes there are", 2)
        elif classes > 1:
            reader.lose(node, "num_class", f"{loss} has one output")
        reader.used(node, "num_class")
        return loss

    def _take_metrics(self, node: Node, path: tuple[str, ...], loss: str) -> None:
        found: list[str] = []
        for each in node.nodes("metrics"):
            name = each.chosen("metric")
            inner = each.node(name) if name else None
            if name is None or inner is None:
                continue
            ours = self._take_metric(name, inner, loss)
            if ours and ours not in found:
                found.append(ours)
                self._reader.used(each, name)
        if found:
            self._reader.take(node, "metrics", (*path, "metrics"), found)
        for each in node.nodes("train_metrics"):
            self._reader.lose_whole(each, TRAIN_METRICS)

    def _take_metric(self, name: str, node: Node, loss: str) -> str | None:
        """Our name of a metric; None, with a word, where there is none."""
        reader = self._reader
        if name not in _METRICS or loss not in _METRICS[name][1]:
            reader.lose_whole(node, _NO_METRIC.get(name, f"says nothing of {loss} here"))
            return None
        for field, fixed, why in _METRIC_FIELDS.get(name, ()):
            if fixed is None:
                reader.spare(node, field, why)
            elif node.value(field) != fixed:
                reader.lose(node, field, why)
            else:
                reader.used(node, field)
        if name == "grouped_auc":
            self._take_group(node)
        return _METRICS[name][0]

    def _take_group(self, node: Node) -> None:
        reader = self._reader
        for taken in reader.findings.taken:
            if taken.path == ("task", "group"):
                if taken.value != node.value("grouping_key"):
                    reader.lose(node, "grouping_key", f"grouped metrics have one column (task.group): {taken.value!r}")
                reader.used(node, "grouping_key")
                return
        reader.take(node, "grouping_key", ("task", "group"), node.value("grouping_key"))

    # -- layers

    def _take_deepfm(self) -> None:
        reader, inner = self._reader, self.inner
        reader.take(self._model, "deepfm", (*_MODEL, "kind"), "deepfm")
        self._take_layers(inner.node("deep"), (*_MODEL, "hidden"))
        final = inner.node("final")
        if final is not None:
            reader.lose_whole(final, "one linear layer sees products, numbers and the deep network's output")
        for name in ("wide_embedding_dim", "wide_init_fn"):
            reader.lose(inner, name, "what is linear sees the same vectors as the rest, without a table of its own")
        names = {frozenset(each) for each in self._groups.by_name.values()}
        if len(names) > 1:
            group = self._model.nodes("feature_groups")[0]
            reader.lose(group, "feature_names", "all features are in all parts of deepfm: wide, deep and products")

    def _take_mmoe(self) -> None:
        reader, inner = self._reader, self.inner
        reader.take(self._model, "mmoe", (*_MODEL, "kind"), "mmoe")
        reader.take(inner, "num_expert", (*_MODEL, "experts"), inner.value("num_expert"))
        self._take_layers(inner.node("expert_mlp"), (*_MODEL, "expert"))
        gate = inner.node("gate_mlp")
        if gate is not None:
            reader.lose_whole(gate, "a gate is one linear layer")
        towers = [tower.node("mlp") for tower in inner.nodes("task_towers")]
        given = [tower for tower in towers if tower is not None]
        if not given:
            reader.lose(inner, "task_towers", "a label has layers of its own (model.tower)")
            return
        self._take_layers(given[0], (*_MODEL, "tower"), dropout=False)
        for other in given[1:]:
            if other.fields.keys() - {"hidden_units"} or other.values("hidden_units") != given[0].values(
                "hidden_units"
            ):
                reader.lose_whole(other, "all labels have towers of one size: that of the first is taken")
            reader.used(other, "hidden_units")

    def _take_towers(self, columns: Mapping[str, Column], taken: list[str]) -> None:
        """DSSM, with both towers."""
        reader, inner = self._reader, self.inner
        reader.take(self._model, self.kind, (*_MODEL, "kind"), "two_tower")
        self._take_similarity(inner)
        for side in ("user", "item"):
            tower = inner.node(f"{side}_tower")
            if tower is None:
                continue
            names = [key for key in self._groups.by_name.get(tower.value("input"), ()) if key in taken]
            ordered = self._keyed(side, names, columns)
            if ordered is None:
                reader.mistake(
                    tower, "input", f"none of its features is a single id, which would say which {side} it is"
                )
                continue
            reader.take(tower, "input", (*_MODEL, side), ordered, "the first one says which it is")
        user, item = inner.node("user_tower"), inner.node("item_tower")
        layers = user.node("mlp") if user else None
        self._take_layers(layers, (*_MODEL, "hidden"))
        other = item.node("mlp") if item else None
        if other is not None and layers is not None:
            if other.values("hidden_units") != layers.values("hidden_units"):
                reader.lose(other, "hidden_units", "both towers have layers of one size: those of the user are taken")
            reader.used(other, "hidden_units")
        if inner.value("output_dim"):
            reader.take(inner, "output_dim", (*_MODEL, "size"), inner.value("output_dim"))
        self._take_negatives()
        self._take_recall()

    def _keyed(self, side: str, names: list[str], columns: Mapping[str, Column]) -> list[str] | None:
        """Features of a side, first the one that says who or which it is: the sampler's key, or the first single id."""
        singles = []
        for key in names:
            if any(
                taken.path == ("task", "features", columns[key].name, "length") for taken in self._reader.findings.taken
            ):
                continue
            if any(
                taken.path == ("task", "features", columns[key].name, "normalize")
                for taken in self._reader.findings.taken
            ):
                continue
            singles.append(key)
        if not singles:
            return None
        sampler = self._sampler()
        wanted = sampler.value("item_id_field") if sampler is not None and side == "item" else None
        first = wanted if wanted in singles else singles[0]
        return [columns[key].name for key in [first, *(name for name in names if name != first)]]

    def _take_similarity(self, inner: Node) -> None:
        reader = self._reader
        if inner.value("similarity") == "COSINE":
            reader.take(inner, "temperature", (*_MODEL, "temperature"), inner.value("temperature"))
            reader.used(inner, "similarity")
            return
        name = "similarity" if inner.has("similarity") else "user_tower"
        reader.lose(inner, name, "vectors have length 1, and their product is divided by model.temperature (0.1)")
        reader.lose(inner, "temperature", "is for products of vectors that have any length")

    def _sampler(self) -> Node | None:
        data = self._root.node("data_config")
        name = data.chosen("sampler") if data else None
        return data.node(name) if data and name else None

    def _take_negatives(self) -> None:
        reader, data = self._reader, self._root.node("data_config")
        path = (*_MODEL, "negatives")
        if self.inner.value("in_batch_negative"):
            reader.take(self.inner, "in_batch_negative", (*path, "kind"), "in_batch")
            if data is not None:
                note = "the other samples of a process's batch"
                reader.take(data, "batch_size", (*path, "group"), data.value("batch_size"), note)
            lanes = reader.findings.source.processes or 1
            reader.take(self.inner, "in_batch_negative", ("lanes",), lanes, "a group of negatives lies in one lane")
        reader.used(self.inner, "in_batch_negative")
        sampler = self._sampler()
        if sampler is None or self.inner.value("in_batch_negative") or sampler.type not in _SAMPLED:
            return
        items = _SAMPLED[sampler.type]
        note = "by how often an item was chosen in the training data; there by the file's weights"
        reader.take(sampler, items, (*path, "kind"), "popularity", note)
        why = "negatives are drawn for each sample (model.negatives.count, 8); there a batch shares so many"
        reader.lose(sampler, "num_sample", why)
        reader.used(sampler, "item_id_field")
        for name in sampler.fields:
            if name not in (items, "num_sample", "item_id_field"):
                reader.spare(sampler, name, "items, and what is known of them, are those of the training data")

    def _take_recall(self) -> None:
        reader, found = self._reader, []
        for each in self._model.nodes("metrics"):
            node = each.node("recall_at_k")
            if node is None:
                inner = each.node(each.chosen("metric") or "recall_at_k")
                if inner is not None:
                    reader.lose_whole(inner, "two_tower is scored by how often the right item is among the best")
                continue
            found.append(node.value("top_k"))
            reader.used(node, "top_k")
        if found:
            reader.take(self._model, "metrics", (*_MODEL, "recall"), sorted(set(found)))
        for each in self._model.nodes("train_metrics"):
            reader.lose_whole(each, TRAIN_METRICS)
        for each in self._model.nodes("losses"):
            name = each.chosen("loss")
            if name == "softmax_cross_entropy":
                reader.spare_whole(each, "is how two_tower learns")
            else:
                reader.lose_whole(each, "two_tower learns by the cross-entropy over its candidates")
        data = self._root.node("data_config")
        if data is not None:
            reader.spare(data, "label_fields", "every row is a choice, there as here")

    def _take_layers(self, layers: Node | None, path: tuple[str, ...], dropout: bool = True) -> None:
        """Widths of layers, and the dropout behind them."""
        reader = self._reader
        if layers is None:
            return
        units = layers.values("hidden_units")
        if units:
            reader.take(layers, "hidden_units", path, units)
        rates = layers.values("dropout_ratio")
        if dropout and rates:
            if len(set(rates)) > 1:
                reader.lose(layers, "dropout_ratio", f"all layers have one dropout: the first ({rates[0]:g}) is taken")
            reader.take(layers, "dropout_ratio", (*_MODEL, "dropout"), rates[0])
        elif rates and any(rates):
            reader.lose(layers, "dropout_ratio", "the whole model has one dropout (model.dropout)")
        reader.used(layers, "dropout_ratio")


def take_best(reader: Reader, root: Node, labels: Mapping[str, str], kind: str) -> None:
    """The commit that stays for being best, as `export_config` chooses it."""
    node = root.node("export_config")
    if node is None:
        return
    if node.value("exporter_type") != "best":
        reader.spare(node, "exporter_type", "`drivetrain export RUN` takes the newest commit, or --commit STEP")
        for name in ("best_exporter_metric", "metric_larger_is_better"):
            reader.spare(node, name, "exporter_type is not best")
        return
    metric = _metric_of(node.value("best_exporter_metric"), labels, kind)
    if metric is None:
        reader.lose(node, "exporter_type", "the metric is none of ours: say checkpoint.keep_best")
        for name in ("best_exporter_metric", "metric_larger_is_better"):
            reader.lose(node, name, "belongs to that")
        return
    path = ("checkpoint", "keep_best")
    reader.take(node, "best_exporter_metric", (*path, "metric"), f"{SET}/{metric}")
    mode = "max" if node.value("metric_larger_is_better") else "min"
    reader.take(node, "metric_larger_is_better", (*path, "mode"), mode)
    reader.used(node, "exporter_type")


def _metric_of(name: str, labels: Mapping[str, str], kind: str) -> str | None:
    """Our name of a metric as evaluations there have it: NAME, or NAME_TASK where there are several tasks."""
    if kind in ("dssm", "dssm_v2"):
        number = name.removeprefix("recall@")
        return f"recall_{number}" if number.isdigit() else None
    if len(labels) == 1:
        return _METRICS[name][0] if name in _METRICS else None
    for task, label in labels.items():
        stem = name.removesuffix(f"_{task}")
        if stem != name and stem in _METRICS:
            return f"{label}.{_METRICS[stem][0]}"
    return None


_SAMPLED: Mapping[str, str] = {"NegativeSampler": "input_path", "NegativeSamplerV2": "item_input_path"}
"""Samplers that ours come near, with the field that names the items."""
_MATCH = ("dat", "mind")
"""Models that choose among items, and have no kind of ours."""
_YES = ("bce", "focal")
_LOSSES: Mapping[str, str] = {
    "binary_cross_entropy": "bce",
    "binary_focal_loss": "focal",
    "softmax_cross_entropy": "softmax",
    "l2_loss": "mse",
}
_NO_LOSS: Mapping[str, str] = {"jrc_loss": "no loss compares samples of one session (JRC)"}
_METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "auc": ("auc", _YES),
    "multiclass_auc": ("multiclass_auc", ("softmax",)),
    "mean_absolute_error": ("mae", (*_YES, "mse")),
    "mean_squared_error": ("mse", (*_YES, "mse")),
    "accuracy": ("accuracy", (*_YES, "softmax")),
    "grouped_auc": ("grouped_auc", _YES),
    "xauc": ("xauc", (*_YES, "mse")),
    "normalized_entropy": ("normalized_entropy", _YES),
}
"""Metrics by their names there: ours, and the losses of which it says something."""
_NO_METRIC: Mapping[str, str] = {
    "grouped_xauc": "xauc compares all pairs, not those of one group",
    "recall_at_k": "is a metric of two_tower",
}
_METRIC_FIELDS: Mapping[str, tuple[tuple[str, Any, str], ...]] = {
    "auc": (("thresholds", None, "auc is exact, not by thresholds"),),
    "multiclass_auc": (
        ("thresholds", None, "it is exact, not by thresholds"),
        ("average", "macro", "the mean over classes is not weighted"),
    ),
    "accuracy": (("threshold", 0.5, "yes is from 0.5 on"), ("top_k", 1, "the likeliest class is right or not")),
    "xauc": (
        ("sample_ratio", None, "all pairs are compared"),
        ("max_pairs", None, "all pairs are compared"),
        ("in_batch", None, "all pairs are compared"),
    ),
    "normalized_entropy": (("eta", None, "a rate of 0 or 1 has no entropy to divide by, and is told"),),
}
TRAIN_METRICS = "no metrics of training samples yet: losses of every step are in the ledger"
