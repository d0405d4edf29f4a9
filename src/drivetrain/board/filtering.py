"""Which runs are shown: `optimizer.lr > 1e-4 and (state = trains or tag = baseline)`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from drivetrain.spec.exits import Exit, Failure

LONGEST = 500
"""Characters of a filter."""
_DEEPEST = 20  # parentheses within parentheses
_TOKEN = re.compile(r'(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>!=|<=|>=|!~|[=<>~()])|(?P<word>[^\s=<>~()!"]+))')
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(%?)", re.ASCII | re.IGNORECASE)
_WORDS = frozenset({"and", "or", "not"})
Values = Callable[[str], Any]
"""The value of a key; None where there is none, a list where any of several may fit."""


class Filter(Protocol):
    """Something that holds of a run, or does not."""

    def holds(self, values: Values) -> bool:
        """Whether it holds of a run with these values."""
        ...

    def keys(self) -> Iterator[str]:
        """The keys that it asks for."""
        ...


@dataclass(frozen=True)
class Comparison:
    """KEY OP VALUE. A number is compared as one where both sides are."""

    key: str
    operator: str
    value: str

    def holds(self, values: Values) -> bool:
        """Whether it holds; where there is no such value, only `!=` and `!~` do."""
        found = values(self.key)
        several = found if isinstance(found, (list, tuple)) else [found]
        negated = self.operator.startswith("!")
        return any(map(self._fits, several)) != negated

    def _fits(self, value: Any) -> bool:
        if value is None:
            return False
        operator = {"!=": "=", "!~": "~"}.get(self.operator, self.operator)
        if operator == "~":
            return self.value.lower() in _text(value).lower()
        mine, theirs = _number(self.value), _number(value)
        if mine is None or theirs is None:
            return operator == "=" and _text(value).lower() == self.value.lower()
        return _COMPARED[operator](theirs, mine)

    def keys(self) -> Iterator[str]:
        """The one key."""
        yield self.key


@dataclass(frozen=True)
class Junction:
    """All of some (`and`), or any of them (`or`)."""

    word: str
    parts: Sequence[Filter]

    def holds(self, values: Values) -> bool:
        """Whether all, or any, hold."""
        each = (part.holds(values) for part in self.parts)
        return all(each) if self.word == "and" else any(each)

    def keys(self) -> Iterator[str]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.keys()


@dataclass(frozen=True)
class Negation:
    """Not."""

    part: Filter

    def holds(self, values: Values) -> bool:
        """Whether the part does not."""
        return not self.part.holds(values)

    def keys(self) -> Iterator[str]:
        """Those of the part."""
        yield from self.part.keys()


_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def parse(text: str) -> Filter:
    """The filter that was written; a bare word is part of a run's name. Raises Failure(64) with the place."""
    if len(text) > LONGEST:
        raise _wrong(LONGEST, "it is longer than a filter may be")
    return _Parser(_tokens(text), len(text)).whole()


@dataclass(frozen=True)
class _Token:
    text: str
    place: int
    quoted: bool


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(at, f"{text[at:].strip()[:20]!r} is not understood")
        quoted = match["quoted"]
        word = re.sub(r"\\(.)", r"\1", quoted[1:-1]) if quoted else match[match.lastgroup or "word"]
        found.append(_Token(word, match.start(match.lastgroup or "word"), bool(quoted)))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._end = _Token("", end, True)
        self._depth = 0

    def whole(self) -> Filter:
        found = self._either()
        if self._tokens:
            raise _wrong(self._next.place, f"{self._next.text!r} is too much")
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[0] if self._tokens else self._end

    def _take(self, *words: str) -> bool:
        token = self._next
        if token.quoted or token.text.lower() not in words:
            return False
        self._tokens.pop(0)
        return True

    def _either(self) -> Filter:
        return self._joined("or", self._both)

    def _both(self) -> Filter:
        return self._joined("and", self._one)

    def _joined(self, word: str, part: Callable[[], Filter]) -> Filter:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _wrong(self._next.place, "it goes too deep")
        try:
            if self._take("not"):
                return Negation(self._one())
            if self._take("("):
                found = self._either()
                if not self._take(")"):
                    raise _wrong(self._next.place, "a parenthesis is not closed")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Filter:
        key = self._value("a key or a word")
        operator = self._next.text
        if self._next.quoted or operator not in (*_COMPARED, "~", "!=", "!~"):
            return Comparison("name", "~", key)
        self._tokens.pop(0)
        return Comparison(key, operator, self._value("a value"))

    def _value(self, what: str) -> str:
        token = self._next
        if not self._tokens or (not token.quoted and not re.match(r'[^=<>~()!"]', token.text)):
            raise _wrong(token.place, f"{what} is missing")
        if not token.quoted and token.text.lower() in _WORDS:
            raise _wrong(token.place, f"{what} is missing before {token.text!r}; in quotes it is a word")
        return self._tokens.pop(0).text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> float | None:
    """As a recipe writes one, or in percent: what Python takes beyond that, such as `nan` and `1_000`, may be
    somebody's word."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        if found is None:
            return None
        return float(found[1]) / 100 if found[2] else float(found[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _wrong(place: int, why: str) -> Failure:
    hint = "such as optimizer.lr > 1e-4 and state = trains; operators are = != < <= > >= ~ !~"
    return Failure(Exit.BAD_COMMAND, f"the filter at character {place + 1}: {why}", hint)
