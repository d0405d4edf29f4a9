"""The sections of a recipe's tree as settings, with every mistake in them noted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from drivetrain.spec.affects import settings_of
from drivetrain.spec.amount import Amount
from drivetrain.spec.check import contradictions, shown
from drivetrain.spec.components import Derives, Nests
from drivetrain.spec.custom import ARGUMENTS, OWN, POINTS, Custom, section_keys
from drivetrain.spec.installed import OWN_PATH, installed_kinds, path_of
from drivetrain.spec.keys import key_of
from drivetrain.spec.messages import amounts, at, inside, keys_of, messages
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import (
    BY_NETWORK,
    DEFAULT_KINDS,
    KINDS,
    LISTED_SECTIONS,
    NAMED_SECTIONS,
    NULLABLE_SECTIONS,
    SECTIONS,
    imported,
    nearest,
)
from drivetrain.spec.tree import (
    Mistake,
    Origin,
    Path_,
    RecipeMistakes,
    Tree,
    dotted,
    origins_of,
    pairs,
    to_data,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_FILLED = (
    *("networks", "parameters", "embeddings", "scaling", "guard", "parallel", "evaluate"),
    *("checkpoint", "stop", "telemetry", "watch", "launch"),
)
_OPTIONAL = (*BY_NETWORK, *_FILLED)
_DERIVED = {
    "context": "task.model.context",
    "vocabulary": "task.model.vocabulary",
    "rate": "task.model.rate",
    "seconds": "task.model.seconds",
    "task": "task.glue",
    "path": "task.folder",
}
"""What a source may take from the task, and where it stands there."""
_OF_A_SOURCE = ("name", "weight", "parted")


@dataclass(frozen=True)
class Resolved:
    """A checked recipe; `tree` is the same as plain JSON data, with every default.

    `folder` is where its file lies, `text` that file as it was written ("" for a mapping and for a run's own).
    `dropped` are the settings that an override of their `kind` took away, which nobody may have meant. `source` is
    where the recipe comes from: a file or a shipped name, "" for a mapping; `given` are all overrides on top of it.
    """

    recipe: Recipe
    tree: dict[str, Any]
    origins: dict[str, Origin]
    folder: Path | None
    text: str = ""
    dropped: tuple[str, ...] = ()
    source: str = ""
    given: tuple[str, ...] = ()

    @property
    def places(self) -> dict[str, str]:
        """Where each value comes from, in words."""
        return {path: str(origin) for path, origin in self.origins.items()}

    @property
    def notes(self) -> list[str]:
        """What whoever gave the recipe should know of it."""
        if not self.dropped:
            return []
        kinds = "the kind was changed, so these do not count any more: give them again with the new one"
        return [f"{', '.join(self.dropped)}: {kinds}"]


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    """What checks values of a type; making one takes longer than many checks."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _taken_inside(inner: Path_, found: Sequence[Any], problems: Iterable[Path_]) -> bool:
    """Whether what is wrong here is only said by members of a union that are not meant: another one takes the value,
    and has found a mistake inside."""
    deeper = any(len(other) > len(inner) and other[: len(inner)] == inner for other in problems)
    return deeper and all(problem["type"].endswith("_type") for problem in found)


def _unsaid(cls: Any) -> Any:
    """Settings of which a recipe says nothing, without what checks them; None where it has to say something."""
    if not is_dataclass(cls):
        return None
    for field in fields(cls):
        if field.default is MISSING and field.default_factory is MISSING:
            return None
    return cls()  # type: ignore[operator] - it is a class


def plain(value: Any) -> Any:
    """Settings as plain JSON data."""
    if isinstance(value, Custom):
        # Only what was given: a kind of the user's own may be a task, which has none of these.
        common: dict[str, Any] = {}
        if value.name:
            common["name"] = value.name
        if value.weight != 1.0:
            common["weight"] = value.weight
        if value.parted:
            common["parted"] = plain(value.parted)
        return {"kind": value.kind, **common, **plain(value.written)}
    if isinstance(value, Amount):
        return dict(value.given)
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def _plain_fields(settings: Any) -> dict[str, Any]:
    inline: dict[str, Any] = {}
    found = {}
    for field in fields(settings):
        part = plain(getattr(settings, field.name))
        if settings_of(type(settings))[field.name].inline:
            inline |= part
        else:
            found[key_of(field.name)] = part
    return {**inline, **found}


class Notes:
    """Where each value of a recipe comes from, and what is wrong with it."""

    def __init__(self, origins: Mapping[Path_, Origin], mistakes: list[Mistake]) -> None:
        self._origins = origins
        self._mistakes = mistakes
        self._derived: dict[str, Origin] = {}

    def add(self, path: Path_, message: str, refused: bool = False) -> None:
        """Add a mistake, unless this very value is known to be wrong already."""
        if not path or not self.has(path):
            self._mistakes.append(Mistake(path, message, self.origin(path), refused))

    def has(self, path: Path_) -> bool:
        """Whether this very value is known to be wrong."""
        return any(path == mistake.path for mistake in self._mistakes)

    def derive(self, path: Path_, text: str) -> None:
        """This value was taken from another one."""
        self._derived[dotted(path)] = Origin("derived", text=text)

    def origin(self, path: Path_) -> Origin:
        """The origin of the longest part of a path that the recipe has."""
        while path not in self._origins:
            path = path[:-1]
        return self._origins[path]

    def place(self, path: Path_) -> str:
        """Where a key stands, for messages: its line, or what it is called where there is no file."""
        origin = self.origin(path)
        if origin.file:
            return f"{origin}: "
        key = path[:-1] if path[-1] == "kind" else path
        return f"{origin}: {dotted(key)}: "

    def origins_of(self, tree: Any, path: Path_ = ()) -> dict[str, Origin]:
        """The origin of every leaf of the resolved tree."""
        if isinstance(tree, (dict, list)) and tree:
            found: dict[str, Origin] = {}
            for key, part in pairs(tree):
                found |= self.origins_of(part, (*path, key))
            return found
        name = dotted(path)
        return {name: self._derived.get(name) or self._origins.get(path) or Origin("default")}


class Checker:
    """Checks a tree section by section and gathers every mistake."""

    def __init__(self, tree: Tree, folder: Path | None, mistakes: list[Mistake]) -> None:
        self._notes = Notes(origins_of(tree), mistakes)
        self._data = amounts(to_data(tree))
        self._folder = folder
        self._mistakes = mistakes

    def resolved(self, *, whole: bool = True) -> Resolved:
        """The recipe, or RecipeMistakes with all that is wrong; unless `whole`, section by section only."""
        hints, given = get_type_hints(Recipe, include_extras=True), self._data
        values: dict[str, Any] = {}  # None where a section could not be read
        # In the order of the fields: what a source takes from the task is there when its section is read.
        for field in fields(Recipe):
            name = field.name
            if name in _OPTIONAL and given.get(name) is None:
                values[name] = self._section(name, {}, values)
            elif name in given:
                values[name] = self._section(name, given[name], values, hints[name])
            elif field.default is not MISSING:
                values[name] = field.default
            else:
                values[name] = None
                self._notes.add((), f"{name!r} is missing")
        for key in given.keys() - values.keys():
            near = _elsewhere(key, self._data) or nearest(key, list(values))
            self._notes.add((key,), f"unknown key {key!r}{near}")
        recipe = Recipe(**values)
        for path, message, refused in contradictions(recipe) if whole else ():
            self._notes.add(path, message, refused)
        if self._mistakes:
            raise RecipeMistakes(sorted(self._mistakes, key=lambda m: (m.origin.file, m.origin.line, m.origin.text)))
        tree = plain(recipe)
        return Resolved(recipe, tree, self._notes.origins_of(tree), self._folder)

    def _section(self, name: str, data: Any, above: Mapping[str, Any], hint: Any = None) -> Any:
        """One value of the top level as its settings, or None with its mistakes noted."""
        if name == "data":
            return self._sources(data, above["task"])
        if name == "callbacks":
            return self._several("callback", data, (name,), list)
        if name == "kernels" and data is not None:
            return self._several("kernel", data, (name,), dict)
        if name == "watch":
            return self._watched(data)
        if name == "evaluate":
            return self._evaluated(data)
        if name in SECTIONS:
            return self._one_kind(imported(SECTIONS[name]), name, data)
        if name in KINDS:
            return self._chosen_kind(name, data)
        return self._settings(hint, data, (name,))

    def _one_kind(self, cls: Any, name: str, data: Any) -> Any:
        """A section of `SECTIONS`, which may be null, a mapping by name, or a list."""
        if name in NULLABLE_SECTIONS and data is None:
            return None
        if name in NAMED_SECTIONS and isinstance(data, dict):
            return self._named(cls, data, name)
        if name in LISTED_SECTIONS and isinstance(data, list):
            listed = self._named(cls, dict(enumerate(data)), name)
            return listed and tuple(listed.values())
        return self._settings(cls, data, (name,))

    def _chosen_kind(self, name: str, data: Any) -> Any:
        """A section of `KINDS`, which may be a mapping by network."""
        if name not in BY_NETWORK or not isinstance(data, dict) or not _names_networks(name, data):
            return self._component(name, data, (name,))
        parts = {network: self._component(name, part, (name, network)) for network, part in data.items()}
        if None in parts.values():
            return None
        return parts

    def _named(self, cls: Any, data: Mapping[Any, Any], name: str) -> dict[Any, Any] | None:
        """Settings by name, or by place in a list; None with their mistakes noted."""
        found = {key: self._settings(cls, part, (name, key)) for key, part in data.items()}
        if None in found.values():
            return None
        return found

    def _settings(self, cls: Any, data: Any, path: Path_) -> Any:
        """A value of a settings class or another type, or None with its mistakes noted."""
        from pydantic import ValidationError

        if data == {} and (settings := _unsaid(cls)) is not None:
            return settings
        try:
            # As JSON, since strict validation of Python's own values refuses a list where a tuple is declared.
            return _adapter(cls).validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            problems: dict[Path_, list[Any]] = {}
            for problem in error.errors(include_url=False):
                problems.setdefault(inside(data, problem["loc"])[0], []).append(problem)
            for inner, found in problems.items():
                if _taken_inside(inner, found, problems):
                    continue
                for message in messages(cls, data, inner, found):
                    self._notes.add((*path, *inner), message)
        return None

    def _component(self, section: str, data: Any, path: Path_) -> Any:
        """A component by its kind, or None with its mistakes noted."""
        if not isinstance(data, dict):
            such = f", such as {{kind: {data}}}" if isinstance(data, str) else ""
            self._notes.add(path, f"is a mapping with a kind{such} (got {shown(data)})")
            return None
        kinds = KINDS.get(section, {})
        kind = data.get("kind", DEFAULT_KINDS.get(section))
        if isinstance(kind, str) and kind in kinds:
            return self._nested(self._settings(imported(kinds[kind]), data, path), data, path)
        if own := path_of(section, kind):
            return self._custom(section, own, data, path)
        known = list(kinds)
        if section in POINTS:
            known += [*installed_kinds(section), OWN_PATH]
        if kind is None and not self._notes.has((*path, "kind")):
            self._notes.add(path, f"needs a kind: {', '.join(known)}")
        elif kind is not None:
            near = nearest(str(kind), known) or (_own_kind(kind) if section in POINTS else "")
            self._notes.add((*path, "kind"), f"unknown kind {shown(kind)}; there are {', '.join(known)}{near}")
        return None

    def _nested(self, settings: Any, data: Mapping[str, Any], path: Path_) -> Any:
        """Settings with the components inside them; None where one has mistakes, which are noted."""
        if not isinstance(settings, Nests):
            return settings
        found = {}
        for name, section in settings.nested.items():
            if name in data:
                found[name] = self._component(section, data[name], (*path, name))
        return None if None in found.values() else replace(settings, **found)  # type: ignore[type-var]

    def _custom(self, section: str, kind: str, data: Mapping[str, Any], path: Path_) -> Any:
        """A component of the user's own: a `Custom`, by itself or in the settings that its section has besides; None
        with their mistakes noted."""
        own, common = dict(data), {}
        own.pop("kind", None)
        nested = own.pop(ARGUMENTS, {})
        if not isinstance(nested, dict):
            self._notes.add((*path, ARGUMENTS), f"is a mapping of the constructor's arguments (got {shown(nested)})")
            return None
        folder = str(self._folder) if self._folder else None
        places = {key: self._notes.place((*path, key)) for key in data}
        places |= {key: self._notes.place((*path, ARGUMENTS, key)) for key in nested}
        custom = Custom(section=section, kind=kind, folder=folder, places=places)
        settings = POINTS[section].settings
        for key in section_keys(section) & own.keys():
            common[key] = own.pop(key)
        for key in own.keys() & nested.keys():
            self._notes.add((*path, ARGUMENTS, key), "is given twice: beside the kind, and here")
        custom = replace(custom, settings={**own, **nested})
        if settings is None:
            return custom
        checked = self._settings(imported(settings), common, path)
        if checked is None:
            return None
        if section == "source":
            return replace(custom, **{key: getattr(checked, key) for key in _OF_A_SOURCE})
        return replace(checked, **{OWN: custom})

    def _several(self, section: str, data: Any, path: Path_, shape: type[list] | type[dict]) -> Any:
        """Components in a list, or in a mapping by name; None with their mistakes noted."""
        if not isinstance(data, shape):
            what = "list of kinds" if shape is list else "mapping from names to kinds"
            self._notes.add(path, f"is a {what} (got {shown(data)})")
            return None
        found = {key: self._component(section, part, (*path, key)) for key, part in pairs(data)}
        if None in found.values():
            return None
        return tuple(found.values()) if shape is list else found

    def _watched(self, data: Any) -> Any:
        """The sinks, with those of the user's own."""
        settings = self._settings(imported(SECTIONS["watch"]), data, ("watch",))
        own = at(data, ("sinks",))
        if settings is None or own is None:
            return settings
        sinks = self._several("sink", own, ("watch", "sinks"), list)
        return None if sinks is None else replace(settings, sinks=sinks)

    def _evaluated(self, data: Any) -> Any:
        """When and how sets are scored, with the metrics of the user's own."""
        settings = self._settings(imported(SECTIONS["evaluate"]), data, ("evaluate",))
        if settings is None or not settings.metrics:
            return settings
        metrics = self._several("metric", data["metrics"], ("evaluate", "metrics"), dict)
        return None if metrics is None else replace(settings, metrics=metrics)

    def _sources(self, raw: Any, task: Any) -> Any:
        """The data section with its sources as settings, and what they take from the task filled in."""
        data = self._settings(imported(SECTIONS["data"]), raw, ("data",))
        train = []
        listed = at(raw, ("train", "sources"))
        if isinstance(listed, list):
            for index, source in enumerate(listed):
                train.append(self._source(source, ("data", "train", "sources", index), task))
        sets: dict[str, dict[str, Any]] = {"validation": {}, "test": {}}
        for part, found in sets.items():
            named = at(raw, (part,))
            for name in named if isinstance(named, dict) else ():
                found[name] = self._source(named[name], ("data", part, name), task)
        if data is None or None in (*train, *sets["validation"].values(), *sets["test"].values()):
            return None
        return replace(data, train=replace(data.train, sources=tuple(train)), **sets)

    def _source(self, data: Any, path: Path_, task: Any) -> Any:
        source = self._component("source", data, path)
        if source is None or isinstance(source, Custom) or not isinstance(task, Derives):
            return source
        derived = task.derive(task, source)
        for field in fields(source):
            name = field.name
            if name in _DERIVED and name in derived and getattr(source, name) is None:
                source = replace(source, **{name: derived[name]})
                self._notes.derive((*path, name), _DERIVED[name])
        return source


def _elsewhere(key: str, data: Any) -> str:
    """`; did you mean 'optimizer.lr'?` where sections have a key that was given at the top level."""
    classes: dict[str, type] = {"budget": Amount}
    for name, kinds in KINDS.items():
        kind = str(at(data, (name, "kind")) or DEFAULT_KINDS.get(name))
        if kind in kinds:
            classes[name] = imported(kinds[kind])
    for name, path in SECTIONS.items():
        if name not in NAMED_SECTIONS:
            classes[name] = imported(path)
    found = [repr(f"{name}.{key}") for name, cls in classes.items() if key in keys_of(cls)]
    if not found:
        return ""
    return f"; did you mean {' or '.join(found)}?"


def _own_kind(kind: Any) -> str:
    """How a class of the user's own is written, where a kind looks like one."""
    if not isinstance(kind, str) or not re.fullmatch(r"\w+(\.\w+)*", kind):
        return ""
    module, _, name = kind.rpartition(".")
    return f"; a class of your own is '{module or 'module'}:{name}'"


def _names_networks(section: str, value: dict[str, Any]) -> bool:
    """Whether a section is a mapping by network: all values are mappings, and no key is a setting of any kind."""
    if not value or not all(isinstance(part, dict) for part in value.values()):
        return False
    known: set[str] = set()
    for path in KINDS[section].values():
        known.update(field.name for field in fields(imported(path)))
    return not known.intersection(value)
