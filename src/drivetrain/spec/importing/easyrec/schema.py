"""Names and types of TorchEasyRec's fields, read from `schema.txt` (made from version 1.3.16).

A line of that file is `message NAME field ...` or `enum NAME value=number ...`; lines that begin with a space go on. A
field is `name:type`, with `!` where it is required, `*` where it is repeated, `@group` where at most one field of the
group is there, and `=default`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from drivetrain.spec.prototext import Field, Message, read_message

ROOT = "EasyRecConfig"
OPAQUE = "Struct"
"""A message of which nothing is known."""
INTEGERS: Mapping[str, tuple[int, int]] = {
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
"""Types of whole numbers, with the least and the largest."""
SCALARS = {*INTEGERS, "float", "double", "bool", "string"}
_FIELD = re.compile(r"(\w+):([\w<>,]+)([!*]|@\w+)?(?:=(.*))?")


@dataclass(frozen=True)
class FieldType:
    """A field; `type` is a scalar's, an enum's or a message's name, `default` as it is written, None where none is."""

    name: str
    type: str
    required: bool = False
    repeated: bool = False
    group: str = ""
    default: str | None = None

    @property
    def is_map(self) -> bool:
        """Whether it is a map: entries with `key` and `value`."""
        return self.type.startswith("map<")


@dataclass(frozen=True)
class Schema:
    """All messages and enums by name."""

    messages: Mapping[str, Mapping[str, FieldType]]
    enums: Mapping[str, Mapping[str, int]]

    def fields(self, message: str) -> Mapping[str, FieldType]:
        """The fields of a message, or of a map's entries."""
        if message.startswith("map<"):
            key, value = message[4:-1].split(",")
            return {"key": FieldType("key", key), "value": FieldType("value", value)}
        return self.messages[message]

    def is_message(self, type_: str) -> bool:
        """Whether values of this type have fields."""
        return type_ not in SCALARS and type_ not in self.enums

    def group(self, message: str, group: str) -> list[str]:
        """The fields of which at most one is there."""
        return [field.name for field in self.fields(message).values() if field.group == group]


@cache
def schema() -> Schema:
    """That of the file beside this one."""
    text = (Path(__file__).parent / "schema.txt").read_text(encoding="utf-8")
    messages: dict[str, dict[str, FieldType]] = {OPAQUE: {}}
    enums: dict[str, dict[str, int]] = {}
    for line in text.replace("\n ", " ").splitlines():
        kind, name, *parts = line.split()
        if kind == "enum":
            pairs = (part.split("=") for part in parts)
            enums[name] = {word: int(number) for word, number in pairs}
        else:
            fields = (_field(part) for part in parts)
            messages[name] = {field.name: field for field in fields}
    return Schema(messages, enums)


def _field(part: str) -> FieldType:
    name, type_, mark, default = _FIELD.fullmatch(part).groups()  # type: ignore[union-attr] - the file is ours
    mark = mark or ""
    group = mark[1:] if mark.startswith("@") else ""
    return FieldType(name, type_, mark == "!", mark == "*", group, default)


@cache
def default_of(message: str, field: str) -> Field | None:
    """What a field means that is left out, as if it were written; None where it has no default."""
    default = schema().fields(message)[field].default
    if default is None:
        return None
    parsed: Message = read_message(f"{field}: {default}")
    return parsed.fields[0]
