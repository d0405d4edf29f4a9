"""Features: what each column is read as."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.importing.findings import FILL_IN
from drivetrain.spec.tree import Path_

LIST_LENGTH = 64
"""Ids of a list that are read where their file sets no bound."""
_OF_COLUMNS = {"id_feature", "raw_feature", "combo_feature"}
_COMPUTED: Mapping[str, str] = {
    "lookup_feature": "a sample's own map is looked up by another column",
    "match_feature": "a sample's own nested map is looked up by two other columns",
    "expr_feature": "an expression over other columns",
    "overlap_feature": "how many words two columns share",
    "tokenize_feature": "the ids that a tokenizer makes of a text",
    "custom_feature": "what an operator of a library of yours makes of other columns",
    "kv_dot_product": "the dot product of two maps",
    "bool_mask_feature": "a list without what another one masks",
    "combine_feature": "one number of several",
}
"""Kinds that are computed from other columns, with what they are."""


@dataclass(frozen=True)
class Column:
    """A feature of theirs: its name in a recipe, the message that declares it, and its kind without `sequence_`.

    `length` and `separator` are of the list that it is in: the sequence's own, or that of a grouped one.
    """

    name: str
    node: Node
    kind: str
    prefix: str = ""
    sequence: Node | None = None
    is_list: bool = False

    @property
    def table(self) -> str:
        """What its table is called there."""
        return self.node.value("embedding_name") or f"{self.prefix}{self.node.value('feature_name')}_emb"


@dataclass
class Columns:
    """All features of a file: those that are imported, and those that are not, by their names there."""

    found: dict[str, Column] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)


def plain_name(name: str) -> str:
    """A name of letters, digits and _."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def columns_of(root: Node) -> dict[str, Column]:
    """Every feature by its name there."""
    found: dict[str, Column] = {}
    for config in root.nodes("feature_configs"):
        for column in _of_config(config):
            found[f"{column.prefix}{column.node.value('feature_name')}"] = column
    return found


def _of_config(config: Node) -> Iterator[Column]:
    chosen = config.chosen("feature")
    node = config.node(chosen) if chosen else None
    if chosen is None or node is None:
        return
    if chosen == "sequence_feature":
        prefix = f"{node.value('sequence_name')}__"
        for part in node.nodes("features"):
            kind = part.chosen("feature")
            inner = part.node(kind) if kind else None
            if kind is not None and inner is not None:
                name = plain_name(f"{prefix}{inner.value('feature_name')}")
                yield Column(name, inner, kind, prefix, node, True)
        return
    is_list = chosen.startswith("sequence_")
    kind = chosen.removeprefix("sequence_")
    yield Column(plain_name(str(node.value("feature_name"))), node, kind, "", node if is_list else None, is_list)


