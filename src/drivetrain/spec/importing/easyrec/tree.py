"""A pipeline configuration as typed messages: what was given, with the line of each value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from drivetrain.spec.importing.easyrec.schema import INTEGERS, OPAQUE, FieldType, default_of, schema
from drivetrain.spec.prototext import Field, Message, Scalar
from drivetrain.spec.registry import nearest
from drivetrain.spec.text import shortened
from drivetrain.spec.tree import Mistake, Origin, Path_, TreeNode, Value

_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_INFINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Leaf:
    """A value and its line, 0 where it comes from the command line. Of an enum it is the name."""

    value: Any
    line: int


@dataclass
class Node:
    """A message: of each field that is given its values, a list of one where it is not repeated.

    `path` is where it stands, such as `train_config.sparse_optimizer`; "" for the whole file.
    """

    type: str
    line: int
    fields: dict[str, list[Node | Leaf]] = field(default_factory=dict)
    path: str = ""

    def has(self, name: str) -> bool:
        """Whether a field is given."""
        return bool(self.fields.get(name))

    def nodes(self, name: str) -> list[Node]:
        """The messages in a repeated field."""
        return [each for each in self.fields.get(name, ()) if isinstance(each, Node)]

    def leaves(self, name: str) -> list[Leaf]:
        """The values of a repeated field, with their lines."""
        return [each for each in self.fields.get(name, ()) if isinstance(each, Leaf)]

    def values(self, name: str) -> list[Any]:
        """The values of a repeated field."""
        return [leaf.value for leaf in self.leaves(name)]

    def value(self, name: str) -> Any:
        """The value of a field; where it is left out what that means, or None."""
        given = self.given(name)
        if given is not None:
            return given
        default = default_of(self.type, name)
        if default is None or not isinstance(default.value, Scalar):
            return None
        return converted(default.value, schema().fields(self.type)[name])

    def given(self, name: str) -> Any:
        """The value of a field that is given, which this message need not have; None where it is not."""
        values = self.values(name)
        # The last: what protobuf's parsers take where a field is given twice.
        return values[-1] if values else None

    def node(self, name: str) -> Node | None:
        """The message in a field, None where it is not given."""
        nodes = self.nodes(name)
        return nodes[-1] if nodes else None

    def line_of(self, name: str) -> int:
        """The line of a field's last value; that of the message where it is left out."""
        found = self.fields.get(name)
        return found[-1].line if found else self.line

    def key(self, name: str) -> str:
        """A field's dotted name."""
        return f"{self.path}.{name}" if self.path else name

    def chosen(self, group: str) -> str | None:
        """Which field of a group is there."""
        found = [name for name in schema().group(self.type, group) if self.has(name)]
        return found[-1] if found else None

    def name_all(self, path: str = "") -> None:
        """Tell it and all messages in it where they stand."""
        self.path = path
        for name, values in self.fields.items():
            many = schema().fields(self.type)[name].repeated if self.type != OPAQUE else True
            for place, each in enumerate(values):
                if isinstance(each, Node):
                    each.name_all(f"{self.key(name)}[{place}]" if many else self.key(name))

    def walk(self) -> Iterator[tuple[Node, str, Node | Leaf]]:
        """Every value in it, however deep, with the message and the field that it is in."""
        for name, values in self.fields.items():
            for each in values:
                yield self, name, each
                if isinstance(each, Node):
                    yield from each.walk()


class Binder:
    """Gives values the types of their fields; what does not fit is noted as a mistake.

    What does not count, since a later field takes its place, is among `replaced`, with its path.
    """

    def __init__(self, file: str, mistakes: list[Mistake]) -> None:
        self._file = file
        self._mistakes = mistakes
        self.replaced: list[tuple[Path_, int, str]] = []

    def node(self, message: Message, type_: str, path: Path_ = ()) -> Node:
        """A message of this type. As to protobuf, the last of a field that is given twice counts, or of a group."""
        node = Node(type_, message.line)
        self._fill(node, message, path)
        return node

    def _fill(self, node: Node, message: Message, path: Path_) -> None:
        """Add a message's fields to those that are there."""
        if node.type == OPAQUE:
            return
        known = schema().fields(node.type)
        for each in message.fields:
            here = (*path, each.name)
            if each.name in known:
                self._add(node, known[each.name], each, here)
            else:
                near = nearest(each.name, list(known))
                self._note(here, each.line, f"TorchEasyRec's {node.type} has no such field{near}")

    def _add(self, node: Node, kind: FieldType, each: Field, path: Path_) -> None:
        there = node.fields.setdefault(kind.name, [])
        if kind.repeated:
            path = (*path, len(there))
        elif there and isinstance(there[0], Node) and isinstance(each.value, Message):
            # Protobuf merges messages that are given twice, and replaces scalars.
            self._fill(there[0], each.value, path)
            return
        try:
            value = self._value(kind, each, path)
        except ValueError as error:
            self._note(path, each.line, str(error))
            return
        if there and not kind.repeated:
            self.replaced.append((path, there.pop().line, f"is given again in line {each.line}, which counts"))
        for other in schema().group(node.type, kind.group) if kind.group else ():
            if other != kind.name and node.has(other):
                why = f"{kind.name} in line {each.line} takes its place"
                self.replaced.append(((*path[:-1], other), node.line_of(other), why))
                del node.fields[other]
        there.append(value)

    def _value(self, kind: FieldType, each: Field, path: Path_) -> Node | Leaf:
        if schema().is_message(kind.type):
            if not isinstance(each.value, Message):
                raise ValueError(f"is a message {{...}}, not {shown(each.value)}")
            return self.node(replace(each.value, line=each.line), kind.type, path)
        if isinstance(each.value, Message):
            raise ValueError(f"is a {kind.type}, not a message {{...}}")
        return Leaf(converted(each.value, kind), each.line)

    def _note(self, path: Path_, line: int, message: str) -> None:
        self._mistakes.append(Mistake(path, message, Origin("file", self._file, line)))


