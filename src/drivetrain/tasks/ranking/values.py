"""Columns of Arrow values as arrays of rows, numbers and labels, with the place of what cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from drivetrain.data.columns import BadValue
from drivetrain.data.hashing import hash_strings, rows_of
from drivetrain.data.order import GOLDEN, mix64
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.recipe import Feature, Label, Standard

if TYPE_CHECKING:
    import pyarrow as pa

NULL = 0
"""The row, or key, of a table that is of samples without a value."""


def arrow_functions() -> Any:
    """The functions of `pyarrow.compute`, which come to be when it is imported."""
    import pyarrow.compute

    return pyarrow.compute


class Place(NamedTuple):
    """Where values stand, for messages: their column and, where they are those of lists, int64 [rows + 1] of where each
    list begins."""

    column: str
    offsets: np.ndarray | None = None

    def bad(self, index: int, why: str) -> BadValue:
        """That the value at this place is none."""
        row = index
        if self.offsets is not None:
            row = int(np.searchsorted(self.offsets, index, side="right")) - 1
        return BadValue(row, self.column, why)


class TableColumns:
    """Columns of a table, as the types that features want."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def whole(self, name: str) -> pa.Array:
        """A column in one piece."""
        return self._table.column(name).combine_chunks()

    def texts(self, name: str) -> pa.Array:
        """A column of strings, dictionary-encoded or not."""
        return texts_of(self.whole(name))

    def numbers(self, name: str) -> np.ndarray:
        """A column of float64; NaN where it is null."""
        return finite(floats(self.whole(name), Place(name)), Place(name))

    def lists(self, name: str, separator: str | None) -> tuple[pa.Array, np.ndarray]:
        """The values of all lists, and int64 [rows + 1]: where each begins. A null list, and an empty text, has none.

        Raises Failure(78) for text without a separator.
        """
        import pyarrow as pa

        column, functions = self.whole(name), arrow_functions()
        if not _is_list(column.type):
            if separator is None:
                cause = f"task: column {name!r} is {column.type}, and no list"
                raise Failure(Exit.BAD_RECIPE, cause, "give the feature a separator, or take its length out")
            texts = texts_of(column).cast(pa.string())
            # An empty text is no list of one empty text.
            texts = functions.if_else(functions.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            column = functions.split_pattern(texts, separator)
        lengths = functions.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return column.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def texts_of(values: pa.Array) -> pa.Array:
    """Values as strings, those of a dictionary or not."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type) or pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values
    return values.cast(pa.string())


def by_value(texts: pa.Array, found_of: Callable[[pa.Array], np.ndarray]) -> np.ndarray:
    """What `found_of` gives for each text, computed once for each of a dictionary; NULL for null."""
    import pyarrow as pa

    null = texts.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(texts.type):
        places = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        by_place = found_of(texts.dictionary)
        # A dictionary of nulls alone has no value to take.
        found = by_place[places] if len(by_place) else np.zeros(len(texts), np.int64)
    else:
        found = found_of(texts.fill_null(""))
    found[null] = NULL
    return found


def bucketed(buckets: int, values: pa.Array, place: Place) -> np.ndarray:
    """Whole numbers from 0 on as rows. An id beyond the table has no row, so it ends the run."""
    import pyarrow as pa

    null = values.is_null().to_numpy(zero_copy_only=False)
    whole = _cast(values, pa.int64(), "no whole number", place)
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= buckets))
    if len(wrong):
        raise place.bad(int(wrong[0]), f"{numbers[wrong[0]]} is no id from 0 to {buckets - 1} (buckets: {buckets})")
    return np.where(null, NULL, numbers + 1)


def keys_of(hashes: np.ndarray) -> np.ndarray:
    """The keys of hashed values, int64: their upper 63 bits, of which 0 is the key of null."""
    keys = (hashes >> np.uint64(1)).view(np.int64)
    return np.maximum(keys, NULL + 1, out=keys)


def crossed(feature: Feature, columns: Sequence[pa.Array]) -> np.ndarray:
    """Rows, or keys, of several columns' values together. Null is a value like others; where all are null it is
    NULL."""
    together = np.zeros(len(columns[0]), np.uint64)
    empty = np.ones(len(columns[0]), bool)
    for texts in columns:
        hashes = by_value(texts, hash_strings)
        together = mix64(together * np.uint64(GOLDEN) + hashes + np.uint64(1))
        empty &= texts.is_null().to_numpy(zero_copy_only=False)
    if feature.hash is None:  # the recipe sees to it that then it is keyed
        return np.where(empty, NULL, keys_of(together))
    return np.where(empty, NULL, rows_of(together, feature.hash) + 1)


def normalized(feature: Feature, name: str, read: TableColumns) -> np.ndarray:
    """Float32 [rows], or [rows, width]."""
    (column,) = feature.columns(name)
    place = Place(column)
    if feature.width == 1:
        numbers = read.numbers(column)
    else:
        values, offsets = read.lists(column, feature.separator)
        place = Place(column, offsets)
        lengths = np.diff(offsets)
        wrong = np.flatnonzero((lengths != feature.width) & (lengths != 0))
        if len(wrong):
            raise BadValue(int(wrong[0]), column, f"has {lengths[wrong[0]]} numbers, not {feature.width}")
        numbers = np.full((len(lengths), feature.width), np.nan)
        numbers[lengths > 0] = finite(floats(values, place), place).reshape(-1, feature.width)
    numbers = np.where(np.isnan(numbers), feature.default, numbers)
    if isinstance(feature.normalize, Standard):
        numbers = (numbers - feature.normalize.mean) / feature.normalize.std
    elif feature.normalize == "log1p":
        wrong = np.argwhere(numbers <= -1)
        if len(wrong):
            bad = numbers[tuple(wrong[0])]
            raise BadValue(int(wrong[0][0]), column, f"log1p takes numbers above -1, not {bad:g}")
        numbers = np.log1p(numbers)
    return numbers.astype(np.float32)


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


def floats(values: pa.Array, place: Place) -> np.ndarray:
    """Values as float64, NaN for null."""
    import pyarrow as pa

    return _cast(values, pa.float64(), "no number", place).fill_null(np.nan).to_numpy(zero_copy_only=False)


def finite(numbers: np.ndarray, place: Place) -> np.ndarray:
    """The same numbers. Raises BadValue for one that is infinite."""
    wrong = np.flatnonzero(np.isinf(numbers))
    if len(wrong):
        raise place.bad(int(wrong[0]), f"{numbers[wrong[0]]} is no finite number")
    return numbers


def _cast(values: pa.Array, kind: pa.DataType, what: str, place: Place) -> pa.Array:
    """Values as another type. Raises BadValue for the first one that is none of it."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        for index in range(len(values)):
            try:
                values[index].cast(kind)
            except pa.ArrowInvalid:
                raise place.bad(index, f"{values[index].as_py()!r} is {what}") from None
        raise


def first_of_each(offsets: np.ndarray, most: int) -> np.ndarray:
    """Which values of lists are among the first of their list, bool."""
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return within < most
