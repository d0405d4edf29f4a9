"""Components of a user's own: where a recipe takes them, what they have to be, and how they are built."""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from traceback import format_exception
from typing import Any

from drivetrain.spec.code.blame import folded, is_out_of_memory, own_place, words
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import is_object, object_of
from drivetrain.spec.keys import key_of
from drivetrain.spec.registry import imported, nearest
from drivetrain.spec.settings import Component, Settings
from drivetrain.spec.signatures import (
    by_position,
    hints_of,
    is_open_ended,
    lacking,
    missing,
    parameters_of,
    takes,
    wrong_call,
)
from drivetrain.spec.streams import GIVEN, HINT, is_stream, unlike_source


@dataclass(frozen=True)
class ExtensionPoint:
    """A section whose kind may be a user's own `package.module:Name`: what that has to be.

    A class with these `methods`, with one of `events` where there are some, and with the class at `base` among its own,
    where there is one; `given` are the arguments of its constructor that no recipe gives. A function is taken where
    `parameters` says what its first ones are called, by the name of an event where there are some; its others are the
    recipe's, but for those in `later`. `settings` is the class of what the section has beside the arguments. Where
    there are `either`, it needs all methods of one of these, too. `calls` says what some methods are called with, where
    what comes `later` may follow.
    """

    methods: tuple[str, ...] = ()
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
    *("on_miss", "on_stream_end", "on_command", "on_pause", "on_spike", "on_rollback", "on_initial", "on_code"),
    *("on_note", "on_exit", "on_training", "on_compile", "on_plan"),
)
"""What a callback may hear of: one for each kind of record that an attempt writes."""

POINTS: Mapping[str, ExtensionPoint] = {
    "task": ExtensionPoint(
        ("networks", "loss"),
        {
            "networks": (),
            "collate": ("samples",),
            "counts": ("batch",),
            "loss": ("nets", "batch"),
            "update": ("step",),
            "metrics": (),
            "evaluate": ("nets", "batch", "metrics"),
            "show": ("nets", "batch", "gallery"),
            "predict": ("nets", "batch"),
            "generate": ("nets", "prompt", "how"),
        },
    ),
    "source": ExtensionPoint(
        ("__getitem__", "__len__"),
        {"__getitem__": ("index",), "__len__": ()},
        settings="drivetrain.data.recipe:OwnSource",
    ),
    "optimizer": ExtensionPoint(
        ("step",),
        base="torch.optim:Optimizer",
        given=("params", "lr", "weight_decay"),
        settings="drivetrain.optim.recipe:OwnOptimizer",
    ),
    "schedule": ExtensionPoint(
        ("factor",),
        {"factor": ("samples", "total")},
        parameters=("samples", "total"),
        later=("scores",),
        settings="drivetrain.optim.recipe:OwnSchedule",
    ),
    "callback": ExtensionPoint(events=EVENTS, parameters=("record",)),
    "sink": ExtensionPoint(("send",), {"send": ("rows",)}),
    "metric": ExtensionPoint(
        ("update",),
        {"state": (), "merge": ("state",), "value": (), "compute": ()},
        either=(("compute", "add_state"), ("state", "merge", "value")),
    ),
    "ranker": ExtensionPoint(("forward",), {"forward": ("inputs",)}, base="torch.nn:Module", given=("shapes",)),
    "kernel": ExtensionPoint(
        ("forward",),
        given=("module",),
        parameters=("module",),
        settings="drivetrain.engine.recipe:OwnKernel",
    ),
    "target": ExtensionPoint(base="drivetrain.launch.targets.recipe:ResourceSpec"),
}
"""By section."""

ARGUMENTS = "arguments"
"""The key under which a recipe may give a constructor's arguments; the only place for those that are called as what the
section has besides (`warmup`, `lr`, `name`)."""
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

    @property
    def told(self) -> str:
        """Its kind as messages name it: with the place where the recipe has it."""
        return f"{_place(self)}{self.kind}"

    @property
    def written(self) -> dict[str, Any]:
        """The arguments as a recipe writes them: beside `kind`, but for those whose names the section needs."""
        taken, beside = section_keys(self.section), dict(self.settings)
        nested = {key: beside.pop(key) for key in self.settings if key in taken}
        if nested:
            beside[ARGUMENTS] = nested
        return beside


