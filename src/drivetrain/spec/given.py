"""Objects of a user's own that this process was given, by the kinds that stand for them in a recipe.

A recipe names such an object `__object__:Name`. Only `drivetrain.train` puts one there, for as long as it trains.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

from drivetrain.spec.exits import Exit, Failure

OBJECT = "__object__"
"""What stands in the place of a module."""
_RECORD = "_drivetrain_arguments"
_OBJECTS: dict[str, Any] = {}


@contextmanager
def given(objects: Mapping[str, Any]) -> Iterator[None]:
    """Have these objects, by kind."""
    before = dict(_OBJECTS)
    _OBJECTS.update(objects)
    try:
        yield
    finally:
        _OBJECTS.clear()
        _OBJECTS.update(before)


def is_object(kind: str) -> bool:
    """Whether a kind stands for an object that a process was given."""
    return kind.startswith(f"{OBJECT}:")


def object_of(kind: str) -> Any:
    """The object that a kind stands for. Raises Failure(78) where this process does not have it."""
    if kind in _OBJECTS:
        return _OBJECTS[kind]
    name = kind.partition(":")[2]
    # In one sentence: a notebook shows an exception's words, and not its hint.
    cause = (
        f"{name} was given to drivetrain.train as an object, which this process does not have: "
        f"call drivetrain.train(..., run=...) with the recipe and the object, as it was trained before"
    )
    raise Failure(Exit.BAD_RECIPE, cause, f"or give a class that can be imported: kind: 'module:{name}'")


def origin_of(kind: str) -> str | None:
    """`module:Name` of the class or function behind a kind; None where this process does not have the object."""
    if kind not in _OBJECTS:
        return None
    made = maker_of(_OBJECTS[kind])
    return f"{made.__module__}:{made.__qualname__.partition('.')[0]}"


def maker_of(thing: Any) -> Any:
    """The class or function that something is, or is made of."""
    if isinstance(thing, partial):
        return maker_of(thing.func)
    return thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)


class Recorded:
    """A base of classes whose objects know what they were made with, so that a recipe can name them."""

    def __init_subclass__(cls, **others: Any) -> None:
        """Have the constructor note its arguments."""
        super().__init_subclass__(**others)
        if "__init__" in vars(cls):
            cls.__init__ = _recorded(cls.__init__)


def _recorded(constructor: Any) -> Any:
    """A constructor that notes, in the object, what it was called with; that of the outermost class counts."""

    @wraps(constructor)
    def noting(self: Any, *args: Any, **others: Any) -> None:
        vars(self).setdefault(_RECORD, (args, others))
        constructor(self, *args, **others)

    return noting


def arguments_of(thing: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What an object's constructor was called with, where that was noted."""
    return vars(thing).get(_RECORD) if hasattr(thing, "__dict__") else None


def attributes_of(thing: Any) -> dict[str, Any]:
    """What an object has, without the note."""
    return {name: value for name, value in vars(thing).items() if name != _RECORD}
