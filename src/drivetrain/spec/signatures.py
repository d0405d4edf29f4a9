"""What classes and functions of a user's own take, as their signatures say it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

Parameters = Mapping[str, inspect.Parameter]


def parameters_of(factory: Any) -> Parameters:
    """A constructor's, or a function's, by name."""
    return inspect.signature(factory).parameters


def is_open_ended(parameters: Parameters) -> bool:
    """Whether there is a `**others`."""
    return any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def takes(factory: Any, name: str) -> bool:
    """Whether a class's constructor, or a function, has a parameter of this name, or takes any."""
    parameters = parameters_of(factory)
    return name in parameters or is_open_ended(parameters)


def missing(parameters: Parameters, given: Mapping[str, Any]) -> list[str]:
    """The parameters that have to be given, and are not."""
    found: list[str] = []
    for name, each in parameters.items():
        needed = each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        if needed and name not in given:
            found.append(name)
    return found


def by_position(parameters: Parameters, given: Mapping[str, Any]) -> list[str]:
    """The parameters that are to be given, and cannot be by their names."""
    found: list[str] = []
    for name, each in parameters.items():
        if each.kind is each.POSITIONAL_ONLY and (each.default is each.empty or name in given):
            found.append(name)
    return found


def lacking(factory: Any) -> list[str]:
    """The methods that an abstract class has left to others."""
    return sorted(getattr(factory, "__abstractmethods__", ()))


def hints_of(factory: Any) -> dict[str, Any]:
    """The types of its parameters; none where they cannot be told."""
    try:
        return get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (NameError, TypeError, AttributeError):
        return {}


def wrong_call(cls: type, name: str, ways: Sequence[Sequence[str]]) -> str:
    """What is wrong with a method that is going to be called with as many arguments as one of these ways has; empty
    where it takes them, or cannot be asked. `networks` is given by name, where it is there."""
    method = inspect.getattr_static(cls, name, None)
    bound = ["self"] if inspect.isfunction(method) else []
    if isinstance(method, (staticmethod, classmethod)):
        method = getattr(cls, name)
    try:
        signature = inspect.signature(method)  # type: ignore[arg-type] - where it is none, it raises
    except (TypeError, ValueError):
        return ""
    named = {"networks": None} if "networks" in signature.parameters else {}
    for way in ways:
        try:
            signature.bind(*bound, *way, **named)
        except TypeError:
            continue
        return ""
    return f"{name}{signature} is called with ({', '.join(ways[0])})"
