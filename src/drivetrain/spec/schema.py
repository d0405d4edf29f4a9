"""The JSON schema of recipes, with a sentence about each field and what it affects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

from drivetrain.spec.affects import settings_classes, settings_of
from drivetrain.spec.amount import Amount
from drivetrain.spec.custom import ARGUMENTS, OWN, POINTS, ExtensionPoint
from drivetrain.spec.keys import key_of
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import (
    BY_NETWORK,
    DEFAULT_KINDS,
    KINDS,
    LISTED_SECTIONS,
    NAMED_SECTIONS,
    NULLABLE_SECTIONS,
    SECTIONS,
    imported,
)

_OWN = {
    "type": "object",
    "description": "your own: a class by its import path; the other keys are its constructor's arguments",
    "properties": {
        "kind": {"type": "string", "pattern": r"^[\w.]+:\w+$"},
        ARGUMENTS: {"type": "object", "description": "the constructor's arguments, where one is called as a key here"},
    },
    "required": ["kind"],
}


def recipe_schema() -> dict[str, Any]:
    """Draft 2020-12. Contradictions between fields are not in it; `drivetrain recipe check` finds them."""
    schema = _class_schema(Recipe)
    for name, path in SECTIONS.items():
        section = _class_schema(imported(path))
        others: list[dict[str, Any]] = []
        if name in LISTED_SECTIONS:
            others.append({"type": "array", "items": section})
        if name in NULLABLE_SECTIONS:
            others.append({"type": "null"})
        if name in NAMED_SECTIONS:
            section = {"type": "object", "additionalProperties": section}
        section |= {"description": schema["properties"][name]["description"]}
        if others:
            section = {"anyOf": [section, *others]}
        schema["properties"][name] = section
    for name in ("task", "optimizer", "schedule", "launch"):
        component = _component_schema(name)
        if name in BY_NETWORK:
            component["anyOf"].append({"type": "object", "additionalProperties": {"anyOf": list(component["anyOf"])}})
        schema["properties"][name] |= component
    for task in schema["properties"]["task"]["anyOf"]:
        if task["properties"]["kind"].get("const") == "ranking":
            task["properties"]["model"] |= _component_schema("ranker")
    data = schema["properties"]["data"]["properties"]
    source = _component_schema("source")
    data["train"]["properties"]["sources"]["items"] = source
    for name in ("validation", "test"):
        data[name] |= {"type": "object", "additionalProperties": source}
    for section, name, among in (("evaluate", "metrics", "additionalProperties"), ("watch", "sinks", "items")):
        schema["properties"][section]["properties"][name][among] = _OWN
    schema["properties"]["callbacks"] |= {"type": "array", "items": _OWN}
    kernels = {"type": "object", "additionalProperties": _own_schema(POINTS["kernel"])}
    schema["properties"]["kernels"] |= {"anyOf": [kernels, {"type": "null"}]}
    base = {
        "description": "recipes to build on",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"] = {"base": base, **schema["properties"]}
    schema["required"] = ["name", "task", "data", "batch", "budget"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Drivetrain recipe"}


def _component_schema(section: str) -> dict[str, Any]:
    """A choice by `kind`."""
    kinds = []
    for kind, path in KINDS[section].items():
        schema = _class_schema(imported(path))
        schema["properties"]["kind"]["const"] = kind
        if kind != DEFAULT_KINDS.get(section):
            schema["required"] = ["kind", *schema.get("required", [])]
        kinds.append(schema)
    if section in POINTS:
        kinds.append(_own_schema(POINTS[section]))
    return {"anyOf": kinds}


def _own_schema(point: ExtensionPoint) -> dict[str, Any]:
    """A kind of the user's own, with what its section has beside its arguments."""
    if point.settings is None:
        return _OWN
    schema = _class_schema(imported(point.settings))
    common = {name: part for name, part in schema["properties"].items() if name != OWN}
    return _OWN | {
        "properties": {**_OWN["properties"], **common},
        "required": ["kind", *schema.get("required", [])],
    }


def _class_schema(cls: type) -> dict[str, Any]:
    """A settings class: pydantic's schema of it, each field with its sentence and what it affects."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(cls).json_schema()
    definitions = schema.pop("$defs", {})
    schema = _inlined(schema, definitions)
    _describe(schema, cls)
    return schema


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema without references, so that sections can be put together."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(part, definitions) for key, part in schema.items()}


def _describe(schema: dict[str, Any], cls: type) -> None:
    if cls is Amount:
        schema |= {"minProperties": 1, "maxProperties": 1}
        for unit in ("steps", "samples", "tokens"):
            schema["properties"][unit]["anyOf"].append({"type": "string", "pattern": r"^[0-9_.]+[kKMBT]$"})
    hints = get_type_hints(cls)
    for name, setting in settings_of(cls).items():
        part = schema["properties"][key_of(name)]
        inner = {found.__name__: found for found in settings_classes(hints[name])}
        for option in _options(part):
            if option.get("title") in inner and "properties" in option:
                _describe(option, inner[option["title"]])
        part["description"] = setting.doc
        part["affects"] = setting.affects


def _options(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, what may stand in its place, and what it has in a list or by name."""
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _options(part)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _options(schema[key])
