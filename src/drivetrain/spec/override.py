"""Overrides of the command line: `a.b[0].c=value` on top of a tree, where a selector may stand for an index."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.check import shown
from drivetrain.spec.parse import parse
from drivetrain.spec.registry import nearest
from drivetrain.spec.tree import (
    UNITS,
    Mistake,
    Origin,
    Path_,
    RecipeMistakes,
    Tree,
    TreeNode,
    Value,
    dotted,
    from_data,
    merge,
    pairs,
)

_KEY = re.compile(r"[A-Za-z0-9_\-]+")
_BRACKET = re.compile(r"""\[([^\[\]]*?[=<>]\s*"(?:[^"\\]|\\.)*"\s*|[^\[\]]*?[=<>]\s*'(?:[^']|'')*'\s*|[^\[\]]*)\]""")
_SLICE = re.compile(r"(-?\d+)?\s*:\s*(-?\d+)?")
_CONDITION = re.compile(r"([A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]+)*)\s*(!=|<=|>=|==?|<|>)\s*(.+)", re.DOTALL)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_DIGITS = 18  # of an index: Python refuses to read thousands, and no list is that long
_MOST_SHOWN = 8  # items that a message names


def override(tree: Tree, text: str) -> Tree:
    """The tree with one `a.b[0].c=value` of the command line on top.

    Every item that the selectors choose gets the value. Raises RecipeMistakes where the text says nothing, where a
    selector cannot be read, and where it chooses nothing.
    """
    origin = Origin("command line", text=text)
    # The tree is not looked at while the text is read: a mistake in the text is the same whatever the recipe.
    steps, value_text = _Reader(text, origin).read()
    named: list[str | int] = []  # the path, as far as it is known before the selectors have chosen
    for step in steps:
        if isinstance(step, str):
            named.append(step)
        elif isinstance(step, _Index):
            named.append(step.at)
    mistakes: list[Mistake] = []
    value: Tree = Value(None, origin)
    if value_text.strip():
        value = parse(value_text, origin, mistakes, tuple(named))
    if mistakes:
        raise RecipeMistakes(mistakes)
    # Kept apart: that one place has nothing for a selector is a mistake only where all places have nothing.
    misses: list[Mistake] = []
    paths = list(_chosen(tree, steps, (), origin, misses))
    if not paths:
        raise RecipeMistakes(misses)
    for path in paths:  # what is put at one leaves the others where they are
        tree = _put(tree, path, value, origin)
    return tree


def chosen(data: Mapping[str, Any], text: str) -> list[str]:
    """The dotted paths that an override puts its value at, in plain data. Raises RecipeMistakes as `override` does."""
    origin = Origin("command line", text=text)
    tree, steps = from_data(data, origin, [], {}), _Reader(text, origin).read()[0]
    return [dotted(path) for path in _chosen(tree, steps, (), origin, [])]


def sets_kind(text: str) -> bool:
    """Whether an override sets a `kind`, which comes before the others, since another kind drops the old one's keys."""
    try:
        return _Reader(text, Origin("command line", text=text)).read()[0][-1] == "kind"
    except RecipeMistakes:
        return False


@dataclass(frozen=True)
class _Index:
    """`[0]`, or `[-1]` from the end."""

    at: int

    def __str__(self) -> str:
        return f"[{self.at}]"

    def keys(self, tree: Tree | None) -> list[int]:
        """The one item, if it is there."""
        count = len(_items(tree)) if _is_list(tree) else 0
        if not -count <= self.at < count:
            return []
        return [self.at % count]

    def miss(self, tree: Tree | None) -> str:
        """Why there is none."""
        return f"there is no such item: {_told(tree)}"


@dataclass(frozen=True)
class _Slice:
    """`[:]`, `[1:3]`, `[-2:]`: items of a list, as Python counts them."""

    start: int | None
    stop: int | None
    text: str

    def __str__(self) -> str:
        return f"[{self.text}]"

    def keys(self, tree: Tree | None) -> list[int]:
        """The items from start to before stop."""
        if not _is_list(tree):
            return []
        return list(range(len(_items(tree))))[self.start : self.stop]

    def miss(self, tree: Tree | None) -> str:
        """Why there are none."""
        return f"{self} chooses nothing: {_told(tree)}"


@dataclass(frozen=True)
class _Every:
    """`[*]`: every key of a mapping, every item of a list."""

    def __str__(self) -> str:
        return "[*]"

    def keys(self, tree: Tree | None) -> list[str | int]:
        """All of them."""
        return list(_items(tree))

    def miss(self, tree: Tree | None) -> str:
        """Why there are none."""
        return f"{self} chooses nothing: {_told(tree)}"