def converted(scalar: Scalar, kind: FieldType) -> Any:
    """A scalar as its field's type. Raises ValueError where it is none; whole numbers may be written as 1e3."""
    if kind.type in schema().enums:
        return _enumerated(scalar, kind.type)
    if kind.type == "string":
        if not scalar.quoted:
            raise ValueError(f"is a text in quotes, not {shown(scalar)}")
        return scalar.written
    if kind.type == "bool":
        truth = _TRUTHS.get(scalar.written.lower())
        if truth is None or scalar.quoted:
            raise ValueError(f"is true or false, not {shown(scalar)}")
        return truth
    number = _number(scalar)
    if number is None or scalar.quoted:
        raise ValueError(f"is a number ({kind.type}), not {shown(scalar)}")
    if kind.type not in INTEGERS:
        return float(number)
    least, most = INTEGERS[kind.type]
    if number != number or number in (math.inf, -math.inf) or number != int(number) or not least <= number <= most:
        raise ValueError(f"is a whole number from {least} to {most}, not {shown(scalar)}")
    return int(number)


def _number(scalar: Scalar) -> float | None:
    text = scalar.written.lower()
    sign = -1 if text.startswith("-") else 1
    if text.lstrip("+-") in _INFINITE:
        return sign * _INFINITE[text.lstrip("+-")]
    try:
        if "x" in text:
            return int(text, 16)
        # Text format has C's numbers: a leading 0 makes them octal, x hexadecimal, f a float.
        if re.fullmatch(r"[-+]?0[0-7]+", text):
            return int(text, 8)
        if re.fullmatch(r"[-+]?[0-9]+", text):
            # Cut, as Python refuses to read thousands of digits; it is beyond any field's range long before.
            return int(text[:40])
        return float(text.rstrip("f"))
    except ValueError:
        return None


def _enumerated(scalar: Scalar, name: str) -> str:
    words = schema().enums[name]
    if scalar.written in words:
        return scalar.written
    by_number = {str(number): word for word, number in words.items()}
    if scalar.written in by_number:
        return by_number[scalar.written]
    raise ValueError(f"is one of {', '.join(words)}, not {shown(scalar)}{nearest(scalar.written, list(words))}")


def shown(value: Scalar | Message) -> str:
    """A value as messages show it."""
    if isinstance(value, Message):
        return "a message {...}"
    text = shortened(value.written, 60)
    return repr(text) if value.quoted else text


def from_json(tree: TreeNode, type_: str, line: int) -> Message:
    """JSON data of a message as the same fields: protobuf's own names or its camelCase, null for what is left out."""
    fields: list[Field] = []
    known = schema().fields(type_) if type_ != OPAQUE else {}
    # A name as it is in the schema is found by itself below.
    names = {camel(name): name for name in known}
    for key, value in tree.items.items():
        name = names.get(key, key)
        at = (tree.keys or {})[key].line if tree.keys and key in tree.keys else line
        fields += _json_fields(name, known.get(name), value, at)
    return Message(tuple(fields), line)


def _json_fields(name: str, kind: FieldType | None, value: Any, line: int) -> list[Field]:
    """A key's value, or the items of its list, as fields."""
    type_ = kind.type if kind else OPAQUE
    if isinstance(value, Value):
        return [] if value.value is None else [Field(name, line, _json_scalar(value, type_, line))]
    if isinstance(value.items, dict):
        if kind is not None and kind.is_map:
            return [Field(name, line, _entry(key, each, kind, line)) for key, each in value.items.items()]
        if not schema().is_message(type_):
            type_ = OPAQUE  # binding says that it is none
        return [Field(name, line, from_json(value, type_, line))]
    found: list[Field] = []
    for each in value.items:
        at = each.origin.line or line
        found += _json_fields(name, kind, each, at)
    return found


def _entry(key: str, value: Any, kind: FieldType, line: int) -> Message:
    """An entry of a map, as text format writes it."""
    of_value = schema().fields(kind.type)["value"]
    return Message(
        (Field("key", line, Scalar(key, line, quoted=True)), *_json_fields("value", of_value, value, line)), line
    )


def _json_scalar(value: Value, type_: str, line: int) -> Scalar:
    """JSON writes enums and large numbers as strings, which text format does not."""
    if isinstance(value.value, str):
        return Scalar(value.value, line, quoted=type_ == "string" or type_ not in (*INTEGERS, *_LOOSE, *schema().enums))
    if isinstance(value.value, bool):
        return Scalar(str(value.value).lower(), line)
    return Scalar(repr(value.value), line)


_LOOSE = ("float", "double")


def camel(name: str) -> str:
    """A field's name as JSON may write it."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
