"""The JSON Schema of a ledger's records, made of their dataclasses: `python -m drivetrain.ledger.schema`."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields
from itertools import pairwise
from typing import Any

from drivetrain.ledger import records
from drivetrain.ledger.fields import has_default
from drivetrain.ledger.records import KINDS, RecordBase
from drivetrain.spec.keys import key_of

VERSION = 1
"""Counted up where a field changes its meaning or goes; new kinds and new fields leave it."""
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_DROPPED = ("title", "default", "description", "properties")
_HEAD = ("kind", "time", "attempt", "chain")
_CHAIN = {"type": "string", "pattern": "^[0-9a-f]{32}$"}


def ledger_schema() -> dict[str, Any]:
    """Draft 2020-12, of one line. Fields that are not in it may be there: another version has written them."""
    definitions: dict[str, Any] = {"number": {"description": "a number; a string where not finite", **_NUMBER}}
    for kind, cls in KINDS.items():
        schema = _schema(cls, definitions)
        properties = {"kind": {"const": kind}, **schema["properties"]}
        properties["chain"] = _CHAIN | {"description": properties["chain"]["description"]}
        required = [name for name in properties if name in (*_HEAD, *schema["required"])]
        definitions[kind] = schema | {"title": kind, "properties": properties, "required": required}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of a Drivetrain ledger",
        "version": VERSION,
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in KINDS],
        "$defs": definitions,
    }


def _schema(cls: type[RecordBase], definitions: dict[str, Any]) -> dict[str, Any]:
    """pydantic's schema of a record, with the keys of the JSON; what lies in it goes to the definitions."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(cls).json_schema()
    for name, inner in schema.pop("$defs", {}).items():
        definitions[name] = _described(_keyed(inner), getattr(records, name))
    return _described(_keyed(schema), cls)


def _described(schema: dict[str, Any], cls: Any) -> dict[str, Any]:
    """With the sentences under a class and its fields. A field that may be left out is never null."""
    for part in fields(cls):
        # To pydantic such a field may be null: in the JSON it is left out.
        if part.default is None:
            _without_null(schema["properties"][key_of(part.name)])
    for base in reversed(cls.__mro__[:-1]):  # without `object`: the kind's own fields come last
        # A field's sentence is a string below it, which Python itself throws away.
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for one, after in pairwise(tree.body):
            match one, after:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    schema["properties"][key_of(name)]["description"] = inspect.cleandoc(text)
    required = [key_of(part.name) for part in fields(cls) if not has_default(part)]
    return schema | {"description": inspect.getdoc(cls), "required": required}


def _keyed(schema: Any) -> Any:
    """With keys as JSON has them, numbers that may be strings, and neither titles of fields nor defaults."""
    if isinstance(schema, list):
        return [_keyed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"$ref": "#/$defs/number"}
    told = {name: _keyed(part) for name, part in schema.items() if name not in _DROPPED}
    if "properties" in schema:
        told["properties"] = {key_of(name): _keyed(part) for name, part in schema["properties"].items()}
    if "required" in schema:
        told["required"] = [key_of(name) for name in schema["required"]]
    return told


def _without_null(schema: dict[str, Any]) -> None:
    (option,) = [part for part in schema.pop("anyOf") if part.get("type") != "null"]
    schema.update(option)


if __name__ == "__main__":
    print(json.dumps(ledger_schema(), indent=1))
