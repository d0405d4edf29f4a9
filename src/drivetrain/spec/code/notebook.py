"""The source of a class that stands in no file: in a notebook's cells, or typed at a prompt.

A notebook has no one source: cells are run in any order, and again. What counts is what the class refers to now: the
classes, functions and plain values of these names, as they are in memory, and what these refer to in turn.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class SourceInMemory:
    """The source that makes the same names again, in the order of their names; `unread` are names of which nothing can
    be said: there is no source of them, and they are no plain values."""

    text: str
    unread: frozenset[str]


def source_in_memory(namespace: Mapping[str, Any], name: str) -> SourceInMemory:
    """The source of a class in a namespace without a file, and of all in it that it refers to."""
    parts: dict[str, str] = {}
    unread: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in parts or name in unread or name not in namespace:
            continue
        text = _text(name, namespace[name])
        if text is None:
            unread.add(name)
            continue
        parts[name] = text
        waiting += _names(text)
    return SourceInMemory("\n".join(parts[name] for name in sorted(parts)), frozenset(unread))


def _text(name: str, value: Any) -> str | None:
    """The statement that gives a name its value; None where nobody knows it."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(own, str) and module != "__main__":
        return f"from {module} import {own.partition('.')[0]} as {name}"
    if isinstance(value, (type, FunctionType)):
        return _defined(value)
    if _is_plain(value):
        return f"{name} = {value!r}"
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    return type(value) in _PLAIN


def _defined(value: type | FunctionType) -> str | None:
    """The text of a class or function, from the cell that it was made by."""
    for code in _codes(value):
        source = "".join(linecache.getlines(code.co_filename))
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            ours = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            if ours and node.name == value.__name__ and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                return ast.unparse(node)
    return None


def _codes(value: type | FunctionType) -> Iterator[CodeType]:
    """The code of a function, or of a class's methods."""
    members = [value] if isinstance(value, FunctionType) else vars(value).values()
    for member in members:
        inner = unwrap(getattr(member, "__func__", None) or getattr(member, "fget", None) or member)
        if isinstance(inner, FunctionType) and inner.__module__ in ("__main__", None):
            yield inner.__code__


def _names(text: str) -> Iterator[str]:
    """The names that a statement reads."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            yield node.id
