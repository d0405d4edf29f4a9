"""A recipe as a tree of plain data in which every value knows where it comes from."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import masked
from drivetrain.spec.text import printable

_T = TypeVar("_T")


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
        return f"{self.layer}: {masked(self.text)}" if self.text else self.layer

    @classmethod
    def read(cls, shown: str) -> Origin:
        """The origin that `str` showed; a base is a file here."""
        if place := re.fullmatch(r"(.+):(\d+)", shown, re.DOTALL):
            return cls("file", place.group(1), int(place.group(2)))
        layer, _, text = shown.partition(": ")
        return cls(layer, text=text)


@dataclass(frozen=True)
class Value:
    """A scalar with its origin; `removes`: a null that was put over something."""

    value: Any
    origin: Origin
    removes: bool = False


@dataclass(frozen=True)
class TreeNode:
    """A mapping or a list with its origin; keys have origins too, since a key can be wrong."""

    items: Any  # dict[str, Node | Value] or list[Node | Value]
    origin: Origin
    keys: Mapping[str, Origin] | None = None


Tree = TreeNode | Value
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a recipe, and its place; `refused` where it looks like an attack (77, not 78)."""

    path: Path_
    message: str
    origin: Origin
    refused: bool = False

    def __str__(self) -> str:
        """One line, as compilers write it; what a terminal would obey is escaped."""
        line = ": ".join(filter(None, (str(self.origin), dotted(self.path), self.message)))
        return printable(line)


class RecipeMistakes(Failure):
    """All mistakes of a recipe together; the exit code is 78, or 77 where one is a refusal."""

    def __init__(self, mistakes: Sequence[Mistake], hint: str = "each is listed with its place") -> None:
        self.mistakes = tuple(mistakes)
        refused = [mistake for mistake in mistakes if mistake.refused]
        code = Exit.SECURITY if refused else Exit.BAD_RECIPE
        # The one that the code is of: what else is wrong may follow from it.
        count, first = "1 mistake", str([*refused, *mistakes][0])
        if len(mistakes) > 1:
            count, first = f"{len(mistakes)} mistakes", f"{first} ..."
        super().__init__(code, f"{count} in the recipe: {first}", hint)
        self.details = "\n".join(map(str, self.mistakes))

    def __str__(self) -> str:
        """All mistakes, one a line."""
        return self.details


def fitting(value: Any, path: Path_, origin: Origin, mistakes: list[Mistake]) -> Any:
    """A scalar that JSON can hold; what it cannot, whatever the field, is noted, and a stand-in returned."""
    if isinstance(value, float) and not math.isfinite(value):
        mistakes.append(Mistake(path, f"must be a finite number (got {value})", origin))
        return 0.0
    # Amounts are counted in the end, also those that may be parts of one.
    counted = isinstance(value, int) or (isinstance(value, float) and path[-1:] and path[-1] in UNITS)
    if counted and not -(2**63) <= value < 2**63:
        mistakes.append(Mistake(path, "is a number beyond 64 bits", origin))
        return 0
    if isinstance(value, str):
        try:
            value = value.encode("utf-16", "surrogatepass").decode("utf-16")  # JSON writes wide characters as pairs
        except UnicodeDecodeError:
            mistakes.append(Mistake(path, "is not valid Unicode", origin))
            return value.encode("ascii", "backslashreplace").decode()
        if "\0" in value:
            mistakes.append(Mistake(path, "text with a NUL character is refused", origin, refused=True))
    return value


def from_data(data: Any, origin: Origin, mistakes: list[Mistake], written: Mapping[str, str], path: Path_ = ()) -> Tree:
    """The tree of plain Python data; what is wrong is added to `mistakes`.

    `written` tells where values were first written, by dotted path. Derived ones are left out: they are derived again,
    from what is on top of this tree too.
    """
    if dotted(path) in written:
        origin = Origin.read(written[dotted(path)])
    if isinstance(data, Mapping):
        items: dict[str, Tree] = {}
        for key, value in data.items():
            below = (*path, str(key))
            if not written.get(dotted(below), "").startswith("derived"):
                items[str(key)] = from_data(value, origin, mistakes, written, below)
        return TreeNode(items, origin, {key: value.origin for key, value in items.items()})
    if isinstance(data, (list, tuple)):
        parts = [from_data(value, origin, mistakes, written, (*path, index)) for index, value in enumerate(data)]
        return TreeNode(parts, origin)
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    if not isinstance(data, (str, int, float, type(None))):
        what = f"a {type(data).__name__}"
        if isinstance(data, type):
            what = f"the class {data.__name__}: {_written(data)}"
        mistakes.append(Mistake(path, f"is no plain data, but {what}", origin))
        return Value(None, origin)
    return Value(fitting(data, path, origin, mistakes), origin)


def _written(kind: type) -> str:
    """How a recipe says a class."""
    if "." in kind.__qualname__:
        return "move it out of where it is defined, and write 'module:Name'"
    return f"write '{kind.__module__}:{kind.__qualname__}'"


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
    if isinstance(tree, TreeNode):
        for key, value in pairs(tree.items):
            found |= origins_of(value, (*path, key))
            if tree.keys and isinstance(key, str) and isinstance(value, TreeNode):
                found[(*path, key)] = tree.keys[key]
    return found


def pairs(parts: Mapping[str, _T] | Sequence[_T]) -> Iterable[tuple[str | int, _T]]:
    """What a mapping or a list has, each with its key or its place."""
    if isinstance(parts, Mapping):
        return parts.items()
    return enumerate(parts)


UNITS = frozenset({"steps", "samples", "tokens", "epochs"})
"""The keys of an amount."""


def merge(lower: Tree, upper: Tree) -> Tree:
    """`upper` over `lower`: mappings merge, everything else replaces. A null remembers that it did.

    A mapping that switches `kind` drops the lower one, whose keys mean nothing to the new kind; so does one that gives
    an amount in another unit. A null alone gives none: it takes away what was there in its own unit.
    """
    if isinstance(upper, Value):
        return _over(lower, upper)
    # Also over a null: whoever gives a mapping there wants the section back.
    if isinstance(lower, Value):
        return upper
    if not (isinstance(lower.items, dict) and isinstance(upper.items, dict)):
        return upper
    kind, old = upper.items.get("kind"), lower.items.get("kind")
    # By what is written, and not by which class it leads to: nothing is imported here.
    if kind is not None and old is not None and to_data(kind) != to_data(old):
        return upper
    # An amount is in exactly one unit: merged, `steps` over `epochs` would be two.
    if _gives_amount(upper) and lower.items.keys() <= UNITS:
        return upper
    items = dict(lower.items)
    for key, value in upper.items.items():
        if key in items:
            value = merge(items[key], value)
        items[key] = value
    return TreeNode(items, upper.origin, {**(lower.keys or {}), **(upper.keys or {})})


def _gives_amount(tree: TreeNode) -> bool:
    """Whether a mapping has units and nothing else, one of which is no null."""
    items = tree.items
    return (
        isinstance(items, dict) and items.keys() <= UNITS and any(to_data(item) is not None for item in items.values())
    )


def _over(lower: Tree, upper: Value) -> Value:
    """A scalar over something; a null remembers that something was there."""
    # It is remembered once more where a null is put over one that removed something: it still does.
    there = isinstance(lower, TreeNode) or lower.value is not None or lower.removes
    return replace(upper, removes=there and upper.value is None)


def dotted(path: Path_) -> str:
    """`a.b[0].c`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