@dataclass(frozen=True)
class _Where:
    """`[name=books]`, `[weight>0.5]`, `[a.b!=c]`: the items of a list or mapping whose field compares so.

    An item without the field is never chosen, not by `!=` either: what is not there has no value that could differ.
    """

    field: tuple[str, ...]
    sign: str
    value: Any
    text: str

    def __str__(self) -> str:
        return f"[{self.text}]"

    def keys(self, tree: Tree | None) -> list[str | int]:
        """The items that compare so."""
        chosen: list[str | int] = []
        for key, item in _items(tree).items():
            found = self._of(item)
            if found is not None and self._holds(found.value):
                chosen.append(key)
        return chosen

    def miss(self, tree: Tree | None) -> str:
        """Why there are none: what the field is in each item."""
        items = _items(tree)
        if not items:
            return f"{self} chooses nothing: {_told(tree)}"
        parts: list[str] = []
        words: list[str] = []
        for key, item in items.items():
            found = self._of(item)
            what = "missing" if found is None else shown(found.value)
            parts.append(f"{what} in {_label(key)}")
            if found is not None and isinstance(found.value, str):
                words.append(found.value)
        near = ""
        # Where the word is there, another sign was asked for: a near word would mislead.
        if isinstance(self.value, str) and self.value not in words:
            near = nearest(self.value, words)
        return f"{self} chooses nothing: {'.'.join(self.field)} is {_listed(parts)}{near}"

    def _of(self, item: Tree | None) -> Value | None:
        """The field of an item, where it has it and it is a scalar."""
        for key in self.field:
            item = _child(item, key)
        return item if isinstance(item, Value) else None

    def _holds(self, value: Any) -> bool:
        if self.sign in _ORDER:
            return _is_number(value) and _ORDER[self.sign](value, self.value)
        same = value == self.value and isinstance(value, bool) == isinstance(self.value, bool)  # Python's True is 1
        return same if self.sign == "=" else not same


_Selector = _Index | _Slice | _Every | _Where
_Step = str | _Selector


class _Reader:
    """Reads the text of an override; the mistakes say at which character they stand."""

    def __init__(self, text: str, origin: Origin) -> None:
        self._text = text
        self._origin = origin
        self._steps: list[_Step] = []
        self._at = 0

    def read(self) -> tuple[list[_Step], str]:
        """The steps before the equals sign, and the text after it."""
        self._skip_spaces()
        while True:
            self._read_key()
            while self._next() == "[":
                self._read_selector()
            if self._next() != ".":
                break
            self._at += 1
        self._skip_spaces()
        if self._next() != "=":
            raise self._nothing_said()
        return self._steps, self._text[self._at + 1 :]

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_spaces(self) -> None:
        self._at = len(self._text) - len(self._text[self._at :].lstrip())

    def _read_key(self) -> None:
        found = _KEY.match(self._text, self._at)
        if found is None:
            raise self._nothing_said()
        self._steps.append(found.group())
        self._at = found.end()

    def _read_selector(self) -> None:
        found = _BRACKET.match(self._text, self._at)
        if found is None:
            raise self._bad("the bracket is not closed, or has another one in it without quotes around that value")
        self._steps.append(self._selector(found.group(1).strip()))
        self._at = found.end()

    def _selector(self, text: str) -> _Selector:
        if text == "*":
            return _Every()
        if re.fullmatch(r"-?\d+", text) and len(text) <= _MOST_DIGITS:
            return _Index(int(text))
        if (found := _SLICE.fullmatch(text)) and len(text) <= _MOST_DIGITS:
            start, stop = map(_place_or_none, found.groups())
            return _Slice(start, stop, text)
        if found := _CONDITION.fullmatch(text):
            field, sign, value = found.groups()
            return self._condition(tuple(field.split(".")), sign.replace("==", "="), value, text)
        raise self._bad(f"[{text}] is no selector; there are [0], [-1], [1:3], [:], [*], [name=x], [a.b!=x], [size>1]")

    def _condition(self, field: tuple[str, ...], sign: str, text: str, whole: str) -> _Where:
        mistakes: list[Mistake] = []
        try:
            value = parse(text, self._origin, mistakes)
        except RecipeMistakes as wrong:
            raise self._bad(f"[{whole}]: {wrong.mistakes[-1].message}") from None
        if mistakes:
            raise self._bad(f"[{whole}]: {mistakes[0].message}", refused=any(mistake.refused for mistake in mistakes))
        if not isinstance(value, Value):
            raise self._bad(f"[{whole}]: a field is compared with one word or number; quotes make any text a word")
        # Texts have an order of their own, by which 10 comes before 9.
        if sign in _ORDER and not _is_number(value.value):
            raise self._bad(f"[{whole}]: {sign} compares numbers, and {shown(value.value)} is none")
        return _Where(field, sign, value.value, whole)

    def _nothing_said(self) -> RecipeMistakes:
        return RecipeMistakes([Mistake((), "an override is key=value, such as optimizer.lr=1e-3", self._origin)])

    def _bad(self, message: str, refused: bool = False) -> RecipeMistakes:
        """A mistake in the selector at this character; its place is the path before it."""
        path = tuple(step for step in self._steps if isinstance(step, str))
        message = f"{message} (character {self._at + 1})"
        return RecipeMistakes([Mistake(path, message, self._origin, refused)])


