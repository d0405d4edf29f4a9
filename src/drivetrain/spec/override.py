"""Overrides of the command line: `a.b[0].c=value` on top of a tree."""

from __future__ import annotations

import re

from drivetrain.spec.parse import parse
from drivetrain.spec.tree import UNITS, Mistake, Node, Origin, Path_, RecipeMistakes, Tree, Value, merge

_STEP = re.compile(r"([A-Za-z0-9_\-]+)|\[(\d+)\]")


def override(tree: Tree, text: str) -> Tree:
    """The tree with one `a.b[0].c=value` of the command line on top. Raises RecipeMistakes where it says nothing."""
    origin = Origin("command line", text=text)
    path_text, sign, value_text = text.partition("=")
    path = _parse_path(path_text.strip())
    if not sign or path is None:
        raise RecipeMistakes([Mistake((), "an override is key=value, such as optimizer.lr=1e-3", origin)])
    mistakes: list[Mistake] = []
    value = parse(value_text, origin, mistakes, path) if value_text.strip() else Value(None, origin)
    if mistakes:
        raise RecipeMistakes(mistakes)
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
    if key == "kind" or (key in UNITS and tree.items.keys() <= UNITS):
        merged = merge(tree, added)
        assert isinstance(merged, Node)
        return merged
    return Node({**tree.items, **added.items}, tree.origin, {**(tree.keys or {}), **(added.keys or {})})
