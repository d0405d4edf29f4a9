"""Lines of code: those with something on them that is no comment and no docstring."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NOTHING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_NETWORKS = ("Module", "Sequential", "Transformer")


@dataclass(frozen=True)
class Lines:
    """Lines of classes that are networks, and all others."""

    networks: int
    others: int

    def __str__(self) -> str:
        return f"{self.networks + self.others} ({self.networks} + {self.others})"


def count(files: Iterable[Path]) -> Lines:
    """Lines of Python files and recipes together."""
    networks = others = 0
    for file in files:
        text = file.read_text()
        if file.suffix == ".py":
            used, inside = code(text), network_lines(text)
            networks += len(used & inside)
            others += len(used - inside)
        else:
            others += sum(bool(line.partition("#")[0].strip()) for line in text.splitlines())
    return Lines(networks, others)


def code(text: str) -> set[int]:
    """The numbers of lines that have code."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOTHING:
            used |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone is a docstring, or stands for one.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return used


def network_lines(text: str) -> set[int]:
    """The numbers of lines within classes that extend a network of torch's."""
    inside: set[int] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith(_NETWORKS) for base in node.bases):
            inside |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return inside
