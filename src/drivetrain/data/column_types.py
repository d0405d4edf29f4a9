"""What a column is read as, whatever type the file gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drivetrain.data.columns import BadColumn, BadValue


def read_as(column: Any, kind: str, name: str) -> Any:
    """An Arrow column as `string`, `integer` or `number` (see `Encoder.columns`); a `list` stays what it is.

    Raises BadColumn where its type cannot be read so, BadValue where a value cannot.
    """
    import pyarrow as pa

    if kind == "list":
        if pa.types.is_null(column.type):  # of a file in which nobody has any
            return column.cast(pa.list_(pa.string()))
        if pa.types.is_dictionary(column.type) and _is_string(column.type.value_type):
            return column.cast(column.type.value_type)
        if _is_list(column.type) or _is_string(column.type):
            return column
        raise _misfit(column.type, kind, name)
    if not _fits(column.type, kind):
        raise _misfit(column.type, kind, name)
    target, safe = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}[kind], True
    if column.type == target or (kind == "string" and _is_dictionary_of_strings(column.type)):
        return column
    if kind == "number" and column.type == pa.float32():
        return column
    if kind == "number":  # a whole number above 2^53 is rounded, as it would be in a file of numbers
        safe = not pa.types.is_integer(column.type)
    return _cast(column, lambda part: part.cast(target, safe=safe), name)


def _fits(kind_of_file: Any, kind: str) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind_of_file):
        return _fits(kind_of_file.value_type, kind)
    plain = types.is_integer(kind_of_file) or types.is_boolean(kind_of_file) or types.is_null(kind_of_file)
    if plain or _is_string(kind_of_file):
        return True
    if kind == "string":  # of a fraction there are many spellings
        return types.is_date(kind_of_file)
    return types.is_floating(kind_of_file) or types.is_decimal(kind_of_file)


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    strings = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(is_one(kind) for is_one in strings)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_dictionary_of_strings(kind: Any) -> bool:
    from pyarrow import types

    return types.is_dictionary(kind) and types.is_string(kind.value_type) and types.is_int32(kind.index_type)


def _cast(column: Any, cast: Callable[[Any], Any], name: str) -> Any:
    """Raises BadValue that names the first value which cannot be cast."""
    import pyarrow as pa

    try:
        return cast(column)
    except pa.ArrowInvalid as error:
        good, bad = 0, len(column)  # so many rows can be cast, so many cannot
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                cast(column.slice(good, middle - good))
                good = middle
            except pa.ArrowInvalid:
                bad = middle
        raise BadValue(good, name, str(error)) from error


def _misfit(found: Any, kind: str, name: str) -> BadColumn:
    return BadColumn(f"column {name!r} is {found}, which cannot be read as {kind}")
