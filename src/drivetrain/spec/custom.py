"""Components of a user's own: where a recipe takes them, what they have to be, and how they are built."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from drivetrain.spec.by_index import HINT, unlike_source
from drivetrain.spec.code.blame import own_place, words
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported, nearest
from drivetrain.spec.settings import Component, Settings


@dataclass(frozen=True)
class ExtensionPoint:
    """A section whose kind may be a user's own `package.module:Name`: what that has to be.

    A class with these `methods`, with one of `events` where there are some, and with the class at `base` among its own,
    where there is one; `given` are the arguments of its constructor that no recipe gives. A function is taken where
    `parameters` says what its first ones are called, by the name of an event where there are some; its others are the
    recipe's, but for those in `later`. `settings` is the class of what the section has beside the arguments. Where
    there are `either`, it needs all methods of one of these, too.
    """

    methods: tuple[str, ...] = ()
    either: tuple[tuple[str, ...], ...] = ()
    events: tuple[str, ...] = ()
    base: str | None = None
    given: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    settings: str | None = None

    @property
    def wanted(self) -> str:
        """What it takes, in words."""
        words = f"a class that has {', '.join(self.methods)}"
        if self.either:
            words += f", and {' or '.join(', '.join(methods) for methods in self.either)}"
        if self.events:
            words = f"a class with a method such as {', '.join(self.events[1:4])}"
        if self.base is not None:
            words = f"a class that extends {self.base.replace(':', '.')}"
        if self.parameters:
            named = " of such a name" if self.events else ""
            plural = "parameter is" if len(self.parameters) == 1 else "parameters are"
            words += f", or a function{named} whose first {plural} {', '.join(self.parameters)}"
        return words


EVENTS = (
    *("on_attempt", "on_step", "on_evaluation", "on_final", "on_telemetry", "on_statistics", "on_show", "on_commit"),
    *("on_miss", "on_command", "on_pause", "on_spike", "on_rollback", "on_initial", "on_code", "on_note", "on_exit"),
)
"""What a callback may hear of: one for each kind of record that an attempt writes."""

POINTS: Mapping[str, ExtensionPoint] = {
    "task": ExtensionPoint(("networks", "loss")),
    "source": ExtensionPoint(("__getitem__", "__len__"), settings="drivetrain.data.recipe:OwnSource"),
    "optimizer": ExtensionPoint(
        ("step",),
        base="torch.optim:Optimizer",
        given=("params", "lr", "weight_decay"),
        settings="drivetrain.optim.recipe:OwnOptimizer",
    ),
    "schedule": ExtensionPoint(
        ("factor",), parameters=("samples", "total"), later=("scores",), settings="drivetrain.optim.recipe:OwnSchedule"
    ),
    "callback": ExtensionPoint(events=EVENTS, parameters=("record",)),
    "sink": ExtensionPoint(("send",)),
    "metric": ExtensionPoint(("update",), either=(("compute", "add_state"), ("state", "merge", "value"))),
    "target": ExtensionPoint(base="drivetrain.launch.targets.recipe:ResourceSpec"),
}
"""By section."""

OWN = "own"
"""The field in which a section's settings have the kind of the user's own that they belong to."""


_STANDARD = str(Path(os.__file__).parent)  # the folder of the standard library


@dataclass(frozen=True, kw_only=True)
class Custom(Component):
    """A user's own component of a section: `kind` is `package.module:Name`, the settings are its arguments."""

    section: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    """Where its module is looked up first: the recipe's folder."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where the recipe says each key, for messages."""
    name: str = ""
    """What a source is called."""
    weight: float = 1.0
    """A source's share of the training samples, beside the others'."""
    parted: Settings | None = None
    """Which part of a source's samples."""


def build_custom(custom: Custom, **given: Any) -> Any:
    """Build a user's component from its settings and from what its section is `given`; of the latter what its
    constructor takes. A function becomes one that lacks its first parameters only.

    Raises Failure(77) where it is nothing that its section takes: a recipe must not be able to call anything that can
    be imported; 78 where its module or name is not there, where its constructor has no such argument or misses one, and
    where an argument is not of the annotated type.
    """
    factory = found_custom(custom)
    arguments = _checked(factory, custom)
    if not inspect.isclass(factory):
        return partial(factory, **arguments)
    taken = {name: value for name, value in given.items() if takes(factory, name)}
    return factory(**taken, **arguments)


def check_custom(custom: Custom) -> None:
    """Import a user's component and check its arguments, without building it.

    Raises Failure as `build_custom` does, and 78 where its module cannot be imported.
    """
    try:
        factory = found_custom(custom)
    except Failure:
        raise
    except Exception as error:
        place = own_place(error, custom.folder)
        at = f", at {place}" if place else ""
        raise _mistake(custom, f"its import fails: {words(error)}{at}") from error
    _checked(factory, custom)


