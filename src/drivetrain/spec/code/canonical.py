"""What a Python module does, as a digest: of its syntax tree, without what no interpreter acts on.

Comments, docstrings, formatting and the spelling of literals do not count. The tree is written by rules of our own,
since `ast.dump` and the byte code differ from one Python to the next.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

DIGITS = 16
"""Hex digits of a digest."""
_UNSEEN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields that follow from the rest of the tree, or that nothing acts on."""


@dataclass(frozen=True)
class Import:
    """One import of a module: `from` the `level`-th package above, or absolutely for 0, `module`, and of it `names`."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


@dataclass(frozen=True)
class ModuleSyntax:
    """What is read from a module's source: the digest of what it does, what it imports, and the files it declares."""

    digest: str
    imports: tuple[Import, ...] = ()
    declared: tuple[tuple[str, tuple[str, ...] | None], ...] = ()
    """Pairs of a class and its `code_files`; None where these are no literal list of strings."""


class _Word(str):
    """A part of the written tree that stands for structure, and not for a name or a literal."""


def read_syntax(source: bytes) -> ModuleSyntax:
    """The digest, imports and declared files of a source. One that this Python cannot parse counts by its bytes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ModuleSyntax(bytes_digest(source))
    return ModuleSyntax(tree_digest(tree), tuple(_imports(tree)), tuple(_declared(tree)))


def tree_digest(tree: ast.AST) -> str:
    """16 hex digits over a tree, the same on every Python that parses its source."""
    content = hashlib.sha256()
    for word in _written(tree):
        content.update(word.encode() + b"\0")
    return content.hexdigest()[:DIGITS]


def bytes_digest(content: bytes) -> str:
    """16 hex digits over what is no Python source: compiled extensions, declared files."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _written(tree: ast.AST) -> Iterator[str]:
    """The tree in prefix order. A stack instead of recursion: a long sum is a deep tree."""
    stack: list[Any] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, _Word):
            yield part
        elif isinstance(part, ast.AST):
            stack += reversed([_Word(type(part).__name__), *_fields(part), _Word(")")])
        elif isinstance(part, list):
            stack += reversed([_Word("["), *part, _Word("]")])
        else:
            yield _leaf(part)


def _fields(node: ast.AST) -> Iterator[Any]:
    """The fields that say something, each after its name. Empty ones are passed over: newer Pythons have more."""
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _UNSEEN or value is None:
            continue
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            value = [statement for statement in value if not _does_nothing(statement)]
        elif isinstance(node, ast.JoinedStr):
            value = _joined(value)
        if value != [] and not _is_empty_text(value):
            yield _Word(name)
            yield value


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether it is a docstring, another literal that stands alone, or `pass`."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _joined(parts: Iterable[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string with neighbouring texts as one, and none empty: Pythons cut them at other places."""
    whole: list[ast.expr] = []
    for part in parts:
        text = isinstance(part, ast.Constant)
        if text and whole and isinstance(whole[-1], ast.Constant):
            whole[-1] = ast.Constant(f"{whole[-1].value}{part.value}")
        elif not text or part.value:
            whole.append(part)
    return whole


def _is_empty_text(value: Any) -> bool:
    """An empty format, as in f"{x:}", which some Pythons leave out."""
    return isinstance(value, ast.JoinedStr) and not value.values


def _leaf(value: Any) -> str:
    """A name or a literal with its type: 1, 1.0 and True are equal, and not the same."""
    # Escaped, as Pythons disagree on which characters can be printed; in hex, as they limit the length of decimals.
    text = hex(value) if type(value) is int else ascii(value)
    return f"{type(value).__name__}:{text}"


def _imports(tree: ast.AST) -> Iterator[Import]:
    """Everything that is imported anywhere in a module, by a statement or by a call with the name as a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level)
        elif isinstance(node, ast.Call) and node.args and _called(node) in ("import_module", "__import__"):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value[:1] not in ("", "."):
                yield Import(name.value)


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _declared(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """The `code_files` of the classes in a module."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if "code_files" in _assigned(statement):
                yield node.name, _literal(statement.value)  # type: ignore[attr-defined]


def _assigned(statement: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _literal(value: ast.expr) -> tuple[str, ...] | None:
    """A literal list or tuple of strings; None for all else."""
    try:
        files = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    if isinstance(files, (list, tuple)) and all(isinstance(file, str) for file in files):
        return tuple(files)
    return None
