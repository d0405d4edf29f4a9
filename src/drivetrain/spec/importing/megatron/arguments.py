"""Arguments of a command with their lines: in a shell script, in a file that has nothing else, or in YAML.

A script is read and never run. What it sets to one text only is known; a name that the shell or its caller fills in
stays as it is, `$NAME`. Of branches all are read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from drivetrain.spec.importing.findings import Findings, Told
from drivetrain.spec.parse import parse
from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes, Tree, TreeNode, Value, fitting

YAML = re.compile(r"^\s*(?:MODEL_ARGS\s*:\s*$|['\"]?--[a-z][\w-]*['\"]?\s*:(?:\s|$))", re.MULTILINE)
"""A line that only a YAML file of arguments has."""
_TOKEN = re.compile(
    r"""
    (?P<comment> (?<!\S)\#[^\n]*)
  | (?P<joined> \\\n)
  | (?P<line> \n)
  | (?P<end> \|\|? | &&? | ;+ | <+ | >+)
  | (?P<open> \()
  | (?P<close> \))
  | (?P<space> [^\S\n]+)
  | (?P<word> (?: \$\((?:[^()]|\([^()]*\))*\) | `[^`]*` | \$\{[^}]*\} | "(?:[^"\\]|\\.)*" | '[^']*' | \\.
                | [^\s"'`\\;|&()<>] )+ )
  | (?P<other> .)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)\+?=(?P<value>.*)", re.DOTALL)