def found_custom(custom: Custom) -> Any:
    """The class or function that a user's component is. Raises Failure as `build_custom` does."""
    factory, point = _find(custom), POINTS[custom.section]
    if custom.section == "source" and (wrong := unlike_source(factory, custom.kind.partition(":")[0])):
        raise Failure(Exit.BAD_RECIPE, f"{_place(custom)}{custom.kind} is no source, but {wrong}", HINT)
    if not (_is_class_of(factory, point) if inspect.isclass(factory) else _is_function_of(factory, point)):
        cause = f"{_place(custom)}{custom.kind} is no {custom.section}"
        raise Failure(Exit.SECURITY, cause, f"{article(custom.section)} is {point.wanted}")
    return factory


def _is_class_of(factory: type, point: ExtensionPoint) -> bool:
    if not all(hasattr(factory, name) for name in point.methods):
        return False
    if point.either and not any(all(hasattr(factory, name) for name in methods) for methods in point.either):
        return False
    if point.events and not any(hasattr(factory, name) for name in point.events):
        return False
    return point.base is None or issubclass(factory, imported(point.base))


def _is_function_of(factory: Any, point: ExtensionPoint) -> bool:
    # What a built-in function takes nobody can tell, so none is taken.
    if not point.parameters or not inspect.isfunction(factory):
        return False
    if point.events and factory.__name__ not in point.events:
        return False
    first = tuple(inspect.signature(factory).parameters)[: len(point.parameters)]
    return first == point.parameters


def takes(factory: Any, name: str) -> bool:
    """Whether a class's constructor, or a function, has a parameter of this name, or takes any."""
    parameters = inspect.signature(factory).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def article(noun: str) -> str:
    """`a task`, `an optimizer`."""
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def _find(custom: Custom) -> Any:
    module, _, name = custom.kind.partition(":")
    sys.path[:] = module_path(custom.folder)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there, but imports one that is not, is none that the recipe got wrong.
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        where = Path(custom.folder or ".").resolve()
        raise _mistake(custom, f"no module {module!r} beside the recipe ({where}) or installed") from error
    if module == "__main__" and not hasattr(found, name):
        where = "trained from there, by drivetrain.train in one process, or put in a module of its own"
        raise _mistake(custom, f"this process has no such class: one of a notebook or a script is {where}")
    if not hasattr(found, name):
        public = [known for known in vars(found) if known[0] != "_"]
        raise _mistake(custom, f"module {module!r} has no {name!r}{nearest(name, public)}")
    return getattr(found, name)


def module_path(folder: str | None) -> list[str]:
    """Where the modules of a recipe in this folder are looked up: the folder comes after the standard library, so that
    nothing in it shadows a module such as `random`, and before what is installed."""
    path = list(sys.path)
    if folder and folder not in path:
        path.insert(_first_of_others(path), folder)
    return path


def _first_of_others(path: Sequence[str]) -> int:
    """Where a module path goes on after the standard library."""
    standard = (_STANDARD, str(Path(_STANDARD) / "lib-dynload"))
    first = 0
    for place, entry in enumerate(path, 1):
        if entry in standard:
            first = place
    return first


def _checked(factory: Any, custom: Custom) -> dict[str, Any]:
    """The arguments, each of its annotated type where it has one that can be checked."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    point = POINTS[custom.section]
    ours = (*point.given, *point.parameters, *point.later)
    _require_events(factory, custom, point)
    parameters = {name: p for name, p in inspect.signature(factory).parameters.items() if name not in ours}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = _hints(factory)
    arguments = {}
    for key, value in custom.settings.items():
        if key not in parameters and not open_ended:
            raise _mistake(custom, f"unknown key {key!r}{nearest(key, list(parameters))}", key)
        arguments[key] = value
        if key in hints:
            try:
                adapter = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
                arguments[key] = adapter.validate_python(value)
            except ValidationError as error:
                raise _mistake(custom, f"{key}: {error.errors()[0]['msg']} (got {value!r})", key) from None
    missing: list[str] = []
    for name, p in parameters.items():
        needed = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if needed and name not in arguments:
            missing.append(repr(name))
    if missing:
        raise _mistake(custom, f"needs {', '.join(missing)}")
    return arguments


def _require_events(factory: Any, custom: Custom, point: ExtensionPoint) -> None:
    """Raises Failure(78) where a class has a method that looks like an event and is none: nothing would call it."""
    for name in dir(factory) if point.events and inspect.isclass(factory) else ():
        if name.startswith("on_") and name not in point.events and callable(getattr(factory, name)):
            raise _mistake(custom, f"there is no event {name!r}{nearest(name, point.events)}")


def _hints(factory: Any) -> dict[str, Any]:
    try:
        return get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (NameError, TypeError, AttributeError):
        return {}


def _place(custom: Custom, key: str = "kind") -> str:
    return custom.places.get(key, "")


def _mistake(custom: Custom, message: str, key: str = "kind") -> Failure:
    cause = f"{_place(custom, key)}{custom.kind}: {message}"
    return Failure(Exit.BAD_RECIPE, cause, "mend the recipe or the class it names")
