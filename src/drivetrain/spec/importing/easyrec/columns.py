"""The features that a configuration declares, alone and in sequences, and what each is called."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node


@dataclass(frozen=True)
class Column:
    """A feature of theirs.

    `name` is what a recipe calls it, `key` what the model's groups there do; `kind` is its message's field without
    `sequence_`. `prefix` is that of the sequence it is grouped in, whose message is `group`. `is_list`: a sample has a
    list of its values.
    """

    name: str
    key: str
    node: Node
    kind: str
    prefix: str = ""
    group: Node | None = None
    is_list: bool = False

    @property
    def table(self) -> str:
        """What its table is called there."""
        return self.node.given("embedding_name") or f"{self.key}_emb"

    @property
    def holder(self) -> Node:
        """The message that says how long its lists are."""
        return self.group or self.node

    @property
    def inputs(self) -> Sequence[tuple[str, str]]:
        """The sides and names of what it is made of."""
        parts = []
        for text in self.node.values("expression"):
            side, _, name = text.partition(":")
            parts.append((side, name))
        return parts


def columns_of(reader: Reader, root: Node) -> dict[str, Column]:
    """Every feature, by its key."""
    found: dict[str, Column] = {}
    for config in root.nodes("feature_configs"):
        for column in _of_config(config):
            if column.key in found:
                first = found[column.key].node.line_of("feature_name")
                reader.mistake(column.node, "feature_name", f"{column.key!r} is declared twice, first in line {first}")
            found[column.key] = column
    return found


def plain_name(name: str) -> str:
    """A name of letters, digits and _."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def _of_config(config: Node) -> Iterator[Column]:
    chosen = config.chosen("feature")
    node = config.node(chosen) if chosen else None
    if chosen is None or node is None:
        return
    if chosen != "sequence_feature":
        key = str(node.given("feature_name"))
        kind = chosen.removeprefix("sequence_")
        yield Column(plain_name(key), key, node, kind, is_list=kind != chosen)
        return
    prefix = f"{node.given('sequence_name')}__"
    for part in node.nodes("features"):
        kind = part.chosen("feature")
        inner = part.node(kind) if kind else None
        if kind is not None and inner is not None:
            key = f"{prefix}{inner.given('feature_name')}"
            yield Column(plain_name(key), key, inner, kind, prefix, node, is_list=True)
