"""JSON with the line of every key. As to DeepSpeed, comments and commas before a closing bracket are no mistake."""

from __future__ import annotations

import json
import re

from drivetrain.spec.text import shortened
from drivetrain.spec.tree import Mistake, Origin, Path_, Tree, TreeNode, Value, fitting

_DEEPEST = 64
_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(r'[{}\[\]:,]|"(?:[^"\\\n]|\\.)*"|[^\s{}\[\]:,"]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}


class NotJsonError(ValueError):
    """A text is no JSON; `line` is where that shows."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def json_tree(text: str, file: str, mistakes: list[Mistake]) -> TreeNode:
    """The tree of a JSON object. Keys that are given twice, and values that no recipe could hold, are added to
    `mistakes`. Raises NotJsonError where it is none."""
    reader = _Reader(text, file, mistakes)
    tree = reader.value((), reader.token())
    if reader.token():
        raise NotJsonError(reader.line, "there is more after its end")
    if not isinstance(tree, TreeNode) or not isinstance(tree.items, dict):
        raise NotJsonError(1, "it is no JSON object, {...}")
    return tree


class _Reader:
    """Reads one token after the other, from the text's start on."""

    def __init__(self, text: str, file: str, mistakes: list[Mistake]) -> None:
        self._text = text
        self._file = file
        self._mistakes = mistakes
        self._at = 0
        self.line = 1  # of the last token

    def token(self) -> str:
        """The next token; empty at the end."""
        start = self._at
        space = _SPACE.match(self._text, start)
        begin = space.end() if space else start
        # A string has no line break, so lines only grow between tokens.
        self.line += self._text.count("\n", start, begin)
        found = _TOKEN.match(self._text, begin)
        if found is None and begin < len(self._text):
            raise NotJsonError(self.line, "a string does not end in its line")
        self._at = found.end() if found else begin
        return found.group() if found else ""

    def value(self, path: Path_, token: str) -> Tree:
        """The tree of the value that begins with this token."""
        if len(path) > _DEEPEST:
            raise NotJsonError(self.line, f"it is nested deeper than {_DEEPEST} levels")
        if token == "{":
            return self._object(path)
        if token == "[":
            return self._array(path)
        origin = self._origin()
        return Value(fitting(self._scalar(token), path, origin, self._mistakes), origin)

    def _object(self, path: Path_) -> TreeNode:
        origin, items, keys = self._origin(), {}, {}
        while (token := self.token()) != "}":
            if not token.startswith('"'):
                raise NotJsonError(self.line, f"expected a key in quotes or '}}', not {_shown(token)}")
            place = self._origin()
            key = fitting(self._scalar(token), path, place, self._mistakes)
            if (token := self.token()) != ":":
                raise NotJsonError(self.line, f"expected ':' after {_shown(key)}, not {_shown(token)}")
            here = (*path, key)
            if key in items:
                message = f"is given twice; the first is in line {keys[key].line}"
                self._mistakes.append(Mistake(here, message, place))
            items[key], keys[key] = self.value(here, self.token()), place
            if self._ends("}"):
                break
        return TreeNode(items, origin, keys)

    def _array(self, path: Path_) -> TreeNode:
        origin, items = self._origin(), []
        while (token := self.token()) != "]":
            items.append(self.value((*path, len(items)), token))
            if self._ends("]"):
                break
        return TreeNode(items, origin)

    def _ends(self, bracket: str) -> bool:
        """Whether the bracket is next; otherwise a comma has to be."""
        token = self.token()
        if token not in (bracket, ","):
            raise NotJsonError(self.line, f"expected ',' or {bracket!r}, not {_shown(token)}")
        return token == bracket

    def _scalar(self, token: str) -> str | float | bool | None:
        if token.startswith('"'):
            try:
                return json.loads(token)
            except ValueError as error:
                raise NotJsonError(self.line, f"{_shown(token)} is no string: {error}") from None
        if token in _WORDS:
            return _WORDS[token]
        number = _NUMBER.fullmatch(token)
        if number is None:
            raise NotJsonError(self.line, f"expected a value, not {_shown(token)}")
        whole = number.group(1) is None and number.group(2) is None
        # Longer ones are beyond 64 bits anyway, and Python refuses to read thousands of digits.
        return int(token[:40]) if whole else float(token)

    def _origin(self) -> Origin:
        return Origin("file", self._file, self.line)


def _shown(token: str) -> str:
    return repr(shortened(token, 40)) if token else "the end"


def line_of(tree: TreeNode, path: Path_) -> int:
    """The line of a key; where it is not there, that of the longest part of its path that is."""
    line = tree.origin.line
    node: Tree = tree
    for part in path:
        if not isinstance(node, TreeNode) or not isinstance(node.items, dict) or part not in node.items:
            break
        line = (node.keys or {})[str(part)].line
        node = node.items[part]
    return line