class FeatureTaker:
    """Takes one feature after the other. `pooling` says what becomes of a list's vectors, by the feature's name there;
    `used` are those that the model's groups name."""

    def __init__(self, reader: Reader, used: Mapping[str, str | None], arrays: Mapping[str, str]) -> None:
        self._reader = reader
        self._used = used
        self._arrays = arrays
        self._frozen = 0
        self.taken: list[str] = []

    def take_all(self, columns: Mapping[str, Column]) -> None:
        """The features of the groups; what else is there is told."""
        reader = self._reader
        tables = Counter(column.table for key, column in columns.items() if key in self._used)
        for key, column in columns.items():
            if column.sequence is not None and column.prefix:
                reader.used(column.sequence, "sequence_name", "sequence_length", "sequence_delim")
                reader.spare(column.sequence, "sequence_pk", "is about serving")
            if column.node.value("stub_type"):
                reader.lose_whole(column.node, "is only a step towards other features: compute those into the data")
            elif key not in self._used:
                reader.spare_whole(column.node, "is in none of the model's groups: not read there either")
            elif column.kind in _OF_COLUMNS or reader.encoded:
                self._take(key, column, tables)
            else:
                what = f"{_COMPUTED[column.kind]}: compute it into a column, and add a feature that reads that"
                reader.lose_whole(column.node, f"is left out. It is {what}")

    def _take(self, key: str, column: Column, tables: Counter[str]) -> None:
        reader, node = self._reader, column.node
        refused = self._refused(column)
        if refused:
            reader.lose_whole(node, f"is left out: {refused}")
            return
        self.taken.append(key)
        path: Path_ = ("task", "features", column.name)
        reader.used(node, "feature_name")
        cross = self._take_column(column, path)
        is_number = self._take_reading(column, path)
        if is_number:
            self._take_number(column, path)
        else:
            self._take_vectors(column, path, tables)
            if not cross:
                self._take_list(key, column, path)

    def _refused(self, column: Column) -> str:
        """Why a feature cannot be read; empty where it can."""
        inputs = column.node.values("expression")
        if self._reader.encoded:
            return ""
        for text in inputs:
            side, _, name = text.partition(":")
            if side in ("feature", "const"):
                return f"its input {text!r} is computed, not a column"
            if not name:
                return f"its input {text!r} is no SIDE:NAME"
        several = column.is_list or (column.kind == "raw_feature" and column.node.value("value_dim") > 1)
        if column.kind == "raw_feature" and column.node.has("boundaries") and several:
            return (
                "boundaries are for single numbers: write the stretches' numbers into the data, and read ids (buckets)"
            )
        if column.kind == "combo_feature":
            if column.is_list:
                return "a cross of lists: compute it into a column"
            if len(inputs) < 2:
                return f"it crosses {len(inputs)} columns: an id_feature reads one"
        return ""

    def _take_column(self, column: Column, path: Path_) -> bool:
        """Where it is read from; whether that is several columns."""
        reader, node = self._reader, column.node
        inputs = [text.partition(":")[2] for text in node.values("expression")]
        name = f"{column.prefix}{node.value('feature_name')}"
        if reader.encoded or reader.fg_mode == "FG_BUCKETIZE" or not inputs:
            reader.used(node, "expression")
            if name != column.name:
                reader.take(node, "feature_name", (*path, "column"), name)
            return False
        if column.kind == "combo_feature":
            reader.take(node, "expression", (*path, "cross"), inputs)
            return True
        fields = node.values("sequence_fields")
        prefix = column.prefix if not fields or inputs[0] in fields else ""
        reader.used(node, "sequence_fields", "expression")
        if f"{prefix}{inputs[0]}" != column.name:
            reader.take(node, "expression", (*path, "column"), f"{prefix}{inputs[0]}")
        return False

    def _take_reading(self, column: Column, path: Path_) -> bool:
        """What its values are; whether they are numbers."""
        reader, node = self._reader, column.node
        if reader.encoded:
            return self._take_encoded(column, path)
        if column.kind == "raw_feature":
            if not node.has("boundaries"):
                return True
            reader.take(node, "boundaries", (*path, "boundaries"), node.values("boundaries"))
            return False
        for name, take in (
            ("zch", self._take_growing),
            ("dynamicemb", self._take_growing),
            ("hash_bucket_size", self._take_hash),
            ("num_buckets", self._take_buckets),
            ("vocab_list", self._take_vocab),
            ("vocab_dict", self._take_vocab),
            ("vocab_file", self._take_vocab),
        ):
            if name in node.fields:
                take(node, name, path)
                break
        else:
            reader.mistake(
                node, "feature_name", "has none of hash_bucket_size, num_buckets, vocab_list, vocab_file, zch"
            )
        return False

    def _take_encoded(self, column: Column, path: Path_) -> bool:
        """Columns of ids that are row numbers already, or of numbers."""
        reader, node = self._reader, column.node
        sizes: list[tuple[str, int]] = []
        for name in ("hash_bucket_size", "num_buckets"):
            if node.has(name):
                sizes.append((name, node.value(name)))
        if node.has("boundaries"):
            sizes.append(("boundaries", len(node.values("boundaries")) + 1))
        if node.has("vocab_list"):
            # Two more there: of the default value, and of all words that are not in the list.
            sizes.append(
                ("vocab_list", len(node.values("vocab_list")) + (0 if node.has("default_bucketize_value") else 2))
            )
        if node.has("vocab_dict"):
            sizes.append(("vocab_dict", max(entry.value("value") or 0 for entry in node.nodes("vocab_dict")) + 2))
        for name in ("zch", "dynamicemb"):
            if node.has(name):
                self._take_growing(node, name, path)
                return False
        if sizes:
            name, size = sizes[0]
            reader.take(node, name, (*path, "buckets"), size, "ids that are rows already (FG_NONE)")
            for other, _ in sizes[1:]:
                reader.used(node, other)
            return False
        if node.has("vocab_file"):
            reader.gap(node, "vocab_file", (*path, "buckets"), "how many rows it has: the file's lines and 2", 2)
            return False
        return True

    def _take_growing(self, node: Node, name: str, path: Path_) -> None:
        """Tables that grow."""
        inner = node.node(name)
        assert inner is not None, "the field is there"
        size = "zch_size" if name == "zch" else "max_capacity"
        self._reader.take(inner, size, (*path, "hash"), inner.value(size), "each id hashed to a row; some share one")
        self._reader.lose_whole(inner, GROWING)
        self._reader.used(node, "hash_bucket_size", "num_buckets", "vocab_list", "vocab_file", "vocab_dict")

    def _take_hash(self, node: Node, name: str, path: Path_) -> None:
        self._reader.take(node, name, (*path, "hash"), node.value(name), "by another hash than there")

    def _take_buckets(self, node: Node, name: str, path: Path_) -> None:
        self._reader.take(node, name, (*path, "buckets"), node.value(name))

    def _take_vocab(self, node: Node, name: str, path: Path_) -> None:
        reader, own = self._reader, (*path, "vocab")
        if name == "vocab_list":
            reader.take(node, name, own, list(dict.fromkeys(node.values(name))))
        elif name == "vocab_file":
            folder = node.value("asset_dir")
            file = f"{folder}/{node.value(name)}" if folder else node.value(name)
            reader.take(node, name, own, file)
            reader.used(node, "asset_dir")
        else:
            words = sorted(node.nodes(name), key=lambda entry: entry.value("value") or 0)
            shared = len({entry.value("value") for entry in words}) < len(words)
            reader.take(node, name, own, [entry.value("key") or "" for entry in words], "in the order of their ids")
            if shared:
                reader.lose(node, name, "words that share an id have a row each here")
            for entry in words:
                reader.used(entry, "key", "value")
        reader.spare(node, "default_bucketize_value", "all other values share a row of their own")

    def _take_number(self, column: Column, path: Path_) -> None:
        reader, node = self._reader, column.node
        if column.is_list and node.value("sequence_length"):
            reader.take(
                node, "sequence_length", (*path, "width"), node.value("sequence_length"), "as a list of numbers"
            )
        elif ((node.fields.get("value_dim") and node.value("value_dim")) or 1) > 1:
            reader.take(node, "value_dim", (*path, "width"), node.value("value_dim"), "the column has lists of numbers")
        if column.sequence is not None and column.prefix:
            length = column.sequence.value("sequence_length")
            reader.take(column.sequence, "sequence_length", (*path, "width"), length, "as a list of numbers")
        reader.used(node, "value_dim")
        self._take_normalizer(node, path)
        default = node.value("fg_encoded_default_value") if reader.encoded else node.value("default_value")
        name = "fg_encoded_default_value" if reader.encoded else "default_value"
        number = _number(default)
        if default and number is None:
            reader.lose(node, name, "in place of a missing number stands a number (default)")
        elif number:
            reader.take(node, name, (*path, "default"), number)
        reader.used(node, name)
        for name in ("autodis", "mlp"):
            inner = node.node(name) if name in node.fields else None
            if inner is not None:
                reader.lose_whole(inner, "the model gets the number, without a vector made of it")
        if "embedding_dim" in node.fields:
            reader.lose(node, "embedding_dim", "the model gets the number, without a vector made of it")

    def _take_normalizer(self, node: Node, path: Path_) -> None:
        reader, own = self._reader, (*path, "normalize")
        text = node.value("normalizer") if "normalizer" in node.fields else None
        if not text or reader.encoded:
            name = "normalizer" if text else "feature_name"
            reader.take(node, name, own, "identity", "computed into the data already (FG_NONE)" if text else "")
            return
        options = dict(part.partition("=")[::2] for part in text.split(","))
        told = {key: _number(value) for key, value in options.items()}
        low, high, std = told.get("min"), told.get("max"), told.get("standard_deviation")
        method = options.get("method")
        if method == "zscore" and std and told.get("mean") is not None:
            reader.take(node, "normalizer", own, {"mean": told["mean"], "std": std})
        elif method == "minmax" and low is not None and high is not None and high > low:
            reader.take(node, "normalizer", own, {"mean": low, "std": high - low}, "less the least, by the range")
        else:
            what = f"{text!r} is none of identity, log1p, {{mean, std}}: choose one, or compute it into the data"
            reader.gap(node, "normalizer", own, what, "identity")

    def _take_vectors(self, column: Column, path: Path_, tables: Counter[str]) -> None:
        """The table of a feature that has one."""
        reader, node = self._reader, column.node
        dim = node.value("embedding_dim")
        if dim:
            reader.take(node, "embedding_dim", (*path, "dim"), dim)
        else:
            reader.mistake(node, "embedding_dim", "is left out, and it says how long its vectors are")
        table = column.table
        shared = tables[table] > 1
        if shared:
            name = "embedding_name" if node.has("embedding_name") else "feature_name"
            reader.take(node, name, (*path, "table"), table, f"shared by {tables[table]} features")
        reader.spare(node, "embedding_name", "no other feature shares it")
        if not node.value("trainable"):
            group = ("embeddings", "groups", self._frozen)
            pattern = f"^{re.escape(table if shared else column.name)}$"
            reader.take(node, "trainable", (*group, "match"), pattern, "does not train: its rate is 0")
            reader.take(node, "trainable", (*group, "optimizer"), {"kind": "sgd", "lr": 0.0})
            self._frozen += 1
        reader.used(node, "trainable")

    def _take_list(self, key: str, column: Column, path: Path_) -> None:
        """Lists: sequences, and ids of which a sample may have several."""
        reader, node = self._reader, column.node
        array = self._arrays.get(key) or self._arrays.get(f"{column.prefix}{_input(node)}")
        many = "value_dim" in node.fields and node.value("value_dim") not in (None, 0, 1)
        separated = node.has("separator") and not reader.encoded
        if not (
            column.is_list or array or many or separated or node.value("weighted")
            if "weighted" in node.fields
            else column.is_list or array or many or separated
        ):
            return
        holder = column.sequence or node
        name = "sequence_length" if column.is_list else "value_dim"
        length = holder.value(name) if name in holder.fields else None
        if length:
            reader.take(holder, name, (*path, "length"), length)
        else:
            where = "separator" if separated else "feature_name"
            reader.take(node, where, (*path, "length"), LIST_LENGTH, "ids of a list that are read")
            reader.lose(node, where, f"lists have no bound there: here the first {LIST_LENGTH} ids are read (length)")
        delimiter = "sequence_delim" if column.is_list else "separator"
        if not array:
            reader.take(holder, delimiter, (*path, "separator"), holder.value(delimiter))
        reader.used(node, "separator", "sequence_delim", "sequence_length", "value_dim")
        pooling = self._used.get(key) or node.value("pooling")
        if pooling not in ("sum", "mean", "none"):
            reader.mistake(node, "pooling", f"is sum or mean, not {pooling!r}")
        else:
            note = "by the encoder of its group" if self._used.get(key) else ""
            reader.take(node, "pooling", (*path, "pooling"), pooling, note)
        if "weighted" in node.fields and node.value("weighted"):
            reader.lose(
                node, "weighted", "an id's weight is in a column of lists of numbers (weights), not behind the id"
            )


GROWING = "no table grows yet: its ids are hashed"


def _input(node: Node) -> str:
    inputs = node.values("expression")
    return inputs[0].partition(":")[2] if inputs else ""


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


__all__ = ["FILL_IN", "LIST_LENGTH", "Column", "FeatureTaker", "columns_of", "plain_name"]