@cache
def section_keys(section: str) -> frozenset[str]:
    """What stands beside `kind` and is no argument."""
    found = {"kind", ARGUMENTS}
    settings = POINTS[section].settings
    if settings is not None:
        found.update(key_of(each.name) for each in fields(imported(settings)))
    return frozenset(found - {OWN})


def build_custom(custom: Custom, **given: Any) -> Any:
    """Build a user's component from its settings and from what its section is `given`; of the latter what its
    constructor takes. A function becomes one that lacks its first parameters only.

    Raises Failure(77) where it is nothing that its section takes: a recipe must not be able to call anything that can
    be imported; 78 where its module or name is not there, where its constructor has no such argument or misses one,
    where an argument is not of the annotated type, where the class is abstract or cannot be called as it has to be, and
    where its constructor raises. What the user's own code of a task or a source raises there is raised as it is.
    """
    factory = found_custom(custom)
    if is_object(custom.kind) and not _is_made(thing := object_of(custom.kind)):
        # One metric for each lane, and none of them has seen what the given one has.
        return _anew(thing) if custom.section == "metric" else thing
    arguments = _checked(factory, custom)
    if not inspect.isclass(factory):
        return partial(factory, **arguments)
    # A class need not take what its section has for it: one that only wants `lr` is called without `weight_decay`.
    taken = {name: value for name, value in given.items() if takes(factory, name)}
    try:
        return factory(**taken, **arguments)
    except Failure:
        raise
    except Exception as error:
        # An error in the code of a task or a source is told as such: there is more in it than what a recipe gives.
        own = custom.section in ("task", "source") and own_place(error, custom.folder) is not None
        if own or is_out_of_memory(error):
            raise
        raise _broken(custom, f"its constructor raises {words(error)}", error) from error


def check_custom(custom: Custom) -> None:
    """Import a user's component and check its arguments, without building it.

    Raises Failure as `build_custom` does, and 78 where its module cannot be imported.
    """
    try:
        factory = found_custom(custom)
    except Failure:
        raise
    except Exception as error:
        raise _broken(custom, f"its import fails: {words(error)}", error) from error
    if not is_object(custom.kind) or _is_made(object_of(custom.kind)):
        _checked(factory, custom)


def found_custom(custom: Custom) -> Any:
    """The class or function that a user's component is. Raises Failure as `build_custom` does."""
    factory, point = _find(custom), POINTS[custom.section]
    if is_object(custom.kind) and not _is_made(factory):
        factory = type(factory)
    # Before the plain check: the message says what of a torch dataset is missing, and not only that it is none.
    if custom.section == "source" and (wrong := unlike_source(factory, custom.kind.partition(":")[0])):
        raise Failure(Exit.BAD_RECIPE, f"{_place(custom)}{custom.kind} is no source, but {wrong}", HINT)
    # Streams have another form than the sections' own, which `unlike_source` has looked at.
    if custom.section == "source" and is_stream(factory):
        return factory
    if not (_is_class_of(factory, point) if inspect.isclass(factory) else _is_function_of(factory, point)):
        cause = f"{_place(custom)}{custom.kind} is no {custom.section}"
        # An object was given by whoever runs this; a name in a file may come from anybody.
        code = Exit.BAD_RECIPE if is_object(custom.kind) else Exit.SECURITY
        wanted = HINT if custom.section == "source" else f"{article(custom.section)} is {point.wanted}"
        raise Failure(code, cause, wanted)
    if lacks := _only_inherited(factory, point):
        raise _mistake(custom, f"{factory.__name__} has no {', '.join(lacks)} of its own")
    return factory


def _only_inherited(factory: Any, point: ExtensionPoint) -> list[str]:
    """Methods that a class has from its section's base class alone, where they do nothing but raise."""
    if point.base is None or not inspect.isclass(factory):
        return []
    base = imported(point.base)
    return [name for name in point.methods if getattr(factory, name) is getattr(base, name, None)]


def _is_class_of(factory: type, point: ExtensionPoint) -> bool:
    if not all(hasattr(factory, name) for name in point.methods):
        return False
    if point.either and not any(all(hasattr(factory, name) for name in methods) for methods in point.either):
        return False
    if point.events and not any(hasattr(factory, name) for name in point.events):
        return False
    return point.base is None or issubclass(factory, imported(point.base))


