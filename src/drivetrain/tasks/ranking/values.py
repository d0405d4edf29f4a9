"""Columns of Arrow values as texts, numbers and lists, with the place of what cannot be one; and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data.columns import BadColumn, BadValue
from drivetrain.data.hashing import hash_strings
from drivetrain.serving.arrays import Place
from drivetrain.serving.features import NULL, Texts, Vocabulary
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.recipe import Label

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_functions() -> Any:
    """The functions of `pyarrow.compute`, which come to be when it is imported."""
    import pyarrow.compute

    return pyarrow.compute


class ArrowColumns:
    """Columns of a table, as the types that features want."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def values(self, column: str) -> ArrowValues:
        """A column of single values."""
        return ArrowValues(self._whole(column), Place(column))

    def lists(self, column: str, separator: str | None) -> tuple[ArrowValues, np.ndarray]:
        """The values of all lists, and int64 [rows + 1]: where each begins. A null list, and an empty text, has none.

        Raises Failure(78) for text without a separator.
        """
        import pyarrow as pa

        lists, functions = self._whole(column), arrow_functions()
        if not _is_list(lists.type):
            if separator is None:
                cause = f"task: column {column!r} is {lists.type}, and no list"
                raise Failure(Exit.BAD_RECIPE, cause, "give the feature a separator, or take its length out")
            texts = _texts_of(lists).cast(pa.string())
            # An empty text is no list of one empty text.
            texts = functions.if_else(functions.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            lists = functions.split_pattern(texts, separator)
        lengths = functions.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return ArrowValues(lists.flatten(), Place(column, offsets)), offsets

    def mapped(self, column: str, key: str, separator: str) -> ArrowValues:
        """Of each row the value that its map has for its key. Raises BadValue."""
        import pyarrow as pa

        functions, place = arrow_functions(), Place(column)
        entries, offsets = self.lists(column, separator)
        pairs = functions.split_pattern(entries.array, ":", max_splits=1)
        wrong = np.flatnonzero(functions.list_value_length(pairs).to_numpy(zero_copy_only=False) != 2)
        texts = _texts_of(self._whole(column)).cast(pa.string())
        rows = np.repeat(np.arange(len(texts)), np.diff(offsets))
        if len(wrong):
            row = int(rows[wrong[0]])
            why = f"{texts[row].as_py()!r} is no map: `key:value`, with {separator!r} between"
            raise place.bad(row, why)
        wanted = _texts_of(self._whole(key)).cast(pa.string())
        hits = functions.equal(functions.list_element(pairs, 0), wanted.take(pa.array(rows)))
        found = np.flatnonzero(hits.fill_null(False).to_numpy(zero_copy_only=False))
        twice = found[1:][rows[found[1:]] == rows[found[:-1]]]
        if len(twice):
            row = int(rows[twice[0]])
            raise place.bad(row, f"{texts[row].as_py()!r} has the key {wanted[row].as_py()!r} twice")
        places = np.full(len(texts), -1)
        places[rows[found]] = found
        values = functions.list_element(pairs, 1)
        return ArrowValues(values.take(pa.array(places, mask=places < 0)), place)

    def _whole(self, column: str) -> pa.Array:
        """A column in one piece."""
        return self._table.column(column).combine_chunks()


class ArrowValues:
    """An array of one type."""

    def __init__(self, array: pa.Array, place: Place) -> None:
        self.array, self.place = array, place

    @property
    def null(self) -> np.ndarray:
        """Which values are not there, bool."""
        return self.array.is_null().to_numpy(zero_copy_only=False)

    def by_text(self, found_of: Callable[[Texts], np.ndarray]) -> np.ndarray:
        """What this gives for each value, as text, computed once for each of a dictionary; NULL for null."""
        import pyarrow as pa

        texts, null = self._texts(), self.null
        if pa.types.is_dictionary(texts.type):
            places = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
            by_place = found_of(ArrowTexts(texts.dictionary))
            # A dictionary of nulls alone has no value to take.
            found = by_place[places] if len(by_place) else np.zeros(len(texts), by_place.dtype)
        else:
            found = found_of(ArrowTexts(texts.fill_null("")))
        found[null] = NULL
        return found

    def whole(self) -> np.ndarray:
        """Int64; 0 for null. Raises BadValue."""
        import pyarrow as pa

        return self._cast(pa.int64(), "no whole number").fill_null(0).to_numpy(zero_copy_only=False)

    def numbers(self) -> np.ndarray:
        """Float64, none infinite; NaN for null. Raises BadValue."""
        import pyarrow as pa

        numbers = self._cast(pa.float64(), "no number").fill_null(np.nan).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(np.isinf(numbers))
        if len(wrong):
            raise self.place.bad(int(wrong[0]), f"{numbers[wrong[0]]} is no finite number")
        return numbers

    def _texts(self) -> pa.Array:
        """Strings, those of a dictionary or not. Raises BadColumn, and BadValue for bytes that are none."""
        import pyarrow as pa

        kind = self.array.type
        # There are several spellings of a fraction, and a text has one.
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            raise BadColumn(f"column {self.place.column!r} has values of {kind}, which cannot be read as string")
        if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self.array
        return self._cast(pa.string(), "no text")

    def _cast(self, kind: pa.DataType, what: str) -> pa.Array:
        """The values as another type. Raises BadColumn for one that cannot be, BadValue for the first value that is
        none of it."""
        import pyarrow as pa

        values = self.array
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        try:
            return values.cast(kind)
        except pa.ArrowNotImplementedError:
            raise BadColumn(f"column {self.place.column!r} has values of {values.type}, which are {what}") from None
        except pa.ArrowInvalid:
            for index in range(len(values)):
                try:
                    values[index].cast(kind)
                except pa.ArrowInvalid:
                    raise self.place.bad(index, f"{values[index].as_py()!r} is {what}") from None
            raise


class ArrowTexts:
    """An array of strings, of which none is null."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def hashes(self) -> np.ndarray:
        """uint64 of each, by `hash_bytes`."""
        return hash_strings(self._array)

    def places(self, vocabulary: Vocabulary) -> np.ndarray:
        """int64 of each: its place among these, -1 where it is none of them."""
        import pyarrow as pa

        known = pa.array(vocabulary.words, pa.string())
        found = arrow_functions().index_in(self._array.cast(pa.string()), value_set=known)
        return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _texts_of(values: pa.Array) -> pa.Array:
    """Values as strings, those of a dictionary or not."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type) or pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values
    return values.cast(pa.string())


def checked_labels(label: Label, column: str, numbers: np.ndarray) -> np.ndarray:
    """Labels, float32. Raises BadValue for one that its loss does not learn."""
    missing = np.isnan(numbers)
    if not label.optional and missing.any():
        why = "has no value; `optional: true` leaves such samples out of this label's loss"
        raise BadValue(int(missing.argmax()), column, why)
    if label.at_least is not None:
        return np.where(missing, np.nan, numbers >= label.at_least).astype(np.float32)
    if label.is_binary:
        wrong, what = ~np.isin(numbers, (0.0, 1.0)) & ~missing, "neither 0 nor 1; at_least makes yes or no of a number"
    elif label.classes is not None:
        there = np.isin(numbers, np.arange(label.classes))
        wrong, what = ~there & ~missing, f"no class from 0 to {label.classes - 1}"
    else:
        return numbers.astype(np.float32)
    if wrong.any():
        row = int(wrong.argmax())
        raise BadValue(row, column, f"{numbers[row]:g} is {what}")
    return numbers.astype(np.float32)
