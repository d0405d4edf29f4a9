"""Frozen dataclasses as JSON data and back, by their annotations: the form of records and of what lies in them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from drivetrain.spec.keys import key_of

_T = TypeVar("_T")
_SCALARS = (int, str, bool)


class Fields:
    """What a frozen dataclass of JSON data inherits. Each field's name is its key; `from_` is the key `from`.

    A field whose default is None is left out of the JSON where it is None. One that may be None and has no default is
    written as null, and is None where JSON lacks it.
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The fields in their order; floats that are not finite are strings."""
        told = {}
        for name, key, optional in _keys(type(self)):
            value = getattr(self, name)
            if value is not None or not optional:
                told[key] = plain(value)
        return told


def plain(value: Any) -> Any:
    """JSON data with floats that are not finite as strings, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Fields):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


@cache
def reader(cls: type[_T]) -> Callable[[Mapping[str, Any]], _T]:
    """What makes a dataclass of JSON data. Keys that are no fields are passed over.

    It raises TypeError where a field is missing, TypeError or ValueError for one that is something else.
    """
    hints = get_type_hints(cls)
    parts: list[tuple[str, str, Callable[[Any], Any]]] = []
    nulls: dict[str, Any] = {}
    for field in _fields(cls):
        hint = hints[field.name]
        parts.append((field.name, key_of(field.name), _converter(hint)))
        if may_be_null(field, hint):
            nulls[field.name] = None

    def read(given: Mapping[str, Any]) -> _T:
        found = nulls.copy()
        for name, key, convert in parts:
            if key in given:
                found[name] = convert(given[key])
        return cls(**found)

    return read


def may_be_null(field: Field[Any], hint: Any) -> bool:
    """Whether a field is written as null where it is None, and may be missing."""
    return not has_default(field) and type(None) in get_args(hint)


def has_default(field: Field[Any]) -> bool:
    """Whether a field may be missing, or be left out."""
    return field.default is not MISSING or field.default_factory is not MISSING


@cache
def _keys(cls: type) -> tuple[tuple[str, str, bool], ...]:
    """Name and key of each field, and whether it is left out where it is None."""
    # Looked up once for a class: every record of it is written by this.
    return tuple((field.name, key_of(field.name), field.default is None) for field in _fields(cls))


def _fields(cls: Any) -> list[Field[Any]]:
    """The fields in the order of the JSON: a record's chain is its last."""
    return sorted(fields(cls), key=lambda field: field.name == "chain")


def _converter(hint: Any) -> Callable[[Any], Any]:
    """What makes a value of this type of JSON data; raises TypeError for another."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (convert,) = (_converter(part) for part in inner if part is not type(None))
        return lambda value: None if value is None else convert(value)
    if origin is tuple:
        return _tuple(inner)
    if origin is Mapping:
        return _mapping(inner[1])
    if is_dataclass(hint):
        return reader(hint)
    if hint is float:
        return _float
    if hint in _SCALARS:
        return _scalar(hint)
    return lambda value: value


def _scalar(cls: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, cls):
            raise TypeError(f"{value!r:.80} is no {cls.__name__}")
        return value

    return read


def _float(value: Any) -> float:
    """JSON has those that are not finite as strings, and may have a whole number."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return float(value)
    raise TypeError(f"{value!r:.80} is no number")


def _tuple(inner: tuple[Any, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Of any length where it ends in `...`, else of as many parts as it has types."""
    if inner[-1] is ...:
        convert = _converter(inner[0])
        return lambda value: tuple(map(convert, _listed(value)))
    converters = list(map(_converter, inner))
    return lambda value: tuple(read(part) for read, part in zip(converters, _listed(value), strict=True))


def _listed(value: Any) -> Iterable[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{value!r:.80} is no list")
    return value


def _mapping(hint: Any) -> Callable[[Any], Mapping[str, Any]]:
    convert = _converter(hint)

    def read(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r:.80} is no object")
        return {key: convert(part) for key, part in value.items()}

    return read
