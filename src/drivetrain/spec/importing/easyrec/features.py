"""Features: where each is read from, what its table is, and what becomes of lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from drivetrain.spec.importing.easyrec.columns import Column
from drivetrain.spec.importing.easyrec.groups import Groups
from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.readings import take_reading
from drivetrain.spec.registry import nearest
from drivetrain.spec.tree import Path_

LIST_LENGTH = 64
"""Ids of a list that are read where the file sets no bound."""
COMPUTED: Mapping[str, str] = {
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


class FeatureTaker:
    """Takes the features that the model's groups name.

    `arrays` are the columns that hold lists.
    """

    def __init__(self, reader: Reader, groups: Groups, arrays: Mapping[str, str]) -> None:
        self._reader = reader
        self._groups = groups
        self._pooling = groups.pooling
        self._arrays = arrays
        self._frozen = 0
        self.taken: dict[str, Column] = {}

    def take_all(self, columns: Mapping[str, Column]) -> None:
        """All features; what is left out is told."""
        reader = self._reader
        # Counted first: whether a table is shared decides what its features say, the first one too.
        tables = Counter(column.table for key, column in columns.items() if key in self._pooling)
        for key, (field, line) in self._groups.places.items():
            if key not in columns:
                near = nearest(key, list(columns))
                reader.findings.mistake(field, line, f"there is no feature {key!r} in feature_configs{near}")
        names: dict[str, str] = {}
        for key, column in columns.items():
            other = names.setdefault(column.name, key)
            if other != key:
                reader.mistake(
                    column.node, "feature_name", f"is {column.name} in a recipe, as {other!r} is: rename one"
                )
            if column.group is not None:
                reader.used(column.group, "sequence_name", "sequence_length", "sequence_delim")
                reader.spare(column.group, "sequence_pk", "is about serving")
            if key not in self._pooling and not column.node.given("stub_type"):
                reader.spare_whole(column.node, "is in none of the model's groups: not read there either")
            elif refused := self._refused(column):
                reader.lose_whole(column.node, f"is left out: {refused}")
            else:
                self._take(column, tables)
                self.taken[key] = column

    def _refused(self, column: Column) -> str:
        """Why a feature is not read; empty where it is."""
        node, into = column.node, "compute it into the data, and add a feature that reads that column"
        if node.given("stub_type"):
            return "it is only a step towards other features"
        # The columns hold what was computed already, so it does not matter of what.
        if self._reader.facts.encoded:
            return ""
        if column.kind in COMPUTED:
            return f"{COMPUTED[column.kind]}; {into}"
        for side, name in column.inputs:
            if side in ("feature", "const") or not name:
                return f"its input {side}:{name} is no column; {into}"
        misfit = self._misfit(column)
        return f"{misfit}; {into}" if misfit else ""

    def _misfit(self, column: Column) -> str:
        """Why a feature of columns has a shape that none of ours has."""
        node = column.node
        if column.kind == "raw_feature" and node.has("boundaries") and (column.is_list or node.value("value_dim") > 1):
            return "boundaries are for single numbers"
        if column.kind == "combo_feature" and column.is_list:
            return "a cross is of single values"
        if column.kind == "combo_feature" and self._reader.facts.raw and len(column.inputs) < 2:
            return f"a cross is of two columns or more, and this of {len(column.inputs)}"
        return ""

    def _take(self, column: Column, tables: Counter[str]) -> None:
        reader, path = self._reader, ("task", "features", column.name)
        reader.used(column.node, "feature_name")
        crossed = self._take_column(column, path)
        if take_reading(reader, column, path):
            return
        self._take_table(column, path, tables[column.table])
        if not crossed and self._is_list(column):
            self._take_list(column, path)

    def _take_column(self, column: Column, path: Path_) -> bool:
        """Where it is read from; whether that is several columns."""
        reader, node = self._reader, column.node
        names = [name for _, name in column.inputs]
        if column.kind == "combo_feature" and reader.facts.raw:
            reader.take(node, "expression", (*path, "cross"), names)
            return True
        # Where features are not computed on the way, a column is called like its feature, whatever the expression says.
        if not reader.facts.raw or not names:
            reader.used(node, "expression")
            if column.key != column.name:
                reader.take(node, "feature_name", (*path, "column"), column.key)
            return False
        fields = node.values("sequence_fields")
        source = names[0]
        if column.prefix and (not fields or source in fields):
            source = f"{column.prefix}{source}"
        reader.used(node, "sequence_fields", "expression")
        if source != column.name:
            reader.take(node, "expression", (*path, "column"), source)
        return False

    def _take_table(self, column: Column, path: Path_, sharing: int) -> None:
        """The table of its vectors; `sharing` features have it."""
        reader, node = self._reader, column.node
        if node.given("embedding_dim"):
            reader.take(node, "embedding_dim", (*path, "dim"), node.value("embedding_dim"))
        else:
            reader.mistake(node, "embedding_dim", "is left out, and it says how long its vectors are")
        table = column.name
        if sharing > 1:
            table = column.table
            name = "embedding_name" if node.has("embedding_name") else "feature_name"
            reader.take(node, name, (*path, "table"), table, f"shared by {sharing} features")
        reader.spare(node, "embedding_name", "no other feature shares it")
        if node.given("trainable") is False:
            # Rows are moved by `embeddings`, where a rate of 0 is what standing still is.
            group: Path_ = ("embeddings", "groups", self._frozen)
            reader.take(node, "trainable", (*group, "match"), f"^{re.escape(table)}$", "does not train: its rate is 0")
            reader.take(node, "trainable", (*group, "optimizer", "kind"), "sgd")
            reader.take(node, "trainable", (*group, "optimizer", "lr"), 0.0)
            self._frozen += 1

    def _array(self, column: Column) -> bool:
        """Whether its column holds lists, by the types of the columns."""
        names = [column.key, *(f"{column.prefix}{name}" for _, name in column.inputs)]
        return any(name in self._arrays for name in names)

    def _is_list(self, column: Column) -> bool:
        """Whether a sample has several ids of it. Of a text that says only its separator, where that is written."""
        node = column.node
        several = (node.given("value_dim") or 0) > 1 or node.given("weighted")
        separated = node.has("separator") and self._reader.facts.raw
        return bool(column.is_list or several or separated or self._array(column))

    def _take_list(self, column: Column, path: Path_) -> None:
        """Sequences, and ids of which a sample may have several."""
        reader, node, holder = self._reader, column.node, column.holder
        name, delimiter = ("sequence_length", "sequence_delim") if column.is_list else ("value_dim", "separator")
        if not column.is_list:
            holder = node
        if holder.given(name):
            reader.take(holder, name, (*path, "length"), holder.value(name))
        else:
            named = "separator" if node.has("separator") else "feature_name"
            reader.take(node, named, (*path, "length"), LIST_LENGTH, "ids of a list that are read")
            reader.lose(node, named, f"lists have no bound there: the first {LIST_LENGTH} ids are read (length)")
        # A column of lists needs no separator; of a text the default counts, which a recipe has to say.
        if not self._array(column):
            reader.take(holder, delimiter, (*path, "separator"), holder.value(delimiter))
        reader.used(node, "separator", "sequence_delim", "sequence_length", "value_dim")
        self._take_pooling(column, path)
        if node.given("weighted"):
            reader.lose(node, "weighted", "an id's weight is in a column of its own (weights), not behind the id")

    def _take_pooling(self, column: Column, path: Path_) -> None:
        chosen, node = self._pooling.get(column.key), column.node
        pooling = chosen or node.value("pooling")
        if pooling not in ("sum", "mean", "none"):
            self._reader.mistake(node, "pooling", f"is sum or mean, not {pooling!r}")
            return
        note = "by the encoder of its group" if chosen else ""
        self._reader.take(node, "pooling", (*path, "pooling"), pooling, note)
