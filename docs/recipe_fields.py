"""The fields of a recipe as Markdown, made from what `drivetrain recipe schema` says."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from drivetrain.spec.schema import recipe_schema

Schema = Mapping[str, Any]


class Row(NamedTuple):
    """One field of a table."""

    key: str
    default: str
    affects: str
    about: str


def tables() -> str:
    """A table for the top level, and one for each section or, where a section has kinds, for each kind."""
    sections: Mapping[str, Schema] = recipe_schema()["properties"]
    plain = {name: part for name, part in sections.items() if not list(shapes(part))}
    text = "\n## Top level\n\n" + table(list(rows(plain)))
    for name, part in sections.items():
        for shape in shapes(part):
            text += f"\n## {heading(name, shape)}\n\n" + table(list(rows(shape["properties"])))
    return text


def heading(section: str, shape: Schema) -> str:
    """The section's name, and its kind where there are several."""
    kind = shape["properties"].get("kind", {}).get("const")
    return f"`{section}`: `kind: {kind}`" if kind else f"`{section}`"


def shapes(schema: Schema) -> Iterator[Schema]:
    """Every mapping that may stand here, or inside a list or a mapping by names that may."""
    if schema.get("properties") and "pattern" not in schema["properties"].get("kind", {}):
        yield schema
    inner = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), Mapping)]
    for part in inner:
        yield from shapes(part)


def rows(fields: Mapping[str, Schema], prefix: str = "") -> Iterator[Row]:
    """The fields, and below each those of its own mapping, where it has one shape only."""
    for key, field in fields.items():
        if key == "kind" and "const" in field:
            continue
        default = json.dumps(field["default"]) if "default" in field else ""
        yield Row(prefix + key, default, field.get("affects", ""), field.get("description", ""))
        inner = [shape for shape in shapes(field) if "affects" in next(iter(shape["properties"].values()))]
        if len(inner) == 1:
            yield from rows(inner[0]["properties"], f"{prefix}{key}.")


def table(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = ["| field | default | affects | |", "|---|---|---|---|"]
    for row in rows:
        default = f"`{row.default}`" if row.default else ""
        about = row.about.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{row.key}` | {default} | {row.affects} | {about} |")
    return "\n".join(lines) + "\n"
