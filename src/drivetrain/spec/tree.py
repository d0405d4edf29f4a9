"""YAML as a tree of plain data in which every value knows where it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: `layer` is default, base, file, command line, api or derived."""

    layer: str
    file: str = ""
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        """As messages show it: file:line, or the words of the command line."""
        if self.file:
            return f"{self.file}:{self.line}"
        return f"{self.layer}: {self.text}" if self.text else self.layer


@dataclass(frozen=True)
class Value:
    """A scalar with its origin."""

    value: Any
    origin: Origin


@dataclass(frozen=True)
class Node:
    """A mapping or a list with its origin; keys have origins too, since a key can be wrong."""

    items: Any  # dict[str, Node | Value] or list[Node | Value]
    origin: Origin
    keys: Mapping[str, Origin] | None = None


Tree = Node | Value
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a recipe, and its place."""

    path: Path_
    message: str
    origin: Origin

    def __str__(self) -> str:
        """One line, as compilers write it."""
        return f"{self.origin}: {dotted(self.path)}: {self.message}" if self.path else f"{self.origin}: {self.message}"


class RecipeMistakes(Failure):
    """All mistakes of a recipe together; the exit code is 78, or 77 where one is a refusal."""

    def __init__(self, mistakes: Sequence[Mistake], code: Exit = Exit.BAD_RECIPE) -> None:
        self.mistakes = tuple(mistakes)
        count = f"{len(self.mistakes)} mistakes" if len(self.mistakes) > 1 else "1 mistake"
        super().__init__(code, f"{count} in the recipe", "each is listed with its place")
        self.details = "\n".join(map(str, self.mistakes))

    def __str__(self) -> str:
        """All mistakes, one a line."""
        return self.details


_MOST_NODES = 100_000
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")
)
_FLOAT = re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+|[-+]?\.\d+[eE][-+]?\d+")


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.1 in which `1e-3`, too, is a number."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse_file(path: Path, layer: str) -> Node:
    """The tree of a YAML or JSON file. Raises RecipeMistakes where it is none, Failure(66) where it is missing."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise Failure(
            Exit.INPUT_MISSING, f"no recipe at {path}", "`drivetrain recipe list` names the shipped ones"
        ) from None
    except (UnicodeDecodeError, OSError) as error:
        raise Failure(Exit.BAD_RECIPE, f"{path} cannot be read: {error}", "a recipe is UTF-8 text") from error
    tree = parse(text, Origin(layer, str(path), 1))
    if not isinstance(tree, Node) or not isinstance(tree.items, dict):
        raise RecipeMistakes([Mistake((), "a recipe is a mapping of keys to values", tree.origin)])
    return tree


def parse(text: str, origin: Origin) -> Tree:
    """The tree of a YAML text; lines are counted where the origin has a file."""
    mistakes: list[Mistake] = []
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            tree = _build(loader, node, origin, mistakes, [0]) if node is not None else Node({}, origin, {})
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = Origin(origin.layer, origin.file, mark.line + 1 if mark else 1, origin.text) if origin.file else origin
        raise RecipeMistakes([Mistake((), f"not YAML: {getattr(error, 'problem', None) or error}", at)]) from None
    if mistakes:
        refused = any("tag" in mistake.message for mistake in mistakes)
        raise RecipeMistakes(mistakes, Exit.SECURITY if refused else Exit.BAD_RECIPE)
    return tree


def _build(loader: _Loader, node: yaml.Node, above: Origin, mistakes: list[Mistake], seen: list[int]) -> Tree:
    seen[0] += 1
    if seen[0] > _MOST_NODES:
        raise yaml.YAMLError("aliases blow it up beyond 100,000 values")
    origin = Origin(above.layer, above.file, node.start_mark.line + 1, above.text) if above.file else above
    if node.tag not in _TAGS:
        mistakes.append(Mistake((), f"the YAML tag {node.tag!r} is refused", origin))
        return Value(None, origin)
    if isinstance(node, yaml.MappingNode):
        items: dict[str, Tree] = {}
        keys: dict[str, Origin] = {}
        loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            key = key if isinstance(key, str) else str(key_node.value)
            at = Origin(above.layer, above.file, key_node.start_mark.line + 1, above.text) if above.file else above
            if key in items:
                mistakes.append(Mistake((key,), f"is given twice; the first is in line {keys[key].line}", at))
            items[key] = _build(loader, value_node, above, mistakes, seen)
            keys[key] = at
        return Node(items, origin, keys)
    if isinstance(node, yaml.SequenceNode):
        return Node([_build(loader, child, above, mistakes, seen) for child in node.value], origin)
    value = loader.construct_object(node, deep=True)
    if not isinstance(value, (str, int, float, bool, type(None))):
        value = str(node.value)  # dates and the like are words here
    return Value(value, origin)


