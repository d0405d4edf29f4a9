"""TorchEasyRec's `--edit_config_json`: values of a configuration set by the paths of their fields.

An entry is `key[;key...]: value`; a key is `name(.name)*`, and a repeated field's name may say which of its values are
meant: `[:]`, `[a:b]`, `[i]`, or a condition such as `[id_feature.feature_name=user]`. What did nothing there, or
failed without a word, is one error here.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.easyrec.schema import FieldType, schema
from drivetrain.spec.importing.easyrec.tree import Binder, Leaf, Node, converted, from_json
from drivetrain.spec.importing.json_text import NotJsonError, json_tree
from drivetrain.spec.prototext import Message, NotProtoTextError, Scalar, read_message
from drivetrain.spec.registry import nearest
from drivetrain.spec.text import printable, shortened
from drivetrain.spec.tree import Mistake, TreeNode, Value, dotted

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
"""In the order in which they are looked for."""
_TOKEN = re.compile(r"(\w+)(?:\[(.*)\])?", re.DOTALL)
_SLICE = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*")


class EditError(ValueError):
    """An edit does not fit; the message says why."""


@dataclass(frozen=True)
class _Step:
    """One name of a key, with what its bracket says; None without one."""

    name: str
    which: str | None


def edit(root: Node, text: str) -> None:
    """Apply edits, one after the other. Raises Failure(64) for the first that does not fit."""
    mistakes: list[Mistake] = []
    try:
        tree = json_tree(text, "--edits", mistakes)
    except NotJsonError as error:
        raise _refused(f"line {error.line}", f"no JSON: {error}") from None
    if mistakes:
        raise _refused(f"line {mistakes[0].origin.line}", f"{dotted(mistakes[0].path)} {mistakes[0].message}")
    for entry, value in tree.items.items():
        try:
            for key, one in _paired(entry, value):
                _apply(root, key, one)
        except EditError as error:
            raise _refused(repr(shortened(entry, 200)), str(error)) from None


def _refused(where: str, why: str) -> Failure:
    return Failure(Exit.BAD_COMMAND, printable(f"--edits, {where}: {why}"), "nothing was written")


def _paired(entry: str, value: Any) -> list[tuple[str, Any]]:
    """Keys with their values: as many values as there are keys."""
    keys = [key.strip() for key in _split(entry, ";")]
    if len(keys) == 1:
        return [(keys[0], value)]
    values = value.items if isinstance(value, TreeNode) and isinstance(value.items, list) else None
    if isinstance(value, Value) and isinstance(value.value, str):
        values = [Value(part.strip(), value.origin) for part in _split(value.value, ";")]
    if values is None:
        raise EditError(f"{len(keys)} keys take a text with ';' between values, or a list of values")
    if len(values) != len(keys):
        raise EditError(f"there are {len(keys)} keys and {len(values)} values: give as many of both")
    return list(zip(keys, values, strict=True))


def _split(text: str, mark: str) -> list[str]:
    """The parts between marks that are not within brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        # Outside of brackets a quote may be the apostrophe of a value.
        elif char in "\"'" and depth:
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if char == mark and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _steps(key: str) -> list[_Step]:
    steps = []
    for part in _split(key, "."):
        found = _TOKEN.fullmatch(part.strip())
        if found is None:
            raise EditError(f"{part.strip()!r} is no name, or name[...], of a field")
        steps.append(_Step(found[1], found[2]))
    return steps


def _apply(root: Node, key: str, value: Any) -> None:
    """Set one key to its value, wherever it leads."""
    *way, last = _steps(key)
    places = [root]
    for step in way:
        # All places are found before the first is set: an edit must not choose by what it has set itself.
        places = [inner for place in places for inner in _entered(place, step)]
    for place in places:
        _set(place, last, value)


def _kind(node: Node, name: str) -> FieldType:
    known = schema().fields(node.type)
    if name not in known:
        raise EditError(f"{node.type} has no field {name!r}{nearest(name, list(known))}")
    return known[name]


