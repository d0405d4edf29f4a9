"""Groups of features: which of them the model has, and what becomes of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node

_SUFFIX = "a feature has one table, whatever the group: declare it twice, with a table for each"


@dataclass
class Groups:
    """The features of the model, by the names of groups.

    `pooling` says what becomes of a list's vectors, None where the feature itself does; `places` are the field that
    names each feature, and its line. Both are by the feature's name there.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    pooling: dict[str, str | None] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, group: str, node: Node, pooling: str | None) -> None:
        """The features that a message names."""
        for leaf in node.leaves("feature_names"):
            self.names.setdefault(group, []).append(leaf.value)
            self.pooling[leaf.value] = pooling or self.pooling.get(leaf.value)
            self.places.setdefault(leaf.value, (node.key("feature_names"), leaf.line))


def read_groups(reader: Reader, model: Node, kept: bool) -> Groups:
    """All groups that the model reads. `kept`: it is one of its user's own, which gets each vector of a sequence."""
    groups, read = Groups(), _read_by(model)
    for group in model.nodes("feature_groups"):
        name = group.value("group_name") or ""
        if read is not None and name not in read:
            reader.spare_whole(group, "no tower reads it")
            continue
        poolings = _poolings(reader, group, kept)
        sequence = "SEQUENCE" in (group.value("group_type") or "")
        groups.add(name, group, "none" if kept and sequence else None)
        if sequence and not kept:
            reader.lose(group, "group_type", "no shipped model sees each vector of a sequence: they are pooled")
        for inner in group.nodes("sequence_groups"):
            groups.add(name, inner, poolings.get(inner.value("group_name"), "none" if kept else "mean"))
            reader.used(inner, "group_name", "feature_names")
            reader.lose(inner, "embedding_name_suffix", _SUFFIX)
        reader.used(group, "group_name", "feature_names", "group_type")
        reader.lose(group, "embedding_name_suffix", _SUFFIX)
    return groups


def _read_by(model: Node) -> set[str] | None:
    """The groups that two towers read; None where the model reads all."""
    for kind in ("dssm", "dssm_v2"):
        inner = model.node(kind)
        if inner is not None:
            towers = [*inner.nodes("user_tower"), *inner.nodes("item_tower")]
            return {tower.value("input") for tower in towers}
    return None


def _poolings(reader: Reader, group: Node, kept: bool) -> Mapping[str, str]:
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