def from_data(data: Any, origin: Origin) -> Tree:
    """The tree of plain Python data."""
    if isinstance(data, Mapping):
        items = {str(key): from_data(value, origin) for key, value in data.items()}
        return Node(items, origin, dict.fromkeys(items, origin))
    if isinstance(data, (list, tuple)):
        return Node([from_data(value, origin) for value in data], origin)
    return Value(data, origin)


def to_data(tree: Tree) -> Any:
    """The plain data of a tree."""
    if isinstance(tree, Value):
        return tree.value
    if isinstance(tree.items, dict):
        return {key: to_data(value) for key, value in tree.items.items()}
    return [to_data(value) for value in tree.items]


def origins_of(tree: Tree, path: Path_ = ()) -> dict[Path_, Origin]:
    """The origin of every value, mapping, list and key."""
    found = {path: tree.origin}
    if isinstance(tree, Node):
        pairs = tree.items.items() if isinstance(tree.items, dict) else enumerate(tree.items)
        for key, value in pairs:
            found |= origins_of(value, (*path, key))
            if tree.keys and isinstance(key, str) and isinstance(value, Node):
                found[(*path, key)] = tree.keys[key]
    return found


_UNITS = frozenset({"steps", "samples", "tokens", "epochs"})


def merge(lower: Tree, upper: Tree) -> Tree:
    """`upper` over `lower`: mappings merge, everything else replaces.

    A mapping that switches `kind` drops the lower one, whose keys mean nothing to the new kind; so does one that gives
    an amount in another unit.
    """
    if not (isinstance(lower, Node) and isinstance(upper, Node)):
        return upper
    if not (isinstance(lower.items, dict) and isinstance(upper.items, dict)):
        return upper
    kind, old = upper.items.get("kind"), lower.items.get("kind")
    if kind is not None and old is not None and to_data(kind) != to_data(old):
        return upper
    if upper.items and upper.items.keys() <= _UNITS and lower.items.keys() <= _UNITS:
        return upper
    items = dict(lower.items)
    for key, value in upper.items.items():
        items[key] = merge(items[key], value) if key in items else value
    return Node(items, upper.origin, {**(lower.keys or {}), **(upper.keys or {})})


_STEP = re.compile(r"([A-Za-z0-9_\-]+)|\[(\d+)\]")


def override(tree: Tree, text: str) -> Tree:
    """The tree with one `a.b[0].c=value` of the command line on top. Raises RecipeMistakes where it says nothing."""
    origin = Origin("command line", text=text)
    path_text, sign, value_text = text.partition("=")
    path = _parse_path(path_text.strip())
    if not sign or path is None:
        raise RecipeMistakes([Mistake((), "an override is key=value, such as optimizer.lr=1e-3", origin)])
    value = parse(value_text, origin) if value_text.strip() else Value(None, origin)
    return _put(tree, path, value, (), origin)


def _parse_path(text: str) -> Path_ | None:
    parts: list[str | int] = []
    for piece in text.split("."):
        matches = list(_STEP.finditer(piece))
        if not matches or "".join(match.group() for match in matches) != piece or matches[0].group(1) is None:
            return None
        parts += [match.group(1) if match.group(1) is not None else int(match.group(2)) for match in matches]
    return tuple(parts) or None


def _put(tree: Tree | None, path: Path_, value: Tree, above: Path_, origin: Origin) -> Tree:
    if not path:
        emptied = isinstance(value, Node) and not value.items  # `key={}` takes away what was there
        return value if tree is None or emptied else merge(tree, value)
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        if not isinstance(tree, Node) or not isinstance(tree.items, list) or key >= len(tree.items):
            count = len(tree.items) if isinstance(tree, Node) and isinstance(tree.items, list) else 0
            raise RecipeMistakes([Mistake((*above, key), f"there is no such item: the list has {count}", origin)])
        items = list(tree.items)
        items[key] = _put(items[key], rest, value, (*above, key), origin)
        return Node(items, tree.origin)
    inner = tree.items.get(key) if isinstance(tree, Node) and isinstance(tree.items, dict) else None
    added = Node({key: _put(inner, rest, value, (*above, key), origin)}, origin, {key: origin})
    if not isinstance(tree, Node) or not isinstance(tree.items, dict):
        return added
    return _over(tree, added, key)


def _over(tree: Node, added: Node, key: str) -> Node:
    """`added`, whose one item is complete already, over `tree`: the rules for kinds and units are left to apply."""
    if key == "kind" or (key in _UNITS and tree.items.keys() <= _UNITS):
        merged = merge(tree, added)
        assert isinstance(merged, Node)
        return merged
    return Node({**tree.items, **added.items}, tree.origin, {**(tree.keys or {}), **(added.keys or {})})


def dotted(path: Path_) -> str:
    """`a.b[0].c`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
