"""Which kinds there are, by import path. Nothing is imported before a recipe needs it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.settings import Component, Settings

KINDS: Mapping[str, Mapping[str, str]] = {
    "task": {
        "language_model": "drivetrain.tasks.language_model.recipe:LanguageModel",
        "classification": "drivetrain.tasks.classification.recipe:Classification",
        "speech": "drivetrain.tasks.speech.recipe:Speech",
        "vocoder": "drivetrain.tasks.speech.recipe:Vocoding",
        "enhancer": "drivetrain.tasks.speech.recipe:Enhancing",
    },
    "source": {
        "text": "drivetrain.data.recipe:Text",
        "tokens": "drivetrain.data.recipe:Tokens",
        "documents": "drivetrain.data.recipe:Documents",
        "jsonl": "drivetrain.data.recipe:JsonLines",
        "parquet": "drivetrain.data.recipe:Parquet",
        "datasets": "drivetrain.data.recipe:Datasets",
        "table": "drivetrain.data.recipe:Table",
        "glue": "drivetrain.tasks.classification.recipe:Glue",
        "speech": "drivetrain.tasks.speech.recipe:SpeechFolders",
        "harmonics": "drivetrain.tasks.speech.recipe:Harmonics",
    },
    "optimizer": {
        "adamw": "drivetrain.optim.recipe:AdamW",
        "sgd": "drivetrain.optim.recipe:SGD",
        "adam": "drivetrain.optim.recipe:Adam",
        "adagrad": "drivetrain.optim.recipe:Adagrad",
        "adafactor": "drivetrain.optim.recipe:Adafactor",
        "rmsprop": "drivetrain.optim.recipe:RMSprop",
        "muon": "drivetrain.optim.recipe:Muon",
        "galore": "drivetrain.optim.recipe:GaLore",
        "torchao_adamw8bit": "drivetrain.optim.recipe:TorchaoAdamW8bit",
        "torchao_adamw4bit": "drivetrain.optim.recipe:TorchaoAdamW4bit",
        "bitsandbytes_adamw8bit": "drivetrain.optim.recipe:BitsandbytesAdamW8bit",
    },
    "schedule": {
        "constant": "drivetrain.optim.recipe:Constant",
        "linear": "drivetrain.optim.recipe:Linear",
        "cosine": "drivetrain.optim.recipe:Cosine",
        "cosine_restarts": "drivetrain.optim.recipe:CosineRestarts",
        "wsd": "drivetrain.optim.recipe:WarmupStableDecay",
        "inverse_sqrt": "drivetrain.optim.recipe:InverseSqrt",
        "polynomial": "drivetrain.optim.recipe:Polynomial",
        "exponential": "drivetrain.optim.recipe:Exponential",
        "steps": "drivetrain.optim.recipe:StepSchedule",
    },
    "launch": {"local": "drivetrain.launch.recipe:Local"},
}
"""Settings classes by section and kind."""

DEFAULT_KINDS = {"optimizer": "adamw", "schedule": "constant", "launch": "local"}
"""What a section is where it names no kind."""

SECTIONS: Mapping[str, str] = {
    "data": "drivetrain.data.recipe:Data",
    "batch": "drivetrain.engine.recipe:Batch",
    "networks": "drivetrain.engine.recipe:Network",
    "scaling": "drivetrain.engine.recipe:Scaling",
    "average": "drivetrain.engine.recipe:Average",
    "statistics": "drivetrain.engine.recipe:Statistics",
    "guard": "drivetrain.loop.recipe:Guard",
    "init": "drivetrain.checkpoint.recipe:Init",
    "evaluate": "drivetrain.loop.recipe:Evaluate",
    "checkpoint": "drivetrain.checkpoint.recipe:Checkpoint",
    "stop": "drivetrain.loop.recipe:Stop",
    "telemetry": "drivetrain.loop.recipe:Telemetry",
    "profile": "drivetrain.loop.recipe:Profile",
    "watch": "drivetrain.watch.recipe:Watch",
}
"""Settings classes of the sections that have one kind only."""

NULLABLE_SECTIONS = frozenset({"init", "profile", "average", "statistics"})
"""Sections that may be null."""

NAMED_SECTIONS = frozenset({"networks"})
"""Sections that are mappings from names to their settings."""

LISTED_SECTIONS = frozenset({"init"})
"""Sections that may be a list of their settings."""

BY_NETWORK = ("optimizer", "schedule")
"""Sections that are one for all networks, or a mapping by network."""

CUSTOM_SECTIONS = frozenset({"task", "source"})
"""Sections whose kind may be a user's own `package.module:Name`."""


_STANDARD = str(Path(os.__file__).parent)  # the folder of the standard library


@dataclass(frozen=True, kw_only=True)
class Custom(Component):
    """A user's own component: `kind` is `package.module:Name`, the settings are its constructor's arguments."""

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


@cache
def imported(path: str) -> Any:
    """The object at `package.module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def build_custom(custom: Custom, what: str = "component", *needed: str) -> Any:
    """Build a user's component from its settings; `what` it is in words, and the methods that its class must have.

    Raises Failure(77) where it is no such class: a recipe must not be able to call anything that can be imported; 78
    where its module or name is not there, where its constructor has no such argument or misses one, and where an
    argument is not of the annotated type.
    """
    factory = _find(custom)
    if not inspect.isclass(factory) or not all(hasattr(factory, name) for name in needed):
        methods = ", ".join(needed)
        cause = f"{_place(custom)}{custom.kind} is no class of a {what}"
        raise Failure(Exit.SECURITY, cause, f"a {what} is a class that has {methods}")
    arguments = _checked(factory, custom)
    return factory(**arguments)


def check_custom(custom: Custom) -> None:
    """Import a user's component and check its arguments, without building it.

    Raises Failure(78) as `build_custom` does, and where its module cannot be imported.
    """
    try:
        factory = _find(custom)
    except Failure:
        raise
    except Exception as error:
        raise _mistake(custom, f"its import fails: {type(error).__name__}: {error}") from error
    _checked(factory, custom)


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

    parameters = inspect.signature(factory).parameters
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


def _hints(factory: Any) -> dict[str, Any]:
    try:
        return get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (NameError, TypeError, AttributeError):
        return {}


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` where a known word is near, but for its case, else nothing."""
    folded = {other.casefold(): other for other in known}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if not close:
        return ""
    return f"; did you mean {folded[close[0]]!r}?"


def _place(custom: Custom, key: str = "kind") -> str:
    return custom.places.get(key, "")


def _mistake(custom: Custom, message: str, key: str = "kind") -> Failure:
    cause = f"{_place(custom, key)}{custom.kind}: {message}"
    return Failure(Exit.BAD_RECIPE, cause, "mend the recipe or the class it names")