_ARGUMENT = re.compile(r"--(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_NAME = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\})")
_ARGUMENTS = re.compile(r"(?:^|\s)--[a-z]")
_PROGRAM = re.compile(r"-[A-Za-z]\w*|.*\.(?:py|sh)", re.DOTALL)
"""What a launcher's arguments end with: the program that it starts, or a short option."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_MOST_NAMES = 8  # names within names; a script that goes round in circles has more


class _Given(NamedTuple):
    """One argument as it is written, and the words after it."""

    name: str
    words: list[str]
    line: int


def arguments(text: str, findings: Findings) -> TreeNode:
    """What a text gives, by argument (`--num-layers`): a number, a text, true where nothing follows, a list of several.

    An argument that is given again with something else is told of; the last one counts, as in the program.
    """
    if YAML.search(text):
        return _of_yaml(text, findings)
    items: dict[str, Tree] = {}
    keys: dict[str, Origin] = {}
    for given in _of_script(text):
        origin = Origin("file", findings.source.name, given.line)
        values = [
            Value(fitting(_scalar(word), (given.name,), origin, findings.mistakes), origin) for word in given.words
        ]
        value: Tree = TreeNode(values, origin)
        if len(values) < 2:
            value = values[0] if values else Value(True, origin)
        _give(given.name, value, origin, (items, keys), findings)
    return TreeNode(items, Origin("file", findings.source.name, 1), keys)


def is_open(value: Any) -> bool:
    """Whether a value is the shell's or the caller's to fill in."""
    return isinstance(value, str) and ("$" in value or "`" in value)


def _give(
    name: str, value: Tree, origin: Origin, into: tuple[dict[str, Tree], dict[str, Origin]], findings: Findings
) -> None:
    items, keys = into
    before = items.get(name)
    if before is not None and _plain(before) != _plain(value):
        why = f"is given again in line {origin.line}, which counts; a script with branches gives one of them"
        findings.lost.append(Told(name, keys[name].line, why))
    items[name], keys[name] = value, origin


def _plain(tree: Tree) -> Any:
    if isinstance(tree, Value):
        return tree.value
    return [_plain(part) for part in tree.items]


def _of_yaml(text: str, findings: Findings) -> TreeNode:
    origin = Origin("file", findings.source.name, 1)
    items: dict[str, Tree] = {}
    keys: dict[str, Origin] = {}
    mistakes: list[Mistake] = []
    try:
        tree = parse(text, origin, mistakes)
    except RecipeMistakes as wrong:
        findings.mistakes += wrong.mistakes
        return TreeNode({}, origin, {})
    for mistake in mistakes:
        if "given twice" in mistake.message:  # a mistake in a recipe; here the program takes the last one
            findings.lost.append(
                Told(str(mistake.path[-1]), mistake.origin.line, f"{mistake.message}; this one counts")
            )
        else:
            findings.mistakes.append(mistake)
    for name, value, place in _named(tree):
        off = isinstance(value, Value) and value.value in (False, None)
        if not off:
            _give(name, value, place, (items, keys), findings)
    return TreeNode(items, origin, keys)


def _named(tree: Tree) -> Iterator[tuple[str, Tree, Origin]]:
    """All arguments of a YAML file, in whatever mappings they stand."""
    if not isinstance(tree, TreeNode) or not isinstance(tree.items, dict):
        return
    for key, value in tree.items.items():
        if key.startswith("--"):
            yield key, value, (tree.keys or {})[key]
        else:
            yield from _named(value)


def _of_script(text: str) -> list[_Given]:
    """All arguments, in their order, with what is known of the names in their words."""
    found, names = _Script(text).read()
    resolved = []
    for given in found:
        words: list[str] = []
        for word in given.words:
            words += _split(_filled(word, names))
        resolved.append(given._replace(words=words))
    return resolved


class _Script:
    """Reads one token after the other."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self._text = text
        self._found: list[_Given] = []
        self._names: dict[str, str | None] = {}
        self._depth = depth  # of arrays, in which a line's end ends nothing
        self._begins = True  # a command may begin here
        self._follows = False  # words belong to the last argument

    def read(self) -> tuple[list[_Given], Mapping[str, str | None]]:
        """All arguments, and what names are set to: None where to several texts."""
        line, before = 1, ""
        for token in _TOKEN.finditer(self._text):
            kind, word = token.lastgroup, token.group()
            if kind == "word":
                self._word(word, line)
            elif kind == "open" and before.endswith("="):
                self._depth, self._follows = self._depth + 1, False
            elif kind == "close":
                self._depth, self._follows = max(0, self._depth - 1), False
            elif kind in ("line", "end") and not self._depth:
                self._begins, self._follows = True, False
            before = word
            line += word.count("\n")
        return self._found, self._names

    def _word(self, word: str, line: int) -> None:
        assigned = _ASSIGNED.fullmatch(word)
        if assigned and self._begins and not self._depth:
            self._assign(assigned["name"], assigned["value"], line)
            return
        self._begins = word in ("export", "local", "readonly")
        parts = _split(_unquoted(word)) if _unquoted(word).startswith("--") else [word]
        for part in parts:
            if argument := _ARGUMENT.fullmatch(part):
                words = [] if argument["value"] is None else [argument["value"]]
                self._found.append(_Given(f"--{argument['name']}", words, line))
                self._follows = True
            elif _PROGRAM.fullmatch(part):
                self._follows = False
            elif self._follows and part.strip() and not _is_array(part):
                self._found[-1].words.append(part)

    def _assign(self, name: str, value: str, line: int) -> None:
        text: str | None = value
        inside = _unquoted(value)
        if _ARGUMENTS.search(inside):  # many at once, which are used by the name
            found, _ = _Script(inside, depth=1).read()
            self._found += [given._replace(line=given.line + line - 1) for given in found]
        if name in self._names and self._names[name] != value:
            text = None
        self._names[name] = text


def _is_array(word: str) -> bool:
    """Whether a word stands for an array's, which are read where they are written."""
    return "[@]" in word or "[*]" in word


def _unquoted(word: str) -> str:
    return re.sub(r"""["'](.*)["']""", r"\1", word, flags=re.DOTALL) if word[:1] in "\"'" else word


def _split(text: str) -> list[str]:
    """Words as the shell makes them of a text; what a command in it would print is one of them."""
    if "$(" in text or "`" in text:
        return [text]
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is alone
        return text.split()


def _filled(word: str, names: Mapping[str, str | None], depth: int = 0) -> str:
    """A word with what names are set to in their places."""

    def text_of(match: re.Match[str]) -> str:
        name = match["bare"] or match["name"]
        found = names.get(name)
        if found is None:
            found = match["default"]
        if found is None or depth == _MOST_NAMES:
            return match.group()
        return _filled(_unquoted(found), names, depth + 1)

    return _NAME.sub(text_of, word)


def _scalar(word: str) -> str | float:
    if _NUMBER.fullmatch(word) is None:
        return word
    digits = word.lstrip("+-")
    return int(word) if digits.isdecimal() and len(digits) < 40 else float(word)