def _place_or_none(text: str | None) -> int | None:
    """The bound of a slice, None where it is left out."""
    if text is None:
        return None
    return int(text)


def _chosen(
    tree: Tree | None, steps: list[_Step], above: Path_, origin: Origin, misses: list[Mistake]
) -> Iterator[Path_]:
    """The paths that steps lead to, without selectors; where a selector leads nowhere, why, in `misses`."""
    if not steps:
        yield above
        return
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        yield from _chosen(_child(tree, step), rest, (*above, step), origin, misses)
        return
    keys = step.keys(tree)
    if not keys and len(misses) < _MOST_SHOWN:
        place = (*above, step.at) if isinstance(step, _Index) else above
        misses.append(Mistake(place, step.miss(tree), origin))
    for key in keys:
        yield from _chosen(_items(tree)[key], rest, (*above, key), origin, misses)


def _items(tree: Tree | None) -> dict[Any, Tree]:
    """What a list or a mapping has, by index or key; a scalar has nothing."""
    if not isinstance(tree, TreeNode):
        return {}
    return dict(pairs(tree.items))


def _child(tree: Tree | None, key: str) -> Tree | None:
    if _is_list(tree):
        return None
    return _items(tree).get(key)


def _is_list(tree: Tree | None) -> bool:
    return isinstance(tree, TreeNode) and isinstance(tree.items, list)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _told(tree: Tree | None) -> str:
    """What is there instead of what a selector looks for."""
    if _is_list(tree):
        return f"the list has {len(_items(tree))}"
    if isinstance(tree, TreeNode):
        if not tree.items:
            return "the mapping is empty"
        return f"it is a mapping of {_listed(list(tree.items))}"
    if tree is None:
        return "the list has 0"
    return f"it is no list, but {shown(tree.value)}"


def _listed(parts: list[str]) -> str:
    listed = ", ".join(parts[:_MOST_SHOWN])
    if len(parts) > _MOST_SHOWN:
        listed += f" and {len(parts) - _MOST_SHOWN} more"
    return listed


def _label(key: str | int) -> str:
    return f"[{key}]" if isinstance(key, int) else key


def _put(tree: Tree | None, path: Path_, value: Tree, origin: Origin) -> Tree:
    """The tree with a value at a path; items of lists are there, keys of mappings may be new."""
    if not path:
        emptied = isinstance(value, TreeNode) and not value.items  # `key={}` takes away what was there
        if tree is None or emptied:
            return value
        return merge(tree, value)
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        assert isinstance(tree, TreeNode)
        items = list(tree.items)
        # A new list: others may share this tree.
        items[key] = _put(items[key], rest, value, origin)
        return TreeNode(items, tree.origin)
    added = TreeNode({key: _put(_child(tree, key), rest, value, origin)}, origin, {key: origin})
    if not isinstance(tree, TreeNode) or not isinstance(tree.items, dict):
        return added
    return _over(tree, added, key)


def _over(tree: TreeNode, added: TreeNode, key: str) -> TreeNode:
    """`added`, whose one item is complete already, over `tree`: the rules for kinds and units are left to apply."""
    if key == "kind" or (key in UNITS and tree.items.keys() <= UNITS):
        merged = merge(tree, added)
        assert isinstance(merged, TreeNode)
        return merged
    return TreeNode({**tree.items, **added.items}, tree.origin, {**(tree.keys or {}), **(added.keys or {})})
