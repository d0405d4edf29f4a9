"""Protobuf's text format without a schema: fields in their order, each with its line.

What a value is (a number, a name, a truth) says its schema, so scalars stay what they are written as.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from drivetrain.spec.text import shortened

_DEEPEST = 64
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?)(?![\w.]))
    |(?P<word>-?[A-Za-z_][\w./]*|\[[A-Za-z_][\w./-]*\](?=\s*[:{<]))
    |(?P<mark>[{}<>:;,\[\]])
    |(?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|([^\\]+)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSING = {"{": "}", "<": ">"}


class NotProtoTextError(ValueError):
    """A text is not in this format; `line` is where that shows."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Scalar:
    """A value as it is written; of a text in quotes, what it stands for."""

    written: str
    line: int
    quoted: bool = False


@dataclass(frozen=True)
class Field:
    """A name and what it is given. A list of values is as many fields of one name."""

    name: str
    line: int
    value: Scalar | Message


@dataclass(frozen=True)
class Message:
    """Fields in their order; a name may come again."""

    fields: tuple[Field, ...]
    line: int


def read_message(text: str) -> Message:
    """The message of a whole text. Raises NotProtoTextError where it is none."""
    return _Reader(text).message("", 1, 0)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int

    @property
    def shown(self) -> str:
        return repr(shortened(self.text, 40)) if self.text else "the end"


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "bad"
        if kind == "bad":
            what = "a string does not end in its line" if found[0] in "\"'" else f"{found[0]!r} means nothing here"
            raise NotProtoTextError(line, what)
        if kind != "space":
            yield _Token(kind, found[0], line)
        line += found[0].count("\n")
    yield _Token("end", "", line)


class _Reader:
    """Reads one token after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def message(self, closing: str, opened: int, depth: int) -> Message:
        """All fields up to the closing bracket; "" for the end of the text."""
        if depth > _DEEPEST:
            raise NotProtoTextError(opened, f"it is nested deeper than {_DEEPEST} levels")
        fields: list[Field] = []
        while not self._ends(closing, opened):
            fields += self._field(depth)
            if self._next.text in (",", ";"):
                self._take()
        return Message(tuple(fields), opened)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _ends(self, closing: str, opened: int) -> bool:
        token = self._next
        if token.kind == "end":
            if closing:
                raise NotProtoTextError(opened, f"what opens here is never closed with {closing!r}")
            return True
        if closing and token.text == closing:
            self._take()
            return True
        return False

    def _field(self, depth: int) -> Iterator[Field]:
        name = self._take()
        if name.kind != "word" or name.text.startswith("-"):
            raise NotProtoTextError(name.line, f"expected a field's name, not {name.shown}")
        if self._next.text == ":":
            self._take()
        elif self._next.text not in ("{", "<", "["):
            raise NotProtoTextError(self._next.line, f"expected ':' after {name.text}, not {self._next.shown}")
        if self._next.text != "[":
            yield Field(name.text, name.line, self._value(depth))
            return
        opened = self._take().line
        while not self._ends("]", opened):
            line = self._next.line
            yield Field(name.text, line, self._value(depth))
            if self._next.text == ",":
                self._take()
            elif self._next.kind != "end" and self._next.text != "]":
                raise NotProtoTextError(self._next.line, f"expected ',' or ']', not {self._next.shown}")

    def _value(self, depth: int) -> Scalar | Message:
        token = self._take()
        if token.text in _CLOSING and token.kind == "mark":
            return self.message(_CLOSING[token.text], token.line, depth + 1)
        if token.kind == "text":
            # Strings that follow each other are one.
            parts = [_unquoted(token)]
            while self._next.kind == "text":
                parts.append(_unquoted(self._take()))
            return Scalar("".join(parts), token.line, quoted=True)
        if token.kind not in ("number", "word"):
            raise NotProtoTextError(token.line, f"expected a value, not {token.shown}")
        return Scalar(token.text, token.line)


def _unquoted(token: _Token) -> str:
    found = bytearray()
    for escape, plain in _ESCAPE.findall(token.text[1:-1]):
        if plain:
            found += plain.encode("utf-8", "surrogatepass")
        elif escape[0] in "01234567":
            found.append(int(escape, 8) & 255)
        elif escape[0] in "xX" and len(escape) > 1:
            found.append(int(escape[1:], 16))
        elif escape[0] in "uU" and len(escape) > 1:
            found += _character(int(escape[1:], 16), token.line)
        else:
            plain = _ESCAPED.get(escape)
            found += (plain or escape).encode()
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise NotProtoTextError(token.line, f"{token.shown} is no UTF-8 text") from None


def _character(code: int, line: int) -> bytes:
    try:
        return chr(code).encode()
    except (ValueError, UnicodeEncodeError):
        raise NotProtoTextError(line, f"{code:#x} is no character") from None
