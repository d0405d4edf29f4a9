"""Columns of plain values, such as a service is asked with: lists of Python's numbers and texts, or numpy's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import date
from typing import Any

import numpy as np

from .arrays import BadValue, Place
from .features import NULL, Texts, Vocabulary
from .hashing import hash_bytes

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 64  # of texts that are whole numbers; Python reads no more than some thousands
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class PlainColumns:
    """Rows as a mapping from columns to lists of as many values. None is null, and so are texts among `nulls`."""

    def __init__(self, rows: Mapping[str, Sequence[Any]], wanted: Collection[str], nulls: Collection[str]) -> None:
        """Raises ValueError where a wanted column is missing, is no list, or has another length than the others."""
        if not isinstance(rows, Mapping):
            raise ValueError(f"rows are a {type(rows).__name__}: give a dict of lists, the values of each column")
        self._rows, self._nulls = rows, frozenset(nulls)
        missing = [column for column in wanted if column not in rows]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; there are {', '.join(map(str, rows)) or 'none'}")
        for column in wanted:
            _require_list(column, rows[column])
        lengths = {column: len(rows[column]) for column in wanted}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns have different lengths: {lengths}")

    def values(self, column: str) -> PlainValues:
        """A column of single values."""
        return PlainValues(self._plain(column), Place(column))

    def lists(self, column: str, separator: str | None) -> tuple[PlainValues, np.ndarray]:
        """The values of all lists, and int64 [rows + 1]: where each begins. Raises BadValue."""
        lists: list[Any] = []
        for row, value in enumerate(self._plain(column)):
            if isinstance(value, str):
                if separator is None:
                    raise BadValue(row, column, f"{value!r} is no list, and the feature has no separator")
                value = value.split(separator) if value else ()
            elif value is None:
                value = ()
            elif not isinstance(value, (list, tuple, np.ndarray)):
                raise BadValue(row, column, f"{value!r} is no list")
            lists.append(value)
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)]).astype(np.int64)
        flat: list[Any] = []
        for each in lists:
            flat.extend(each)
        return PlainValues(flat, Place(column, offsets)), offsets

    def mapped(self, column: str, key: str, separator: str) -> PlainValues:
        """Of each row the value that its map has for its key. Raises BadValue."""
        place, found = Place(column), []
        texts = PlainValues(self._plain(column), place).texts()
        keys = PlainValues(self._plain(key), Place(key)).texts()
        for row, (text, wanted) in enumerate(zip(texts, keys, strict=True)):
            pairs: list[tuple[str, str, str]] = []
            if text:
                pairs = [entry.partition(":") for entry in text.split(separator)]
            if not all(colon for _, colon, _ in pairs):
                raise place.bad(row, f"{text!r} is no map: `key:value`, with {separator!r} between")
            values = [value for name, _, value in pairs if name == wanted]
            if wanted is not None and len(values) > 1:
                raise place.bad(row, f"{text!r} has the key {wanted!r} twice")
            found.append(values[0] if values else None)
        return PlainValues(found, place)

    def _plain(self, column: str) -> list[Any]:
        given = self._rows[column]
        values = list(given)
        if isinstance(given, np.ndarray):  # Python's own types take less time than numpy's
            values = given.tolist()
        if self._nulls:
            for row, value in enumerate(values):
                if isinstance(value, str) and value in self._nulls:
                    values[row] = None
        return values


def _require_list(column: str, values: Any) -> None:
    """Raises ValueError for a single value, and for what has no order: of texts each letter would be a row."""
    single = isinstance(values, (str, bytes, bytearray, Mapping, Set)) or getattr(values, "ndim", 1) == 0
    if single or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise ValueError(f"column {column!r} is {str(values)[:80]!r}, no list of values: give [{values!r:.80}]")


class PlainValues:
    """Values of which each may be of a type of its own."""

    def __init__(self, values: Sequence[Any], place: Place) -> None:
        self._values, self.place = values, place
        self.null = np.array([value is None for value in values], bool)

    def by_text(self, found_of: Callable[[Texts], np.ndarray]) -> np.ndarray:
        """What this gives for each value, as text; NULL where it is null."""
        # What null is hashed as does not matter: it gets its own row below.
        texts = [text or "" for text in self.texts()]
        try:
            found = found_of(PlainTexts(texts))
        except UnicodeEncodeError as error:
            raise self.place.bad(texts.index(error.object), f"{error.object!r} is no text of Unicode") from None
        found[self.null] = NULL
        return found

    def texts(self) -> list[str | None]:
        """Each value as text, None for null. Raises BadValue."""
        return [self._text(index, value) for index, value in enumerate(self._values)]

    def whole(self) -> np.ndarray:
        """Int64; 0 for null. Raises BadValue."""
        return np.array([self._whole(index, value) for index, value in enumerate(self._values)], np.int64)

    def numbers(self) -> np.ndarray:
        """Float64, none infinite; NaN for null. Raises BadValue."""
        return np.array([self._number(index, value) for index, value in enumerate(self._values)], np.float64)

    def _text(self, index: int, value: Any) -> str | None:
        if value is None:
            return None
        # Before int, which Python's bool is: as a column has it, true and not 1.
        if isinstance(value, (bool, np.bool_)):
            return str(bool(value)).lower()
        if isinstance(value, str):
            return value
        if isinstance(value, (int, np.integer)) or type(value) is date:
            return str(value)
        # A float is refused: 0.1 may be written 0.1 or 0.10, and each would hash to another row.
        raise self.place.bad(index, f"{value!r} is no text: of a {type(value).__name__} there are many spellings")

    def _whole(self, index: int, value: Any) -> int:
        if value is None:
            return 0
        if isinstance(value, str) and len(value) <= _DIGITS and _WHOLE.fullmatch(value):
            value = int(value)
        whole = isinstance(value, (int, np.integer, np.bool_))
        if isinstance(value, (float, np.floating)):
            whole = float(value).is_integer()
        if whole and _LEAST <= int(value) <= _MOST:
            return int(value)
        raise self.place.bad(index, f"{value!r} is no whole number")

    def _number(self, index: int, value: Any) -> float:
        if value is None:
            return np.nan
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if not isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
            raise self.place.bad(index, f"{value!r} is no number")
        try:
            number = float(value)
        except OverflowError:  # a whole number of Python's may be of any size
            number = np.inf
        if np.isinf(number):
            raise self.place.bad(index, f"{number} is no finite number")
        return number


class PlainTexts:
    """A list of strings."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def hashes(self) -> np.ndarray:
        """uint64 of each, by `hash_bytes`."""
        parts = [text.encode() for text in self._texts]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return hash_bytes(np.frombuffer(b"".join(parts), np.uint8), offsets)

    def places(self, vocabulary: Vocabulary) -> np.ndarray:
        """int64 of each: its place among these, -1 where it is none of them."""
        return np.array([vocabulary.places.get(text, -1) for text in self._texts], np.int64)