def _is_function_of(factory: Any, point: ExtensionPoint) -> bool:
    if isinstance(factory, partial):
        factory = factory.func
    # What a built-in function takes nobody can tell, so none is taken.
    if not point.parameters or not inspect.isfunction(factory):
        return False
    if point.events and factory.__name__ not in point.events:
        return False
    first = tuple(inspect.signature(factory).parameters)[: len(point.parameters)]
    return first == point.parameters


def article(noun: str) -> str:
    """`a task`, `an optimizer`."""
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def _is_made(thing: Any) -> bool:
    """Whether it is what an object is made by, and no object."""
    return inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, partial)


def _anew(metric: Any) -> Any:
    found = copy.deepcopy(metric)
    if hasattr(found, "reset"):
        found.reset()
    return found


def _find(custom: Custom) -> Any:
    module, _, name = custom.kind.partition(":")
    if is_object(custom.kind):
        return object_of(custom.kind)
    # For good and not for this import: what the module imports later must be found, too.
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
    point = POINTS[custom.section]
    ours = _given(factory, custom.section)
    parameters = {name: each for name, each in parameters_of(factory).items() if name not in ours}
    _require_callable(factory, custom, point)
    for key in custom.settings:
        if key in ours:
            raise _mistake(custom, f"{key!r} is nothing that a recipe gives: {article(custom.section)} gets it", key)
        if key not in parameters and not is_open_ended(parameters):
            raise _mistake(custom, f"unknown key {key!r}{nearest(key, list(parameters))}", key)
    if lost := missing(parameters, custom.settings):
        raise _mistake(custom, f"needs {', '.join(map(repr, lost))}")
    if unnamed := by_position(parameters, custom.settings):
        raise _mistake(custom, f"takes {', '.join(map(repr, unnamed))} by position only, and a recipe gives names")
    hints = hints_of(factory)
    return {key: _typed(custom, key, value, hints) for key, value in custom.settings.items()}


def _typed(custom: Custom, key: str, value: Any, hints: Mapping[str, Any]) -> Any:
    """An argument as its annotation wants it."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    if key not in hints:
        return value
    try:
        adapter = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_python(value)
    except ValidationError as error:
        raise _mistake(custom, f"{key}: {error.errors()[0]['msg']} (got {value!r})", key) from None


def _require_callable(factory: Any, custom: Custom, point: ExtensionPoint) -> None:
    """Raises Failure(78) where a class is abstract, or has a method that cannot be called as it is going to be."""
    if not inspect.isclass(factory):
        return
    _require_events(factory, custom, point)
    if lost := lacking(factory):
        raise _mistake(custom, f"is an abstract class: it lacks {', '.join(lost)}")
    calls = dict(point.calls)
    for event in point.events:
        if hasattr(factory, event):
            calls[event] = point.parameters
    for name, given in calls.items():
        if wrong := wrong_call(factory, name, (given, (*given, *point.later))):
            raise _mistake(custom, wrong)


def _given(factory: Any, section: str) -> tuple[str, ...]:
    """The parameters that no recipe gives."""
    point = POINTS[section]
    if inspect.isclass(factory):
        return point.given
    return GIVEN if section == "source" else (*point.parameters, *point.later)


def _require_events(factory: Any, custom: Custom, point: ExtensionPoint) -> None:
    """Raises Failure(78) where a class has a method that looks like an event and is none: nothing would call it."""
    for name in dir(factory) if point.events and inspect.isclass(factory) else ():
        if name.startswith("on_") and name not in point.events and callable(getattr(factory, name)):
            raise _mistake(custom, f"there is no event {name!r}{nearest(name, point.events)}")


def _place(custom: Custom, key: str = "kind") -> str:
    return custom.places.get(key, "")


def _mistake(custom: Custom, message: str, key: str = "kind") -> Failure:
    cause = f"{_place(custom, key)}{custom.kind}: {message}"
    return Failure(Exit.BAD_RECIPE, cause, "mend the recipe or the class it names")


def _broken(custom: Custom, message: str, error: Exception) -> Failure:
    """A mistake in the user's code, with its place and their frames."""
    place = own_place(error, custom.folder)
    failure = _mistake(custom, f"{message}, at {place}" if place else message)
    failure.details = folded(error, custom.folder)
    failure.trace = "".join(format_exception(error))
    return failure
