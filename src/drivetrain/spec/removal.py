"""What a recipe takes out of the one that it builds on: `null` for an entry of a mapping by name."""

from __future__ import annotations

from dataclasses import fields, replace

from drivetrain.spec.registry import BY_NETWORK, KINDS, imported
from drivetrain.spec.tree import Path_, Tree, TreeNode, Value

_BY_NAME: tuple[Path_, ...] = (
    ("data", "validation"),
    ("data", "test"),
    ("networks",),
    ("launch", "targets"),
    *((section,) for section in BY_NETWORK),
)
"""Mappings whose keys are names that the recipe gives. In others null is a value."""


def without_removed(tree: Tree, path: Path_ = ()) -> Tree:
    """The tree without the entries by name that a null was put over. One that nothing was there for stays: that is a
    mistake, and is told as one."""
    if not isinstance(tree, TreeNode) or not isinstance(tree.items, dict):
        return tree
    kept: dict[str, Tree] = {}
    by_name = path in _BY_NAME and "kind" not in tree.items
    for key, value in tree.items.items():
        below = (*path, key)
        if isinstance(value, Value) and value.removes and by_name and _is_name(path, key):
            continue
        if any(place[: len(below)] == below for place in _BY_NAME):
            value = without_removed(value, below)
        kept[key] = value
    return replace(tree, items=kept)


def _is_name(path: Path_, key: str) -> bool:
    """Whether a key is a network's name, where a section may also be one for all networks."""
    if path[0] not in BY_NETWORK:
        return True
    known = {"kind"}
    for kind in KINDS[str(path[0])].values():
        known.update(field.name for field in fields(imported(kind)))
    return key not in known
