"""What pydantic finds wrong with settings, in our words: what was expected, an example of it, the field's sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_args, get_origin, get_type_hints

from drivetrain.spec.affects import settings_classes, settings_of
from drivetrain.spec.amount import Amount
from drivetrain.spec.check import shown
from drivetrain.spec.keys import key_of
from drivetrain.spec.parse import flow
from drivetrain.spec.registry import nearest
from drivetrain.spec.text import shortened
from drivetrain.spec.tree import UNITS, Path_

_MAPPINGS = frozenset({"dataclass_type", "dataclass_exact_type", "dict_type", "model_attributes_type"})
_LISTS = frozenset({"tuple_type", "list_type"})
_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kKMBT])")
_SUFFIX = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def messages(cls: Any, data: Any, inner: Path_, problems: Sequence[Any]) -> list[str]:
    """What pydantic finds wrong at one place; the members of a union are told as one."""
    value = at(data, inner)
    expected: list[str] = []
    found: list[str] = []
    for problem in problems:
        kind, last = problem["type"], problem["loc"][-1] if problem["loc"] else ""
        if kind == "unexpected_keyword_argument":
            found.append(unknown(str(last), keys_of(_owner(cls, data, inner[:-1]))))
        elif kind == "too_long" or (kind == "missing" and isinstance(last, int)):
            amount = "many" if kind == "too_long" else "few"
            found.append(f"has too {amount} items ({len(value)}){_doc(cls, data, inner)}")
        elif kind in ("missing", "missing_argument"):
            found.append(f"{str(last)!r} is missing{_doc(cls, data, (*inner, last))}")
        elif kind == "value_error":
            found.append(str(problem["ctx"]["error"]))
        elif kind in _MAPPINGS:
            expected.append(f"a mapping{_such_as(_owner(cls, data, inner), value)}")
        elif kind in _LISTS:
            expected.append(f"a list, such as {_flow([value])}")
        elif kind == "string_pattern_mismatch":
            expected.append("text of another form")
        else:
            expected.append(problem["msg"].removeprefix("Input should be "))
    if expected:
        what = ", or ".join(dict.fromkeys(expected))
        if not what[0].isupper():
            what = f"Input should be {what}"
        found.append(f"{what} (got {shown(value)}){_doc(cls, data, inner)}")
    return list(dict.fromkeys(found))


def unknown(key: str, known: Sequence[str]) -> str:
    """That there is no such key, and which is near, or which there are."""
    other = nearest(key, known)
    if known and not other:
        other = f"; there are {', '.join(known)}"
    return f"unknown key {key!r}{other}"


def keys_of(cls: type | None) -> list[str]:
    """The keys of a settings class, as recipes write them."""
    if cls is None:
        return []
    return [key_of(field.name) for field in fields(cls)]


def inside(data: Any, loc: Sequence[Any]) -> tuple[Path_, Any]:
    """The part of an error's location that leads into the data, and what stands there.

    The others of a location's parts name members of a union, which the recipe's author does not see.
    """
    path: list[Any] = []
    for part in loc:
        there = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if there:
            path.append(part)
            data = data[part]
    return tuple(path), data


def at(data: Any, path: Path_) -> Any:
    """What stands at a path, or None."""
    found, value = inside(data, path)
    return value if found == path else None


def amounts(data: Any) -> Any:
    """The data with amounts such as `1.5B` and `1e6` as whole numbers."""
    if isinstance(data, list):
        return [amounts(part) for part in data]
    if not isinstance(data, dict):
        return data
    if data and data.keys() <= UNITS:
        # Epochs may be parts of one; all other units are counted.
        counted: dict[str, Any] = {}
        for unit, value in data.items():
            counted[unit] = value if unit == "epochs" else _whole(value)
        return counted
    return {key: amounts(part) for key, part in data.items()}


def _whole(value: Any) -> Any:
    """A whole number from 1.5B, 500M, 10k or 1e6; anything else as it is, for validation to refuse."""
    # Decimals, since 1.1B as a float is not 1,100,000,000.
    if isinstance(value, float):
        number = Decimal(value)
    elif isinstance(value, str) and (match := _AMOUNT.fullmatch(value)):
        number = Decimal(match.group(1).replace("_", "")) * _SUFFIX[match.group(2)]
    else:
        return value
    if number != number.to_integral_value() or number >= 2**63:
        return value
    return int(number)


def _such_as(cls: type | None, value: Any) -> str:
    """The mapping that a lone value may have stood for, under the first key that takes it; else the keys."""
    if cls is None:
        return ""
    if "kind" in keys_of(cls) and isinstance(value, str):
        return f", such as {_flow({'kind': value})}"
    hints = get_type_hints(cls)
    for field in fields(cls):
        hint, part = hints[field.name], value
        if Amount in settings_classes(hint):
            part = {"steps": value}
        read = _whole if cls is Amount else amounts
        if _takes(hint, read(part)):
            return f", such as {_flow({key_of(field.name): part})}"
    return f" of {', '.join(keys_of(cls))}"


def _takes(hint: Any, value: Any) -> bool:
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


def _flow(value: Any) -> str:
    """A value as a recipe has it in one line, cut where it is long."""
    return shortened(flow(value), 80)


def _doc(cls: Any, data: Any, path: Path_) -> str:
    """A field's own sentence after a colon, where a path ends in a field or in an item of one."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    if not path:
        return ""
    owner = _owner(cls, data, path[:-1])
    if owner is None:
        return ""
    for name, setting in settings_of(owner).items():
        if key_of(name) == path[-1]:
            return f": {setting.doc}"
    return ""


def _owner(cls: Any, data: Any, path: Path_) -> type | None:
    """The settings class that a path inside a settings class leads to; of several, the one of the kind given there."""
    hint = cls
    for number, part in enumerate(path):
        # The place in a list is no step: the list's hint names the class of its items too.
        if not isinstance(part, int):
            hint = _by_name(hint) or _hint(_chosen(hint, at(data, path[:number])), part)
    return _chosen(hint, at(data, path))


def _by_name(hint: Any) -> Any:
    """The annotation of what a mapping has by name; None where it is no mapping."""
    return get_args(hint)[1] if get_origin(hint) is Mapping else None


def _hint(owner: type | None, key: str) -> Any:
    """The annotation of a key of a settings class; None where it has no such key."""
    if owner is None:
        return None
    for name, hint in get_type_hints(owner).items():
        if key_of(name) == key:
            return hint
    return None


def _chosen(hint: Any, value: Any) -> type | None:
    classes = list(settings_classes(hint))
    kind = value.get("kind") if isinstance(value, Mapping) else None
    for cls in classes:
        if getattr(cls, "kind", None) == kind:
            return cls
    return classes[0] if classes else None
