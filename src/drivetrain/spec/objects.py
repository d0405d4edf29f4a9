"""Recipes that Python gives with objects, classes and functions in them, as plain data.

An object whose class can be imported, and whose constructor's arguments are known and JSON data, is just another way to
write `{kind: "module:Name", arguments: {...}}`. Any other stands for itself, in this process alone.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drivetrain.spec.code.modules import is_installed
from drivetrain.spec.custom import ARGUMENTS, POINTS, Custom, article, build_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import OBJECT, arguments_of, attributes_of, maker_of
from drivetrain.spec.signatures import parameters_of
from drivetrain.spec.streams import HINT, is_stream, unlike_object
from drivetrain.spec.tree import dotted

_PLACES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("task",), "task"),
    (("data", "train", "sources", "*"), "source"),
    (("data", "validation", "*"), "source"),
    (("data", "test", "*"), "source"),
    (("optimizer",), "optimizer"),
    (("optimizer", "*"), "optimizer"),
    (("schedule",), "schedule"),
    (("schedule", "*"), "schedule"),
    (("evaluate", "metrics", "*"), "metric"),
    (("callbacks", "*"), "callback"),
    (("watch", "sinks", "*"), "sink"),
)
_ITSELF = ("callback", "sink")
"""Sections whose objects are used as they are: whoever gives one wants to look at it afterwards."""


class _NotData(Exception):  # noqa: N818 - it is no error
    """A value that JSON cannot hold."""


@dataclass
class Given:
    """A recipe as plain data, and the objects that it has by their kinds, for `drivetrain.spec.given`.

    `lasting`: the run has a folder that whoever gives the objects has named, so that they need no identity.
    """

    lasting: bool
    objects: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Where the first module of the user's own lies: other processes look the modules up there."""

    def plain(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """A value of the recipe as plain data, as far as it is understood; the rest is left for whoever checks it.

        Raises Failure(78) for an object that is not as its constructor made it, and for an optimizer.
        """
        section = _section(path)
        if isinstance(value, Mapping):
            kind = value.get("kind")
            below = path if kind is None else (*path, ARGUMENTS)  # of a kind nothing else is one, but an argument
            found = {str(key): self.plain(part, (*below, str(key))) for key, part in value.items()}
            if section is not None and not _is_data(kind):
                found |= self._kind(_fitting(kind, section, path), section)
            return found
        if isinstance(value, (list, tuple)):
            return [self.plain(part, (*path, str(place))) for place, part in enumerate(value)]
        if section is not None and not _is_data(value):
            return self._kind(_fitting(value, section, path), section)
        return value

    def _kind(self, thing: Any, section: str) -> dict[str, Any]:
        """The kind that an object, a class or a function is, with its arguments."""
        if section == "optimizer" and not inspect.isclass(thing):
            cause = f"optimizer: {type(thing).__name__} is an object, which was made before there are networks"
            hint = "give its class, such as {'kind': torch.optim.NAdam, 'lr': 2e-3}"
            raise Failure(Exit.BAD_RECIPE, f"{cause}: {hint}")
        path = _import_path(maker_of(thing))
        if path and self.folder is None:
            self.folder = _folder(path)
        if thing is maker_of(thing):  # a class or a function
            return {"kind": path or self._stand_in(thing)}
        arguments = None if section in _ITSELF else _arguments(thing, section)
        told = _all_data(arguments)
        if path is None or told is None or (section == "task" and self._is_changed(thing, path, told)):
            return {"kind": self._stand_in(thing), **_described(arguments)}
        return {"kind": path, ARGUMENTS: told} if told else {"kind": path}

    def _is_changed(self, task: Any, path: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a task is not as it would be built. Raises Failure(78) where it has to be."""
        unlike = _unlike(task, path, arguments)
        if unlike and not self.lasting:
            hint = "give that to the constructor, or give drivetrain.train a run=: then the object itself is used"
            raise Failure(Exit.BAD_RECIPE, f"task: {unlike}: {hint}")
        return bool(unlike)

    def _stand_in(self, thing: Any) -> str:
        """The kind that stands for an object."""
        name = re.sub(r"\W", "_", maker_of(thing).__name__)
        number, kind = 1, f"{OBJECT}:{name}"
        while kind in self.objects:
            number += 1
            kind = f"{OBJECT}:{name}_{number}"
        self.objects[kind] = thing
        return kind


def _section(path: tuple[str, ...]) -> str | None:
    """The section that has a kind at this place."""
    for place, section in _PLACES:
        if len(place) == len(path) and all(want in ("*", part) for want, part in zip(place, path, strict=True)):
            return section
    return None


def _is_data(value: Any) -> bool:
    return isinstance(value, (str, int, float, Mapping, list, tuple, os.PathLike, type(None)))


def _fitting(thing: Any, section: str, path: tuple[str, ...]) -> Any:
    """An object that may be a kind of its section. Raises Failure(78) for any other, with what would be one."""
    if _stands_for(thing, section):
        return thing
    found = article(type(thing).__name__)
    wanted = f"{article(section)} is {POINTS[section].wanted}"
    if section == "source":
        found, wanted = unlike_object(thing) or found, HINT
    place: tuple[str | int, ...] = ()
    for part in path:
        place += (int(part) if part.isdigit() else part,)
    raise Failure(Exit.BAD_RECIPE, f"{dotted(place)}: is no {section}, but {found}", wanted)


def _stands_for(thing: Any, section: str) -> bool:
    """Whether a value that is no data may be a kind of its section: a class, a function, or what has its methods."""
    if inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, partial):
        return True
    if section == "source" and (is_stream(type(thing)) or unlike_object(thing)):
        return not unlike_object(thing)
    point = POINTS[section]
    if point.events:
        return any(hasattr(thing, event) for event in point.events)
    return all(hasattr(thing, method) for method in point.methods)


def _import_path(thing: Any) -> str | None:
    """`module:Name` of a class or function, by the outermost package that has it, as people write it (`torch.optim`,
    not `torch.optim.nadam`); None where it can be imported from nowhere."""
    parts = thing.__module__.split(".")
    # The outermost first: the module in which a class is defined may be private, and move with the next version.
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        if vars(sys.modules.get(module, object)).get(thing.__qualname__) is thing:
            return f"{module}:{thing.__qualname__}"
    return None


def _folder(path: str) -> Path | None:
    """The folder in which the package or module of an import path lies; None where that is installed, or no file."""
    place = getattr(sys.modules[path.partition(":")[0].partition(".")[0]], "__file__", None)
    if place is None or path.startswith("__main__:") or is_installed(place):
        return None
    found = Path(place).resolve()
    return found.parent.parent if found.stem == "__init__" else found.parent


def _arguments(thing: Any, section: str) -> dict[str, Any] | None:
    """What an object was made of, by the names of its constructor's parameters; None where nobody knows it."""
    if isinstance(thing, partial):
        named = _named(inspect.signature(thing.func), thing.args, thing.keywords)
        if named is None and not thing.args:  # what does not fit is told as it is of any kind
            return dict(thing.keywords)
        return named
    if is_dataclass(thing):
        named = [each for each in fields(thing) if each.init]
        # Someone has written another constructor: its fields are not what it was given.
        if {each.name for each in named} != parameters_of(type(thing)).keys():
            return None
        return {each.name: getattr(thing, each.name) for each in named}
    if (noted := arguments_of(thing)) is not None:
        return _named(inspect.signature(type(thing)), *noted)
    # A task is compared with what is built; what else has attributes got them from nobody knows where.
    alike = section == "task" or not attributes_of(thing)
    return {} if alike and not parameters_of(type(thing)) else None


def _named(signature: inspect.Signature, args: tuple[Any, ...], others: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by name, however few of them are given; None where one has none."""
    try:
        bound = signature.bind_partial(*args, **others).arguments
    except TypeError:  # a constructor that another class stands before
        return None
    found: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        # A recipe gives arguments by name only.
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return None
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def _data(value: Any) -> Any:
    """A value as JSON has it. Raises _NotData where it cannot."""
    # Exact types: of a subclass, such as numpy's float64, JSON would give back another one.
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_data(part) for part in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _data(part) for key, part in value.items()}
    raise _NotData


def _all_data(arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Arguments as JSON has them; None where one is none, or nobody knows them."""
    if arguments is None:
        return None
    try:
        return {name: _data(value) for name, value in arguments.items()}
    except _NotData:
        return None


def _described(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of an object that stands for itself, what of its arguments can be told: another one is another recipe."""
    told: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        try:
            told[name] = _data(value)
        except _NotData:
            told[name] = article(type(value).__name__)
    return {ARGUMENTS: told} if told else {}


def _unlike(task: Any, path: str, arguments: Mapping[str, Any]) -> str:
    """What of a task is not as its constructor makes it of these arguments; empty where nothing is."""
    # Built once more, since only the constructor knows what it makes of its arguments.
    built = attributes_of(build_custom(Custom(section="task", kind=path, settings=arguments)))
    own = attributes_of(task)
    for name in sorted(own.keys() | built.keys()):
        here, there = _shown(own, name), _shown(built, name)
        if here != there:
            return f"{path} has {name} = {here}, and {there} where it is made of its arguments"
    return ""


def _shown(attributes: Mapping[str, Any], name: str) -> str:
    """A value that can be compared; nothing of one that cannot."""
    if name not in attributes:
        return "nothing"
    try:
        return repr(_data(attributes[name]))
    except _NotData:
        return "something"