def _entered(node: Node, step: _Step) -> list[Node]:
    """The messages that a step of the way leads to; one that is not there yet is made."""
    kind = _kind(node, step.name)
    if not schema().is_message(kind.type):
        raise EditError(f"{step.name} is a {kind.type}, which has no fields")
    if kind.repeated:
        found = [node.fields[step.name][place] for place in _chosen(node, kind, step.which)]
        return [each for each in found if isinstance(each, Node)]
    if step.which is not None:
        raise EditError(f"{step.name} is one message, not several: leave [{step.which}] out")
    # A message without a value of its own is not there; the way to its field makes it, as protobuf's own setters do.
    there = node.node(step.name)
    if there is None:
        _require_free(node, kind, whole=False)
        there = Node(kind.type, 0)
        node.fields[step.name] = [there]
    return [there]


def _require_free(node: Node, kind: FieldType, *, whole: bool) -> None:
    """A group has one field: it is switched where a whole message is given, and not on the way to one of its fields."""
    others = [name for name in schema().group(node.type, kind.group) if name != kind.name and node.has(name)]
    if not kind.group or not others:
        return
    # On the way to a field nobody has asked for another kind: to switch would throw away all that the old one has.
    if not whole:
        here = f"it is a {others[0]}, not a {kind.name}"
        several = f"choose by a condition, such as [{kind.name}.{_first(kind)}=...]"
        raise EditError(f"{here}: {several}, or give {kind.name} a whole message to put that in its place")
    for other in others:
        del node.fields[other]


def _first(kind: FieldType) -> str:
    """The first field of a message, for an example."""
    names = list(schema().fields(kind.type)) if schema().is_message(kind.type) else []
    return names[0] if names else "name"


def _chosen(node: Node, kind: FieldType, which: str | None) -> list[int]:
    """The places of a repeated field that a bracket means, at least one."""
    values = node.fields.get(kind.name, [])
    if which is None:
        raise EditError(f"{kind.name} has {len(values)} values: say which, as {kind.name}[0], [1:3] or [:] for all")
    if found := _SLICE.fullmatch(which):
        places = list(range(len(values))[slice(*map(_bound, found.groups()))])
    elif re.fullmatch(r"\s*-?\d+\s*", which):
        place = int(which)
        if not -len(values) <= place < len(values):
            raise EditError(f"{kind.name}[{place}]: there are {len(values)}")
        return [place % len(values)]
    else:
        places = _matching(values, kind, which)
    if not places:
        raise EditError(f"{kind.name}[{which}] matches none of its {len(values)} values")
    return places


def _bound(text: str) -> int | None:
    return int(text) if text else None


def _matching(values: list[Any], kind: FieldType, condition: str) -> list[int]:
    """The places of values that a condition holds for."""
    sign = next((sign for sign in _COMPARE if sign in condition), None)
    if sign is None:
        raise EditError(f"[{condition}] is no index, no slice and no condition (=, <, >, <=, >=)")
    path, _, text = condition.rpartition(sign)
    if not schema().is_message(kind.type):
        raise EditError(f"[{condition}]: {kind.name} has values without fields; say which by its place")
    steps = _steps(path)
    wanted = _compared(kind.type, steps, text.strip(), sign)
    places = []
    for place, value in enumerate(values):
        found = _looked_up(value, steps)
        if found is not None and _COMPARE[sign](found, wanted):
            places.append(place)
    return places


def _compared(message: str, steps: list[_Step], text: str, sign: str) -> Any:
    """What a condition compares with, as the type of the field that its path leads to."""
    for step in steps[:-1]:
        inner = _kind(Node(message, 0), step.name)
        if step.which is not None or not schema().is_message(inner.type):
            raise EditError(f"{step.name} leads to no field in a condition")
        message = inner.type
    kind = _kind(Node(message, 0), steps[-1].name)
    if schema().is_message(kind.type):
        raise EditError(f"{steps[-1].name} is a message: compare one of its fields")
    if sign != "=" and kind.type in ("bool", *schema().enums):
        raise EditError(f"{steps[-1].name} is a {kind.type}: compare it with =")
    return _scalar(text.strip("\"'") if kind.type == "string" else text, kind)


