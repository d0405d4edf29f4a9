"""The model: which features it has, its labels with their losses and metrics, and its layers."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.spec.importing.easyrec.columns import Column
from drivetrain.spec.importing.easyrec.groups import Groups
from drivetrain.spec.importing.easyrec.labels import LabelTaker
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node

GROUP = "model"
_MODEL = ("task", "model")
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


class ModelTaker:
    """Takes the model of a configuration, once it is known which features are read."""

    def __init__(self, reader: Reader, root: Node, model: Node, groups: Groups) -> None:
        self._reader = reader
        self._root = root
        self._model = model
        self._groups = groups
        self.kind = model.chosen(GROUP) or ""
        self.labels = LabelTaker(reader, root, model, self.kind)

    @property
    def inner(self) -> Node:
        """The chosen model's own message."""
        node = self._model.node(self.kind)
        assert node is not None, "a chosen field is there"
        return node

    def take(self, columns: Mapping[str, Column]) -> None:
        """The labels, and the model's kind with its layers; `columns` are the features that are read."""
        if self.kind in ("dssm", "dssm_v2"):
            self._take_towers(columns)
            return
        towers = self.inner.nodes("task_towers")
        for tower in towers:
            self.labels.take_tower(tower)
        if not towers:
            self.labels.take_only()
        if self.kind == "deepfm":
            self._take_deepfm()
        elif self.kind == "mmoe":
            self._take_mmoe()
        else:
            what = f"there is no {self.kind}: {NEAREST[self.kind]}, {_OWN}"
            self._reader.gap(self._model, self.kind, (*_MODEL, "kind"), what, "own:Model")
            self._reader.lose_whole(self.inner, f"no model of this kind is shipped; {NEAREST[self.kind]}")

    def _take_deepfm(self) -> None:
        reader, inner = self._reader, self.inner
        reader.take(self._model, "deepfm", (*_MODEL, "kind"), "deepfm")
        self._take_layers(inner.node("deep"), (*_MODEL, "hidden"))
        final = inner.node("final")
        if final is not None:
            reader.lose_whole(final, "one linear layer sees products, numbers and the deep network's output")
        for name in ("wide_embedding_dim", "wide_init_fn"):
            reader.lose(inner, name, "what is linear sees the same vectors as the rest, without a table of its own")
        if len({frozenset(each) for each in self._groups.names.values()}) > 1:
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
        units = given[0].values("hidden_units")
        for other in given[1:]:
            if other.fields.keys() - {"hidden_units"} or other.values("hidden_units") != units:
                reader.lose_whole(other, "all labels have towers of one size: that of the first is taken")
            reader.used(other, "hidden_units")

    def _take_towers(self, columns: Mapping[str, Column]) -> None:
        """DSSM, with both towers."""
        reader, inner = self._reader, self.inner
        reader.take(self._model, self.kind, (*_MODEL, "kind"), "two_tower")
        self._take_similarity(inner)
        for side in ("user", "item"):
            tower = inner.node(f"{side}_tower")
            if tower is None:
                continue
            names = [key for key in self._groups.names.get(tower.value("input"), ()) if key in columns]
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
        paths = {taken.path for taken in self._reader.findings.taken}
        singles = []
        for key in names:
            path = ("task", "features", columns[key].name)
            if (*path, "length") not in paths and (*path, "normalize") not in paths:
                singles.append(key)
        if not singles:
            return None
        sampler = self._sampler()
        wanted = sampler.value("item_id_field") if sampler is not None and side == "item" else None
        first = wanted if wanted in singles else singles[0]
        # The others stay in their order.
        return [columns[key].name for key in sorted(names, key=lambda name: name != first)]

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
        for each in [*self._model.nodes("metrics"), *self._model.nodes("train_metrics")]:
            node = each.node("recall_at_k")
            if node is None:
                inner = each.node(each.chosen("metric") or "recall_at_k")
                if inner is not None:
                    reader.lose_whole(inner, "two_tower is scored by how often the right item is among the best")
                reader.used(each, "decay_step", "decay_rate")
                continue
            found.append(node.value("top_k"))
            if each.type == "TrainMetricConfig":
                self.labels.training.take(each)
            reader.used(node, "top_k")
        if found:
            field = "metrics" if self._model.has("metrics") else "train_metrics"
            reader.take(self._model, field, (*_MODEL, "recall"), sorted(set(found)))
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


_SAMPLED: Mapping[str, str] = {"NegativeSampler": "input_path", "NegativeSamplerV2": "item_input_path"}
"""Samplers that ours come near, with the field that names the items."""