def _looked_up(value: Any, steps: list[_Step]) -> Any:
    """The value at a path of names; None where it is not given and has no default."""
    for step in steps[:-1]:
        value = value.node(step.name) if isinstance(value, Node) else None
        if value is None:
            return None
    return value.value(steps[-1].name)


def _set(node: Node, step: _Step, value: Any) -> None:
    kind = _kind(node, step.name)
    if isinstance(value, Value) and value.value is None:
        raise EditError("null takes nothing away: leave the field out of the file, or give it its default")
    if step.which is not None and not kind.repeated:
        raise EditError(f"{step.name} has one value: leave [{step.which}] out")
    if kind.repeated and step.which is None:
        node.fields[step.name] = _listed(value, kind)
        return
    made = _one(value, kind)
    if kind.repeated:
        for place in _chosen(node, kind, step.which):
            node.fields[step.name][place] = made
        return
    _require_free(node, kind, whole=isinstance(made, Node))
    node.fields[step.name] = [made]


def _one(value: Any, kind: FieldType) -> Node | Leaf:
    """A value as its field's type: a scalar, or a message as a JSON object or as text."""
    if schema().is_message(kind.type):
        return _message(value, kind)
    if isinstance(value, TreeNode):
        raise EditError(f"{kind.name} is a {kind.type}, and has no fields or items")
    text = value.value if isinstance(value.value, str) else json.dumps(value.value)
    return Leaf(_scalar(text, kind), 0)


def _scalar(text: str, kind: FieldType) -> Any:
    """Raises EditError for a text that is no value of this type."""
    try:
        found = converted(Scalar(text, 0, quoted=kind.type == "string"), kind)
    except ValueError as error:
        raise EditError(f"{kind.name} {error}") from None
    if isinstance(found, float) and not math.isfinite(found):
        raise EditError(f"{kind.name} is a finite number, not {text}")
    return found


def _message(value: Any, kind: FieldType) -> Node:
    if isinstance(value, TreeNode) and isinstance(value.items, dict):
        message = from_json(value, kind.type, 0)
    elif isinstance(value, Value) and isinstance(value.value, str):
        message = _of_text(value.value, kind)
    else:
        raise EditError(f"{kind.name} is a message: give an object, or its text")
    return _bound_message(message, kind)


def _bound_message(message: Message, kind: FieldType) -> Node:
    """Raises EditError where its fields are none of this message's, or not of their types."""
    mistakes: list[Mistake] = []
    if not schema().is_message(kind.type):
        raise EditError(f"{kind.name} is a {kind.type}, and has no fields")
    node = Binder("--edits", mistakes).node(message, kind.type)
    if mistakes:
        raise EditError(f"{kind.name}.{dotted(mistakes[0].path)}: {mistakes[0].message}")
    _unplaced(node)
    return node


def _of_text(text: str, kind: FieldType) -> Message:
    """A message's text, with or without its braces."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    try:
        return read_message(inner)
    except NotProtoTextError as error:
        raise EditError(f"{kind.name} is no text of a message: {error}") from None


def _unplaced(node: Node) -> None:
    """Values of an edit are in no line of the file."""
    node.line = 0
    for name, values in node.fields.items():
        for place, each in enumerate(values):
            if isinstance(each, Node):
                _unplaced(each)
            else:
                node.fields[name][place] = Leaf(each.value, 0)


def _listed(value: Any, kind: FieldType) -> list[Node | Leaf]:
    """All values of a repeated field: a list, as JSON or as text, or one value."""
    if isinstance(value, TreeNode) and isinstance(value.items, list):
        return [_one(each, kind) for each in value.items]
    if not (isinstance(value, Value) and isinstance(value.value, str) and value.value.strip().startswith("[")):
        return [_one(value, kind)]
    try:
        message = read_message(f"{kind.name}: {value.value.strip()}")
    except NotProtoTextError as error:
        raise EditError(f"{kind.name} is no list: {error}") from None
    found: list[Node | Leaf] = []
    for each in message.fields:
        if isinstance(each.value, Scalar):
            found.append(Leaf(_scalar(each.value.written, kind), 0))
        else:
            found.append(_bound_message(each.value, kind))
    return found
